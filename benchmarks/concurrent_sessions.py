#!/usr/bin/env python3
"""Concurrent sessions, one thread each, against onnxruntime's CPU provider, interleaved in one run.

Every session is a chain of matmuls with its own weights, short enough that kernels of several
sessions run at any time. Our sessions share one thread pool; each of the peer's has its own.
Results are compared before anything is timed.
"""

from __future__ import annotations

import functools
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import harness
import numpy as np

SESSIONS = [1, 2, 4, 8]
# Rows of the activation: kernels of about ten and about a hundred microseconds.
ROWS = {"short kernels": 4, "long kernels": 128}
RUNS = {"short kernels": 50, "long kernels": 4}  # of all sessions together, times 8
WIDTH, LAYERS = 768, 4
SEED = 0
TOLERANCE = 2e-6  # a different order of summation changes a few float32 roundings


class Sessions:
    """The sessions of a case on one provider, created on first use."""

    def __init__(self, provider: str, threads: int) -> None:
        import onnxruntime

        self.provider, self.threads = provider, threads
        self.sessions: list[onnxruntime.InferenceSession] = []
        self.callers = ThreadPoolExecutor(max(SESSIONS))

    def _make(self, seed: int) -> None:
        import onnx
        from onnx import helper
        from sessions import session_of

        generator = np.random.default_rng(SEED + seed)
        shape = (LAYERS, WIDTH, WIDTH)
        weights = generator.standard_normal(shape, np.float32) / np.sqrt(np.float32(WIDTH / 2))
        nodes, last = [], "x"
        for i in range(LAYERS):
            nodes.append(helper.make_node("MatMul", [last, f"w{i}"], [f"p{i}"]))
            nodes.append(helper.make_node("Relu", [f"p{i}"], [f"r{i}"]))
            last = f"r{i}"
        graph = helper.make_graph(
            nodes,
            "chain",
            [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["m", WIDTH])],
            [helper.make_tensor_value_info(last, onnx.TensorProto.FLOAT, ["m", WIDTH])],
            [onnx.numpy_helper.from_array(w, f"w{i}") for i, w in enumerate(weights)],
        )
        self.sessions.append(session_of(graph, self.provider, self.threads))

    def _run_all(self, rows: int, count: int, runs: int) -> tuple[list[np.ndarray], float]:
        """Run `count` sessions concurrently, `runs` times each; return last outputs and seconds."""
        while len(self.sessions) < count:
            self._make(len(self.sessions))
        x = np.random.default_rng(SEED).standard_normal((rows, WIDTH), np.float32)
        start = threading.Barrier(count + 1)

        def caller(number: int) -> np.ndarray:
            session = self.sessions[number]
            (y,) = session.run(None, {"x": x})
            start.wait()
            for _ in range(runs):
                (y,) = session.run(None, {"x": x})
            return y

        callers = [self.callers.submit(caller, number) for number in range(count)]
        start.wait()
        begin = time.perf_counter()
        outputs = [c.result() for c in callers]
        return outputs, time.perf_counter() - begin

    def result(self, rows: int, count: int) -> np.ndarray:
        """The results of all sessions run concurrently."""
        return np.stack(self._run_all(rows, count, 1)[0])

    def time(self, rows: int, count: int, runs: int) -> float:
        """Seconds for `count` concurrent sessions to run `runs` times each."""
        return self._run_all(rows, count, runs)[1]


def main() -> None:
    parser = harness.arguments_parser(__doc__ or "", ["float32"], rounds=7)
    arguments = harness.parse_arguments(parser)
    ours = functools.partial(Sessions, "NPUExecutionProvider", arguments.threads)
    peer = functools.partial(Sessions, "CPUExecutionProvider", arguments.threads)
    cases = [
        harness.Case(
            f"{kind}, {count} sessions",
            8 * RUNS[kind],
            "runs",
            "time",
            (rows, count, 8 * RUNS[kind] // count),
        )
        for kind, rows in ROWS.items()
        for count in SESSIONS
    ]
    compared = [(rows, max(SESSIONS)) for rows in ROWS.values()]
    harness.measure(
        arguments,
        "concurrent_sessions",
        {"npu": harness.Spec(ours, ours=True), "ort-cpu": harness.Spec(peer)},
        cases,
        lambda engines: harness.compare(engines, "result", compared, TOLERANCE),
    )


if __name__ == "__main__":
    main()
