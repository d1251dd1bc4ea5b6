#!/usr/bin/env python3
"""torch's own operators and their gradients on npu beside torch's CPU device, in one run.

Both sides call the same functions on the same tensors, which stay on their device; npu waits for
its queue at the end of a sample. Results are compared before anything is timed, except those that
draw random numbers.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import Any

import harness
import numpy as np

SEED = 0
SECONDS = 0.02  # of calls in a sample
# Relative norm: of sums in another order, and of one rounding where the CPU rounds several times.
TOLERANCES = {"float32": 1e-4, "bfloat16": 2e-2}
RANDOM = {"randn", "dropout", "randperm", "multinomial"}
SHAPES = {
    "a": (512, 1024),
    "other": (512, 1024),
    "square": (1024, 1024),
    "vector": (1 << 20,),
    "table": (1000, 256),
    "image": (8, 32, 56, 56),
    "other_image": (8, 32, 56, 56),
    "filters": (64, 32, 3, 3),
    "batches": (16, 128, 128),
    "heads": (2, 8, 256, 64),
}
GRADED = ("a", "table", "image", "filters", "heads")


def _tensors(dtype: str, device: str) -> dict[str, Any]:
    """Tensors of `SHAPES`, those of `GRADED` again with a gradient, indices and a mask."""
    import torch

    generator = torch.Generator().manual_seed(SEED)

    def below(bound: int, count: int) -> Any:
        return torch.randint(0, bound, (count,), generator=generator).to(device)

    made = {
        name: torch.randn(shape, generator=generator).to(device, getattr(torch, dtype))
        for name, shape in SHAPES.items()
    }
    made |= {f"{name}_graded": made[name].clone().requires_grad_() for name in GRADED}
    made["rows"] = below(SHAPES["table"][0], 8192)
    made["labels"] = below(SHAPES["a"][1], SHAPES["a"][0])
    made["numbers"] = below(100, 1 << 20)
    made["mask"] = made["a"] > 0
    return made


def _elementwise() -> dict[str, Callable[[dict[str, Any]], Any]]:
    import torch
    from torch.nn import functional

    return {
        "add": lambda t: t["a"] + t["a"],
        "clamp": lambda t: t["a"].clamp(-1, 1),
        "exp": lambda t: t["a"].exp(),
        "sin": lambda t: t["a"].sin(),
        "tanh": lambda t: t["a"].tanh(),
        "gelu": lambda t: functional.gelu(t["a"]),
        "silu": lambda t: functional.silu(t["a"]),
        "where": lambda t: torch.where(t["mask"], t["a"], -t["a"]),
        "binary_cross_entropy_with_logits": lambda t: functional.binary_cross_entropy_with_logits(
            t["a"], t["mask"].to(t["a"].dtype)
        ),
        "randn": lambda t: torch.randn_like(t["vector"]),
        "dropout": lambda t: functional.dropout(t["a"], 0.5),
    }


def _reductions() -> dict[str, Callable[[dict[str, Any]], Any]]:
    from torch.nn import functional

    return {
        "sum of all": lambda t: t["vector"].sum(),
        "sum of rows": lambda t: t["a"].sum(1),
        "max of rows": lambda t: t["a"].amax(1),
        "max of fours": lambda t: t["a"].view(-1, 4).amax(1),
        "cumsum": lambda t: t["a"].cumsum(1),
        "softmax": lambda t: t["a"].softmax(1),
        "log_softmax": lambda t: t["a"].log_softmax(1),
        "cross_entropy": lambda t: functional.cross_entropy(t["a"], t["labels"]),
        "layer_norm": lambda t: functional.layer_norm(t["a"], t["a"].shape[1:]),
        "rms_norm": lambda t: functional.rms_norm(t["a"], t["a"].shape[1:]),
        "group_norm": lambda t: functional.group_norm(t["image"], 8),
        "batch_norm": lambda t: functional.batch_norm(t["image"], None, None, training=True),
    }


def _selections() -> dict[str, Callable[[dict[str, Any]], Any]]:
    import torch
    from torch.nn import functional

    return {
        "sort": lambda t: t["a"].sort(1).values,
        "sort of all": lambda t: t["vector"].sort().values,
        "topk": lambda t: t["a"].topk(10, 1).values,
        "median": lambda t: t["a"].median(1).values,
        "unique": lambda t: t["numbers"].unique(),
        "nonzero": lambda t: t["mask"].nonzero(),
        "masked_select": lambda t: t["a"][t["mask"]],
        "isin": lambda t: torch.isin(t["numbers"], t["numbers"][:10]),
        "embedding": lambda t: functional.embedding(t["rows"], t["table"]),
        "randperm": lambda t: torch.randperm(1 << 16, device=t["a"].device),
        "multinomial": lambda t: torch.multinomial(t["a"].float().softmax(1), 1),
    }


def _products() -> dict[str, Callable[[dict[str, Any]], Any]]:
    from torch.nn import functional

    return {
        "mm": lambda t: t["a"] @ t["square"],
        "mv": lambda t: t["square"] @ t["square"][0],
        "mv, transposed": lambda t: t["square"].T @ t["square"][0],
        "bmm": lambda t: t["batches"] @ t["batches"],
        "conv2d": lambda t: functional.conv2d(t["image"], t["filters"], padding=1),
        "scaled_dot_product_attention": lambda t: functional.scaled_dot_product_attention(
            t["heads"], t["heads"], t["heads"], is_causal=True
        ),
        "interpolate": lambda t: functional.interpolate(t["image"], scale_factor=2),
        "transpose": lambda t: t["square"].T.contiguous(),
    }


def _gradients() -> dict[str, Callable[[dict[str, Any]], Any]]:
    """Forward and backward; the result is the first gradient."""
    import torch
    from torch.nn import functional

    def gradient(
        function: Callable[[dict[str, Any]], Any], *names: str
    ) -> Callable[[dict[str, Any]], Any]:
        def call(t: dict[str, Any]) -> Any:
            result = function(t)
            graded = [t[f"{name}_graded"] for name in names]
            return torch.autograd.grad(result, graded, torch.ones_like(result))[0]

        return call

    return {
        "softmax, gradient": gradient(lambda t: t["a_graded"].softmax(1) * t["other"], "a"),
        "cross_entropy, gradient": gradient(
            lambda t: functional.cross_entropy(t["a_graded"], t["labels"]), "a"
        ),
        "layer_norm, gradient": gradient(
            lambda t: functional.layer_norm(t["a_graded"], t["a"].shape[1:]) * t["other"], "a"
        ),
        "batch_norm, gradient": gradient(
            lambda t: (
                functional.batch_norm(t["image_graded"], None, None, training=True)
                * t["other_image"]
            ),
            "image",
        ),
        "embedding, gradient": gradient(
            lambda t: functional.embedding(t["rows"], t["table_graded"]), "table"
        ),
        "gelu, gradient": gradient(lambda t: functional.gelu(t["a_graded"]), "a"),
        "conv2d, gradient": gradient(
            lambda t: functional.conv2d(t["image_graded"], t["filters_graded"], padding=1),
            "filters", "image",
        ),
        "scaled_dot_product_attention, gradient": gradient(
            lambda t: functional.scaled_dot_product_attention(
                t["heads_graded"], t["heads"], t["heads"]
            ),
            "heads",
        ),
    }  # fmt: skip


def operators() -> dict[str, Callable[[dict[str, Any]], Any]]:
    """Every case: a function of the tensors."""
    return _elementwise() | _reductions() | _selections() | _products() | _gradients()


class Operators:
    """The operators on one device."""

    def __init__(self, device: str, dtype: str, threads: int) -> None:
        import onnxruntime_npu  # noqa: F401  # makes npu a device of torch
        import torch

        torch.set_num_threads(threads)
        self.wait = torch.npu.synchronize if device == "npu" else lambda: None
        self.tensors = _tensors(dtype, device)
        self.operators = operators()

    def result(self, name: str) -> np.ndarray:
        """Return an operator's result in float32."""
        result: np.ndarray = self.operators[name](self.tensors).detach().cpu().float().numpy()
        return result

    def time(self, name: str) -> float:
        """Seconds of a call, on average over as many as `SECONDS` have room for."""
        function, calls = self.operators[name], 0
        function(self.tensors)
        self.wait()
        begin = time.perf_counter()
        while (passed := time.perf_counter() - begin) < SECONDS or calls == 0:
            for _ in range(4):  # so many may wait in the queue
                function(self.tensors)
            self.wait()
            calls += 4
        return passed / calls


def main() -> None:
    parser = harness.arguments_parser(__doc__, list(TOLERANCES), rounds=5)
    arguments = harness.parse_arguments(parser)
    for dtype in arguments.dtypes:
        specs = {
            "npu": harness.Spec(
                functools.partial(Operators, "npu", dtype, arguments.threads), ours=True
            ),
            "torch": harness.Spec(functools.partial(Operators, "cpu", dtype, arguments.threads)),
        }
        names = list(operators())
        cases = [harness.Case(f"{name} {dtype}", 1, "calls", "time", (name,)) for name in names]
        compare = functools.partial(
            harness.compare,
            method="result",
            calls=[(name,) for name in names if name not in RANDOM],
            tolerance=TOLERANCES[dtype],
        )
        harness.measure(arguments, f"aten-{dtype}", specs, cases, compare)


if __name__ == "__main__":
    main()
