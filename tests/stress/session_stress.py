"""Sessions, torch tensors, graphs and events of eight threads on two devices, good and failing.

Every value is compared with NumPy's, every error with the one expected from this thread's own
work. Run by ``make stress``; a short form runs with the tests.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import itertools
import os
import random
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable
from typing import Any

os.environ.setdefault("ORT_NPU_DEVICE_COUNT", "2")

import numpy as np
import onnxruntime as ort
import onnxruntime_npu
import torch
from onnx import TensorProto, helper
from onnxruntime_npu import torch_device

ROWS, COLUMNS = 32, 16
_NUMBERS = itertools.count(1000)  # every bad index is unique


def model() -> bytes:
    """y = tanh(table[i]) * 2, three kernels of which the first checks the index."""
    nodes = [
        helper.make_node("Gather", ["table", "i"], ["rows"]),
        helper.make_node("Tanh", ["rows"], ["t"]),
        helper.make_node("Add", ["t", "t"], ["y"]),
    ]
    values = {
        "table": (TensorProto.FLOAT, [ROWS, COLUMNS]),
        "i": (TensorProto.INT64, [4]),
        "y": (TensorProto.FLOAT, [4, COLUMNS]),
    }
    infos = {n: helper.make_tensor_value_info(n, *v) for n, v in values.items()}
    graph = helper.make_graph(nodes, "stress", [infos["table"], infos["i"]], [infos["y"]])
    imports = [helper.make_opsetid("", 21)]
    return helper.make_model(graph, opset_imports=imports, ir_version=10).SerializeToString()


MODEL = model()


def make_session(device: int, parallel: bool = False, **options: Any) -> ort.InferenceSession:
    options["device_id"] = device
    providers = [(onnxruntime_npu.get_ep_name(), options)]
    settings = ort.SessionOptions()
    if parallel:
        settings.execution_mode = ort.ExecutionMode.ORT_PARALLEL
        settings.inter_op_num_threads = 3
    return ort.InferenceSession(MODEL, settings, providers=providers)


class Difference(AssertionError):
    """A value or error differs from the expected one."""


class Worker:
    """One thread's work: each step releases everything that it used."""

    def __init__(self, number: int, seed: int, shared: list[ort.InferenceSession]) -> None:
        self.random = random.Random(seed * 1000 + number)
        self.numpy = np.random.default_rng(seed * 1000 + number)
        self.device = number % 2
        self.table = self.numpy.standard_normal((ROWS, COLUMNS), dtype=np.float32)
        self.sessions = [make_session(self.device)]
        self.shared = shared[self.device]  # with other threads
        self.counts: Counter[str] = Counter()
        torch.npu.set_device(self.device)
        # Used by this thread only: on a shared stream errors may also be reported to other threads.
        self.stream, self.side, self.capturing = (torch.npu.Stream() for _ in range(3))

    def indices(self) -> tuple[np.ndarray, str]:
        """Return four rows, and their bad index, if any."""
        indices = self.numpy.integers(0, ROWS, 4)
        if self.random.random() < 0.7:
            return indices, ""
        indices[self.random.randrange(4)] = bad = next(_NUMBERS)
        return indices, f"got {bad} "

    def expected(self, indices: np.ndarray) -> np.ndarray:
        return 2 * np.tanh(self.table[indices])

    def check(self, indices: np.ndarray, bad: str, act: Callable[[], np.ndarray]) -> None:
        try:
            got = act()
        except Exception as error:
            if not bad or bad not in str(error):
                raise Difference(f"expected {bad or 'a value'!r}, got {error!r}") from error
            return
        if bad:
            raise Difference(f"expected the error {bad!r}, got a value")
        # The kernel's tanh is within a few units in the last place of NumPy's.
        np.testing.assert_allclose(got, self.expected(indices), rtol=1e-5, atol=1e-6)

    def session(self) -> ort.InferenceSession:
        return self.random.choice([self.shared, *self.sessions])

    def run(self) -> None:
        indices, bad = self.indices()
        feed = {"table": self.table, "i": indices}
        self.check(indices, bad, lambda: self.session().run(None, feed)[0])

    def run_async(self) -> None:
        indices, bad = self.indices()
        done, outcome = threading.Event(), []

        def finished(outputs: list[np.ndarray], _: Any, error: str) -> None:
            outcome.append((outputs, error))
            done.set()

        def act() -> np.ndarray:
            feed = {"table": self.table, "i": indices}
            self.session().run_async(None, feed, finished, None)
            if not done.wait(60):
                raise Difference("run_async did not finish within a minute")
            outputs, error = outcome[0]
            if error:
                raise RuntimeError(error)
            return outputs[0]

        self.check(indices, bad, act)

    def bound(self, session: ort.InferenceSession, indices: np.ndarray) -> Any:
        binding = session.io_binding()
        for name, value in (("table", self.table), ("i", indices)):
            device_value = onnxruntime_npu.ortvalue_from_numpy(value, self.device)
            binding.bind_ortvalue_input(name, device_value)
        binding.bind_output("y", "npu", self.device)
        return binding

    def run_unsynchronised(self) -> None:
        indices, bad = self.indices()
        options = ort.RunOptions()
        options.add_run_config_entry("disable_synchronize_execution_providers", "1")

        def act() -> np.ndarray:
            session = self.session()
            binding = self.bound(session, indices)
            session.run_with_iobinding(binding, options)
            if self.random.random() < 0.5:
                binding.synchronize_outputs()
            return onnxruntime_npu.ortvalue_to_numpy(binding.get_outputs()[0])

        with torch.npu.stream(self.stream):
            self.check(indices, bad, act)

    def replay_session(self) -> None:
        session = make_session(self.device, enable_npu_graph="1")
        y = onnxruntime_npu.ortvalue_from_numpy(np.zeros((4, COLUMNS), np.float32), self.device)
        table = onnxruntime_npu.ortvalue_from_numpy(self.table, self.device)
        for _ in range(self.random.randrange(1, 4)):
            indices, bad = self.indices()
            i = onnxruntime_npu.ortvalue_from_numpy(indices, self.device)
            binding = session.io_binding()
            binding.bind_ortvalue_input("table", table)
            binding.bind_ortvalue_input("i", i)
            binding.bind_ortvalue_output("y", y)
            options = ort.RunOptions()
            options.add_run_config_entry("gpu_graph_id", str(next(_NUMBERS)))

            def act(binding: Any = binding, options: Any = options) -> np.ndarray:
                session.run_with_iobinding(binding, options)
                return onnxruntime_npu.ortvalue_to_numpy(y)

            self.check(indices, bad, act)

    def tensors(self) -> None:
        indices, bad = self.indices()
        side = self.side

        def act() -> np.ndarray:
            with torch.npu.stream(self.stream):
                table = torch.from_numpy(self.table).npu()
                rows = table.index_select(0, torch.from_numpy(indices).npu())
                event = torch.npu.Event()
                event.record()
            try:
                side.wait_event(event)
                with torch.npu.stream(side):
                    rows.record_stream(side)
                    return (torch.tanh(rows) * 2).cpu().numpy()
            finally:
                self.settle(self.stream, bad)
                self.settle(side, bad)

        with torch.npu.device(self.device):
            self.check(indices, bad, act)

    def settle(self, stream: Any, bad: str) -> None:
        """Collect a stream's pending error, which must be the known failure."""
        try:
            stream.synchronize()
        except RuntimeError as error:
            if not bad or bad not in str(error):
                raise Difference(f"a stream raised {error}, expected {bad!r}") from error

    def captured(self) -> None:
        with torch.npu.device(self.device):
            graph, pinned = torch.npu.NPUGraph(), torch.empty(COLUMNS).pin_memory()
            x, y = (torch.zeros(COLUMNS, device=f"npu:{self.device}") for _ in range(2))
            self.settle(torch.npu.current_stream(), "")
            capture = torch.npu.graph(
                graph, stream=self.capturing, capture_error_mode="thread_local"
            )
            try:
                capture.__enter__()
            except RuntimeError as error:  # it waits for the device, and reports others' failures
                if "got " not in str(error):
                    raise
                return
            with contextlib.ExitStack() as ends:
                ends.push(capture.__exit__)
                x.copy_(pinned, non_blocking=True)
                y.copy_(x * 3 + 1)
            for _ in range(3):
                pinned.copy_(torch.from_numpy(self.numpy.standard_normal(COLUMNS, np.float32)))
                graph.replay()
                got = y.cpu()
                if not torch.equal(got, pinned * 3 + 1):
                    raise Difference(f"a replay gave {got}, expected {pinned * 3 + 1}")
            if self.random.random() < 0.5:
                graph.replay()  # in flight when the graph is destroyed
            del graph
            self.settle(torch.npu.current_stream(), "")

    def new_session(self) -> None:
        if len(self.sessions) > 3:
            self.sessions.pop(self.random.randrange(len(self.sessions)))
        self.sessions.append(make_session(self.device))

    def collect(self) -> None:
        gc.collect()
        torch.npu.empty_cache()

    def step(self) -> None:
        weights: list[tuple[Callable[[], None], int]] = [
            (self.run, 8),
            (self.run_async, 3),
            (self.run_unsynchronised, 6),
            (self.replay_session, 2),
            (self.tensors, 6),
            (self.captured, 3),
            (self.new_session, 1),
            (self.collect, 1),
        ]
        act = self.random.choices([w[0] for w in weights], [w[1] for w in weights])[0]
        self.counts[act.__name__] += 1
        act()


def bystander(stop: threading.Event) -> None:
    """Wait for the devices without consuming errors of other threads."""
    while not stop.is_set():
        for device in range(2):
            try:
                torch.npu.synchronize(device)
            except RuntimeError as error:
                if "got " not in str(error):
                    raise
        time.sleep(0.001)


def stress(seconds: float, seed: int, threads: int = 8) -> Counter[str]:
    """Run the workers; return how often they took each kind of step.

    Raises:
        Difference: a value or an error was not as expected; the message has the seed.
    """
    torch_device.register()
    failures: list[str] = []
    counts: Counter[str] = Counter()
    shared = [make_session(device, parallel=True) for device in range(2)]
    stop, finished = time.monotonic() + seconds, threading.Event()

    def work(number: int) -> None:
        worker = None
        try:
            worker = Worker(number, seed, shared)
            while time.monotonic() < stop and not failures:
                worker.step()
        except BaseException:
            failures.append(f"thread {number}, seed {seed}:\n{traceback.format_exc()}")
        if worker is not None:
            counts.update(worker.counts)

    workers = [threading.Thread(target=work, args=(n,), daemon=True) for n in range(threads)]
    watcher = threading.Thread(target=bystander, args=(finished,), daemon=True)
    for thread in (*workers, watcher):
        thread.start()
    for thread in workers:
        thread.join(seconds + 120)
    hung = [thread.name for thread in workers if thread.is_alive()]
    finished.set()
    if hung:
        raise Difference(f"{', '.join(hung)} did not end; seed {seed}")
    watcher.join(60)
    if failures:
        raise Difference(failures[0])
    return counts


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 30))
    parser.add_argument("--threads", type=int, default=8)
    arguments = parser.parse_args()
    try:
        counts = stress(arguments.seconds, arguments.seed, arguments.threads)
    except Difference as difference:
        print(difference, file=sys.stderr)
        return 1
    steps = ", ".join(f"{name} {count}" for name, count in sorted(counts.items()))
    print(f"no difference in {sum(counts.values())} steps; seed {arguments.seed}: {steps}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
