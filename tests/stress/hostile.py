"""Calls that break the rules of their operators, on the NPU alone: part of ``make fuzz``.

A seed takes a node test of the onnx package or a sample of an `npu::` operator and changes its
attributes, shapes, strides, values and types (hostile_models.py, hostile_calls.py). A result or an
error is right, whatever it is; a process that dies or that does not answer is a failure, and prints
its seed: `tests/stress/hostile.py KIND --seed N --count 1` makes that call again. A model of which
onnxruntime dies without the NPU, too, before it runs, is counted by itself. Calls are made by a
child process, which is started again where it ended.
"""

from __future__ import annotations

import argparse
import importlib
import os
import queue
import subprocess
import sys
import threading
import time

import numpy as np

KINDS = ("models", "calls")
START_SECONDS, CALL_SECONDS = 300, 120  # with sanitizers, on a busy machine
# Sizes that fit in no device: refused instead of computed with.
ENVIRONMENT = {"ORT_NPU_MEMORY_LIMIT": "1G", "ORT_NPU_DEVICE_COUNT": "1"}
WITHOUT_NPU = {"HOSTILE_WITHOUT_NPU": "1"}  # models are loaded for the CPU, and do not run

NUMBERS = [0, 1, -1, 2, -2, 3, 5, -7, 100, 2**31 - 1, -(2**31), 2**31, 2**32 + 1, 2**40, 2**62,
           2**63 - 1, -(2**63)]  # fmt: skip
REALS = [0.0, -1.0, 0.5, 1e-30, 1e38, -1e38, float("inf"), float("-inf"), float("nan")]
WORDS = ["", "linear", "NOTSET", "SAME_UPPER", "reflect", "add", "BSND", "TND", "\0", "é" * 40]


def other_number(rng: np.random.Generator, number: int) -> int:
    """A number near `number`, or one where arithmetic ends."""
    if rng.random() < 0.4:
        return max(-(2**63), min(2**63 - 1, number + int(rng.integers(-2, 3))))
    return NUMBERS[rng.integers(len(NUMBERS))]


def other_list(rng: np.random.Generator, numbers: list[int]) -> list[int]:
    """A list with an element more, less or another one."""
    out = list(numbers)
    at = int(rng.integers(0, len(out) + 1))
    kind = rng.integers(0, 4)
    if kind == 0 or not out:
        out.insert(at, other_number(rng, 1))
    elif kind == 1:
        del out[min(at, len(out) - 1)]
    else:
        at = min(at, len(out) - 1)
        out[at] = other_number(rng, int(out[at]))
    return out


def other_shape(rng: np.random.Generator, shape: tuple[int, ...]) -> tuple[int, ...]:
    """A shape with a dimension more, less or of another size."""
    out = list(shape)
    at = int(rng.integers(0, len(out) + 1))
    kind = rng.integers(0, 5)
    if kind == 0 or not out:
        out.insert(at, int(rng.integers(0, 4)))
    elif kind == 1:
        del out[min(at, len(out) - 1)]
    else:
        at = min(at, len(out) - 1)
        out[at] = int(rng.choice([0, 1, 2, out[at] + 1, max(out[at] - 1, 0), 2 * out[at], 65]))
    return tuple(out) if np.prod(out, dtype=np.float64) < 1e6 else shape


def other_values(rng: np.random.Generator, array: np.ndarray) -> np.ndarray:
    """The array with some elements, or all, at an end of what their type holds."""
    out = array.copy()
    if out.size == 0:
        return out
    with np.errstate(all="ignore"):
        if out.dtype.kind in "iu":
            bits = np.iinfo(out.dtype)
            number = other_number(rng, int(out.flat[rng.integers(out.size)]))
            value = np.array(min(max(number, bits.min), bits.max)).astype(out.dtype)
        else:
            value = np.array(REALS[rng.integers(len(REALS))]).astype(out.dtype)
    if rng.random() < 0.3:
        out[...] = value
    else:
        out.flat[rng.integers(0, out.size, rng.integers(1, 4))] = value
    return out


def serve(kind: str, first: int) -> None:
    """In the child: makes calls from a seed on, each announced before it is made."""
    make_call = importlib.import_module(f"hostile_{kind}").make_call
    seed = first
    while sys.stdin.readline():
        print(f"call {seed}", flush=True)
        outcome = make_call(np.random.default_rng(seed))
        print(f"done {seed} {' '.join(outcome.split())}", flush=True)
        seed += 1


class Child:
    """A process that makes calls, and the lines that it prints."""

    def __init__(self, kind: str, first: int, environment: dict[str, str] = ENVIRONMENT) -> None:
        self.process = subprocess.Popen(
            [sys.executable, __file__, "--serve", kind, str(first)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            env=os.environ | environment,
        )
        self.lines: queue.Queue[str] = queue.Queue()
        self.errors: list[str] = []
        self.readers = [
            threading.Thread(target=self.read_lines, daemon=True),
            threading.Thread(target=self.read_errors, daemon=True),
        ]
        for reader in self.readers:
            reader.start()

    def read_lines(self) -> None:
        assert self.process.stdout
        for line in self.process.stdout:
            self.lines.put(line)
        self.lines.put("")

    def read_errors(self) -> None:
        assert self.process.stderr
        for line in self.process.stderr:
            self.errors = [*self.errors[-400:], line]

    def call(self, seconds: float) -> str:
        """Makes the next call; returns its outcome, or raises Died."""
        assert self.process.stdin
        try:
            self.process.stdin.write("\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            pass  # its end is told below
        end = time.monotonic() + seconds
        while True:
            try:
                line = self.lines.get(timeout=max(0.0, end - time.monotonic()))
            except queue.Empty:
                self.process.kill()
                raise Died(f"no answer within {seconds:.0f} s") from None
            if line.startswith("done "):
                return line.split(" ", 2)[2].strip()
            if not line:
                code = self.process.wait()
                self.readers[1].join(timeout=10)
                raise Died(f"exit code {code}\n{''.join(self.errors)}")

    def end(self) -> None:
        assert self.process.stdin
        self.process.stdin.close()
        try:
            self.process.wait(timeout=60)
        except subprocess.TimeoutExpired:
            self.process.kill()


class Died(Exception):
    """The process that made a call ended or does not answer."""


def dies_without_npu(kind: str, seed: int) -> bool:
    """Whether loading the model kills the process although nothing of the NPU takes part."""
    if kind != "models":
        return False
    child = Child(kind, seed, ENVIRONMENT | WITHOUT_NPU)
    try:
        child.call(START_SECONDS)
    except Died:
        return True
    child.end()
    return False


def check(kind: str, seed: int, count: int | None, seconds: float, verbose: bool) -> int:
    """Makes calls until the time or the count is over; returns how many killed their process."""
    end = time.monotonic() + seconds
    failures = others = refused = calls = 0
    child: Child | None = None
    while calls != count and (count is not None or time.monotonic() < end):
        fresh = child is None
        child = child or Child(kind, seed + calls)
        try:
            outcome = child.call(START_SECONDS if fresh else CALL_SECONDS)
            refused += not outcome.endswith(": a result")
            if verbose:
                print(f"{kind} {seed + calls}: {outcome}", flush=True)
        except Died as error:
            child = None
            other = dies_without_npu(kind, seed + calls)
            others += other
            failures += not other
            said = "onnxruntime dies without the NPU, too" if other else "FAILED"
            print(f"{said}: {kind} --seed {seed + calls} --count 1: {error}", flush=True)
        calls += 1
    if child:
        child.end()
    told = f", {others} of which onnxruntime itself dies" if others else ""
    print(f"{calls} {kind} from seed {seed} on, {refused} refused{told}, {failures} failures")
    return failures


def main(arguments: list[str] | None = None) -> int:
    """Runs both kinds or one; returns the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("kind", choices=KINDS, nargs="?", help="both, if not given")
    parser.add_argument("--seed", type=int, default=0, help="of the first call")
    parser.add_argument("--count", type=int, help="how many calls; else --seconds decides")
    parser.add_argument("--seconds", type=float, default=60, help="of all calls")
    parser.add_argument("-v", action="store_true", help="print the outcome of every call")
    options = parser.parse_args(arguments)
    kinds = [options.kind] if options.kind else KINDS
    each = options.seconds / len(kinds)
    failures = [check(k, options.seed, options.count, each, options.v) for k in kinds]
    return 1 if any(failures) else 0


if __name__ == "__main__":
    if sys.argv[1:2] == ["--serve"]:
        serve(sys.argv[2], int(sys.argv[3]))
    else:
        sys.exit(main())
