"""Boxes, scores and regions that no detector means: NaN, infinite, huge, tiny, equal, without area.

Derived from the samples of the operators of detection: each tensor of floats is replaced in turn,
whole or in parts. The kernel gives what the reference gives, or both refuse; what indexes boxes
stays within them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
from onnxruntime_npu.opdef import Op, Sample, all_ops
from op_paths import _clone, bind, check_close, eager, reference, samples
from test_refusals import _outcome

SUMS = "npu_deformable_conv2d"  # its offsets are places
OPS = [op for op in all_ops().values() if "/detection/" in str(op.source) or op.name == SUMS]


def _filled(*values: float) -> Callable[[torch.Tensor], torch.Tensor]:
    """Return a change that repeats the values over the whole tensor."""

    def change(tensor: torch.Tensor) -> torch.Tensor:
        count = tensor.numel() // len(values) + 1
        return torch.tensor(values * count)[: tensor.numel()].reshape(tensor.shape)

    return change


def _struck(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor with a hostile value at every third place."""
    flat = tensor.clone().flatten()
    places = flat[::3]
    places.copy_(_filled(math.nan, 1e30, -math.inf, -3e38, math.inf, 1e-45, 0.0)(places))
    return flat.reshape(tensor.shape)


CHANGES = {
    "nan": _filled(math.nan),
    "equal": _filled(1.0),  # boxes without area, equal scores
    "zero": _filled(0.0),
    "tiny": _filled(0.0, 0.0, 1e-45, 1e-45, 1e-38),
    "huge": _filled(-3e38, -3e38, 3e38, 3e38),
    "far": _filled(1e18, 1e18, 1.1e18, 1.2e18),
    "infinite": _filled(-math.inf, -math.inf, math.inf, math.inf, 0.5),
    "turned": lambda tensor: -tensor,
    "struck": _struck,
}


def _calls(op: Op, change: Callable[[torch.Tensor], torch.Tensor]) -> list[tuple[str, Sample]]:
    """Return calls with one changed tensor of floats each."""
    found = []
    for i, sample in enumerate(samples(op, "float32")):
        bound = bind(op, sample)
        for name, value in bound.items():
            if isinstance(value, torch.Tensor) and value.dtype == torch.float32:
                found.append(
                    (f"{sample.id or i}: {name}", Sample.of({**bound, name: change(value)}))
                )
    return found


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("op", OPS, ids=lambda op: op.name)
def test_kernel_gives_what_the_reference_gives(op: Op, change: str) -> None:
    for what, sample in _calls(op, CHANGES[change]):
        bound = _clone(bind(op, sample))
        got, refusal = _outcome(op, lambda sample=sample: eager(op, sample))
        plain, expected = _outcome(op, lambda bound=bound: op.call_reference(**bound))
        assert refusal == expected, what
        if refusal:
            continue
        chosen = any(not p.is_floating_point() for p in plain)
        # Which boxes are chosen is decided in float32, in which sums of products overflow as well;
        # other results are as if exact.
        want = plain if chosen or op.name == SUMS else reference(op, sample)
        largest = max([1.0, *(_largest(v) for v in bound.values() if isinstance(v, torch.Tensor))])
        tolerance = op.tolerance_for("float32")
        for output, g, w in zip(op.outputs, got, want, strict=True):
            if op.name == SUMS and change == "huge":  # what overflows depends on the order of a sum
                finite = g.isfinite() & w.isfinite()
                g, w = g[finite], w[finite]
            torch.testing.assert_close(
                g,
                w.to(g.dtype),
                rtol=tolerance.rtol,
                atol=tolerance.atol * largest,  # sums of huge values may cancel
                equal_nan=True,
                msg=lambda text, output=output, what=what: f"{what}, {output.name}: {text}",
            )


def _largest(tensor: torch.Tensor) -> float:
    finite = tensor[tensor.isfinite()].double().abs()
    return float(finite.max()) if finite.numel() else 0.0


@pytest.mark.parametrize("count", [0, 1])
@pytest.mark.parametrize("op", OPS, ids=lambda op: op.name)
def test_few_boxes(op: Op, count: int) -> None:
    """The first box or none: of each axis of tensors, and of all axes of one size.

    Which axis counts boxes follows from the calls that are not refused.
    """
    tried = 0
    for sample in samples(op, "float32"):
        bound = bind(op, sample)
        for axis, size in _axes(bound.values()):
            few = {name: _first(value, axis, size, count) for name, value in bound.items()}
            got, refusal = _outcome(op, lambda few=few: eager(op, Sample.of(few)))
            want, expected = _outcome(op, lambda few=few: op.call_reference(**_clone(few)))
            assert refusal == expected, (sample.id, axis, size)
            if not refusal:
                tried += 1
                check_close(op, "float32", got, want)
    assert tried


def _axes(values: Iterable[Any]) -> set[tuple[int | None, int]]:
    """Return each axis longer than 1, from the first and as the last, with its size.

    And None with each of these sizes: any axis of that size.
    """
    shapes = [v.shape for v in values if isinstance(v, torch.Tensor)]
    found = {
        (axis, shape[axis])
        for shape in shapes
        for axis in (*range(len(shape)), *([-1] if shape else []))
        if shape[axis] > 1
    }
    return found | {(None, size) for _, size in found}


def _first(value: Any, axis: int | None, size: int, count: int) -> Any:
    """Return the first ``count`` along the axis if it has that size, along all of it for None."""
    if not isinstance(value, torch.Tensor):
        return value
    for i, have in enumerate(value.shape):
        if have == size and axis in (None, i, i - value.dim()):
            value = value.narrow(i, 0, count)
    return value
