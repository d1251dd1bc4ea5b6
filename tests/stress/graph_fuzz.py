"""Random models on the NPU alone against onnxruntime's CPU provider: ``make fuzz``.

A seed makes one model (random_graph.py); a failure prints its seed, and `--seed N --count 1` runs
it again. A short form runs with the tests.
"""

from __future__ import annotations

import argparse
import sys
import time

import numpy as np
import onnxruntime as ort
import onnxruntime_npu
from random_graph import random_graph

NPU, CPU = "NPUExecutionProvider", "CPUExecutionProvider"


class Difference(AssertionError):
    """What a model gives on the NPU is not what it gives on the CPU."""


def check(seed: int) -> int:
    """Runs the model of a seed on both providers; returns its number of nodes."""
    model, inputs, outputs = random_graph(seed)
    serialized = model.SerializeToString()
    results = []
    for provider in (CPU, NPU):
        options = ort.SessionOptions()
        options.log_severity_level = 4
        if provider == NPU:
            options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
        try:
            session = ort.InferenceSession(serialized, options, providers=[provider])
            results.append(session.run(None, inputs))
        except Exception as error:
            raise Difference(f"seed {seed} on {provider}: {error}") from error
    onnxruntime_npu.assignment(session)  # a record of every session, whatever its nodes
    for value, expected, got in zip(outputs, *results, strict=True):
        where = f"seed {seed}, {value.name}"
        if got.dtype != expected.dtype or got.shape != expected.shape:
            raise Difference(
                f"{where}: {got.dtype} {got.shape}, not {expected.dtype} {expected.shape}"
            )
        if value.error == 0:
            if not np.array_equal(got, expected):
                raise Difference(f"{where}: expected the same values, got\n{got}\n{expected}")
            continue
        apart = np.abs(got.astype(np.float64) - expected).max(initial=0)
        if not apart <= 2 * value.error:  # each may be off by the error
            raise Difference(f"{where}: {apart} apart, expected at most {2 * value.error}")
    return len(model.graph.node)


def main(arguments: list[str] | None = None) -> int:
    """Checks models until the time is over; returns the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seed", type=int, default=0, help="of the first model")
    parser.add_argument("--count", type=int, help="how many models; else --seconds decides")
    parser.add_argument("--seconds", type=float, default=60)
    options = parser.parse_args(arguments)
    start, failures, nodes, models = time.monotonic(), 0, 0, 0
    while models != options.count and (
        options.count is not None or time.monotonic() - start < options.seconds
    ):
        try:
            nodes += check(options.seed + models)
        except Difference as error:
            failures += 1
            print(error, flush=True)
        models += 1
    print(f"{models} models of {nodes} nodes from seed {options.seed} on, {failures} failures")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
