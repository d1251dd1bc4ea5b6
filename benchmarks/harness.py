"""Interleaved measurement of peers: every result is a ratio within one run.

Each engine runs in its own process, which is stopped between its turns: idle threads of
onnxruntime, torch and OpenVINO spin for a while before they sleep, and would take cores from the
next engine. Each round runs all engines in turn.
"""

from __future__ import annotations

import argparse
import functools
import importlib.util
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import results
from results import Measurement
from tqdm import tqdm

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
FOLDER = ROOT / "build" / "bench"
# ORT_NPU_ISA restricts the instructions of our kernels; torch is restricted likewise. The other
# peers have no such setting.
ISA = os.environ.get("ORT_NPU_ISA", "")
# What engines import, and not before some of them were measured.
PACKAGES = ["ml_dtypes", "onnx", "onnxruntime", "onnxruntime_npu", "torch", "transformers"]
INSTALLED = "`make build` installs what benchmarks import into .venv"
TORCH_WITHOUT = {
    "amx": {},
    "avx512": {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE_BF16"},
    "avx2": {
        "ONEDNN_MAX_CPU_ISA": "AVX2",
        "ATEN_CPU_CAPABILITY": "avx2",
        "MKL_ENABLE_INSTRUCTIONS": "AVX2",
    },
    "portable": {
        "ONEDNN_MAX_CPU_ISA": "SSE41",
        "ATEN_CPU_CAPABILITY": "default",
        "MKL_ENABLE_INSTRUCTIONS": "SSE4_2",
    },
}


def arguments_parser(description: str, dtypes: list[str], rounds: int) -> argparse.ArgumentParser:
    """The options common to all benchmarks."""
    parser = argparse.ArgumentParser(
        description=description.splitlines()[0],
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--rounds", type=int, default=rounds, help="interleaved rounds a case")
    threads = int(os.environ.get("ORT_NPU_NUM_THREADS") or len(os.sched_getaffinity(0)))
    parser.add_argument("--threads", type=int, default=threads, help="of every engine")
    parser.add_argument("--dtypes", nargs="+", default=dtypes, choices=dtypes, help="one run each")
    parser.add_argument("--only", default="", metavar="REGEX", help="cases whose name matches")
    parser.add_argument("--out", type=Path, default=FOLDER, help="folder of tables and samples")
    return parser


def require(modules: Iterable[str] = PACKAGES, remedy: str = INSTALLED) -> None:
    """Exit, with how to mend it, if a module cannot be imported: before hours of measuring."""
    missing = [name for name in modules if importlib.util.find_spec(name) is None]
    if missing:
        sys.exit(f"expected {', '.join(missing)} in the environment of {sys.executable}; {remedy}")


def parse_arguments(
    parser: argparse.ArgumentParser, packages: Iterable[str] = PACKAGES
) -> argparse.Namespace:
    """Parse the command line, create the folder of results and pass on the thread count.

    Exits if one of the packages that the benchmark imports later is missing.
    """
    arguments = parser.parse_args()
    require(packages)
    arguments.out.mkdir(parents=True, exist_ok=True)
    # Inherited by the engines' processes.
    os.environ["ORT_NPU_NUM_THREADS"] = str(arguments.threads)
    os.environ.update(TORCH_WITHOUT.get(ISA, {}))
    return arguments


class EngineFailed(RuntimeError):
    """An engine's process reported an error; the text is its traceback."""


class Engine:
    """An object in a separate process; method calls are forwarded one at a time.

    ``make`` is a class of a module in this folder, or a partial of one with plain arguments.
    """

    def __init__(self, name: str, make: Callable[[], Any], python: str = sys.executable) -> None:
        self.name = name
        ours, theirs = socket.socketpair()
        environment = dict(os.environ)
        if python != sys.executable:
            environment.pop("PYTHONPATH", None)  # it refers to packages of this environment
        with theirs:
            self._process = subprocess.Popen(
                [python, str(HERE / "engine_server.py"), str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                env=environment,
            )
        self._connection = Connection(ours.detach())
        partial = make if isinstance(make, functools.partial) else functools.partial(make)
        module = partial.func.__module__
        if module == "__main__":
            module = Path(sys.modules["__main__"].__file__ or "").stem
        self._send((module, partial.func.__name__, partial.args, partial.keywords))
        self._receive()

    def _send(self, message: Any) -> None:
        self._process.send_signal(signal.SIGCONT)
        self._connection.send(message)

    def _receive(self) -> Any:
        try:
            status, value = self._connection.recv()
        except EOFError:
            raise EngineFailed(f"{self.name}: the process died") from None
        if status == "error":
            raise EngineFailed(f"{self.name}:\n{value}")
        self._process.send_signal(signal.SIGSTOP)
        return value

    def call(self, method: str, *arguments: Any) -> Any:
        """Run `method` in the engine's process and return its result."""
        self._send((method, arguments))
        return self._receive()

    def close(self) -> None:
        """End the process."""
        if self._process.poll() is None:
            try:
                self._send(None)
                self._process.wait(timeout=30)
            except (BrokenPipeError, subprocess.TimeoutExpired):
                self._process.kill()
        self._connection.close()


@dataclass(frozen=True)
class Case:
    """A timed call: `method(*arguments)` does `work` units and returns the seconds.

    It measures the seconds itself, so that set-up inside it is not counted.
    """

    name: str
    work: float
    unit: str
    method: str
    arguments: tuple[Any, ...]


@dataclass(frozen=True)
class Spec:
    """An engine to start; `python` is the interpreter of its environment."""

    make: Callable[[], Any]
    ours: bool = False
    python: str = sys.executable


def compare(
    engines: list[Engine], method: str, calls: Iterable[tuple[Any, ...]], tolerance: float
) -> None:
    """Raise if engines' results of `method` differ from those of the first.

    The difference is the relative norm of two float32 arrays; `calls` are the arguments to try.
    """
    for arguments in calls:
        ours, *others = (engine.call(method, *arguments) for engine in engines)
        for engine, theirs in zip(engines[1:], others, strict=True):
            difference = float(np.linalg.norm(ours - theirs) / np.linalg.norm(theirs))
            what = f"{engine.name}: {method}{arguments} differs by {difference:.1e}"
            print(what, file=sys.stderr, flush=True)
            if ours.shape != theirs.shape or not difference <= tolerance:
                sys.exit(f"results disagree, nothing is timed: {what}, expected <= {tolerance:g}")


def check_errors(engines: list[Engine], tolerance: float, calls: Iterable[tuple[Any, ...]]) -> None:
    """Exit if an engine's `error`, an array of one relative error, exceeds the tolerance."""
    for arguments in calls:
        for engine in engines:
            error = float(engine.call("error", *arguments)[0])
            if not error <= tolerance:
                what = f"{engine.name}: {arguments} differs by {error:.1e}"
                sys.exit(f"wrong result, nothing is timed: {what}, expected <= {tolerance:g}")


def interleave(cases: list[Case], engines: list[Engine], rounds: int) -> list[Measurement]:
    """Time every case on every engine, `rounds` times, in turn."""
    measured = []
    samples = len(cases) * (rounds + 1) * len(engines)
    with tqdm(total=samples, unit="sample", disable=None, leave=False) as bar:
        for done, case in enumerate(cases, 1):
            seconds: dict[str, list[float]] = {engine.name: [] for engine in engines}
            for number in range(rounds + 1):  # round 0 is a warm-up and is dropped
                for engine in engines:
                    bar.set_description(f"{case.name}: {engine.name}, round {number} of {rounds}")
                    sample = engine.call(case.method, *case.arguments)
                    bar.update()
                    if number:
                        seconds[engine.name].append(sample)
            of_case = [
                Measurement(case.name, name, case.work, case.unit, samples)
                for name, samples in seconds.items()
            ]
            rates = ", ".join(f"{m.engine} {m.median():.4g}" for m in of_case)
            # The bar is not shown in a log, this is.
            bar.write(f"{done}/{len(cases)} {case.name}: {rates} {case.unit}/s", file=sys.stderr)
            measured += of_case
    return measured


def measure(
    arguments: argparse.Namespace,
    name: str,
    specs: dict[str, Spec],
    cases: list[Case],
    check: Callable[[list[Engine]], None] | None = None,
    missing: dict[str, str] | None = None,
) -> results.Run | None:
    """Start the engines, check that they agree, time the cases, print a table, save the samples.

    ``--only`` selects the cases; returns None if it selects none. Results of other cases in the
    file of an earlier run are kept. ``missing``, if given, gets the reason of a failed start.
    """
    cases = [case for case in cases if re.search(arguments.only, case.name)]
    if not cases:
        return None
    engines: list[Engine] = []
    try:
        for engine_name, spec in specs.items():
            try:
                engines.append(Engine(engine_name, spec.make, spec.python))
            except EngineFailed as error:
                if spec.ours or missing is None:
                    raise
                missing[engine_name] = str(error).strip().splitlines()[-1]
                said = f"without {engine_name}: {missing[engine_name]}"
                print(said, file=sys.stderr, flush=True)
        if check:
            check(engines)
        measured = interleave(cases, engines, arguments.rounds)
    finally:
        for engine in engines:
            engine.close()
    run = results.Run([n for n, spec in specs.items() if spec.ours], measured)
    print(results.table(run), flush=True)
    results.save(run, arguments.out / f"{name}{f'-{ISA}' if ISA else ''}.json")
    return run
