#!/usr/bin/env python3
"""Host overhead of a fused operator's call on npu tensors, compared with torch's own operators.

Tensors are tiny, and no thread waits for the device during the measurement: it covers the path from
Python to the device's queue. Both sides are called through ``torch.ops`` and take turns.
"""

from __future__ import annotations

import functools
import time
from typing import Any

import harness

CALLS = 2000  # per sample
BATCH = 50  # calls between two waits for the device, so that its queue stays short
PEER = "add"
# Shapes of the tensors, and the arguments of each operator.
SHAPES = {
    "x": (2, 8),
    "gamma": (8,),
    "halves": (2, 16),
    "heads": (1, 2, 2, 8),
    "angles": (1, 2, 1, 8),
    "table": (4, 8),
}
OPERATORS = {
    "npu_rms_norm": ("x", "gamma"),
    "npu_add_rms_norm": ("x", "x", "gamma"),
    "npu_swiglu": ("halves",),
    "npu_silu": ("x",),
    "npu_rotary_mul": ("heads", "angles", "angles"),
    "npu_scatter_nd_update_": ("table", "rows", "x"),
}


class Calls:
    """Calls of an operator on npu tensors; the peer's are torch's `add` in every case."""

    def __init__(self, is_peer: bool) -> None:
        import onnxruntime_npu  # noqa: F401  # makes npu a device of torch
        import torch

        generator = torch.Generator().manual_seed(0)
        tensors = {n: torch.randn(s, generator=generator).npu() for n, s in SHAPES.items()}
        tensors["rows"] = torch.tensor([[0], [2]]).npu()

        def call(operator: Any, names: tuple[str, ...]) -> Any:
            return functools.partial(operator, *(tensors[name] for name in names))

        add = call(torch.ops.aten.add, ("x", "x"))
        self.calls = {
            name: add if is_peer else call(getattr(torch.ops.npu, name), names)
            for name, names in OPERATORS.items()
        }
        self.synchronize = torch.npu.synchronize

    def time(self, name: str, calls: int) -> float:
        """CPU seconds of this thread for `calls` calls, unaffected by other processes."""
        call = self.calls[name]
        seconds = 0.0
        for _ in range(calls // BATCH):
            begin = time.thread_time()
            for _ in range(BATCH):
                call()
            seconds += time.thread_time() - begin
            self.synchronize()
        return seconds


def main() -> None:
    parser = harness.arguments_parser(__doc__ or "", ["float32"], rounds=15)
    arguments = harness.parse_arguments(parser)
    specs = {
        "npu": harness.Spec(functools.partial(Calls, False), ours=True),
        PEER: harness.Spec(functools.partial(Calls, True)),
    }
    for dtype in arguments.dtypes:
        cases = [
            harness.Case(f"{dtype} {name}", CALLS, "calls", "time", (name, CALLS))
            for name in OPERATORS
        ]
        harness.measure(arguments, f"calls-{dtype}", specs, cases)


if __name__ == "__main__":
    main()
