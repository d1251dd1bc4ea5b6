"""Edge cases derived from the samples: strides, NaN and infinities, and magnitudes.

Edge shapes (no elements, one token, odd lengths) are samples of their operators.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from onnxruntime_npu.opdef import Op, Sample, all_ops
from op_paths import _map, _tensors, bind, eager, reference, samples

pytestmark = pytest.mark.slow  # a sweep over all operators beside those of test_ops.py

OPS = list(all_ops().values())
# Their softmax is online: a sum that has seen two infinities is NaN, and so is its row.
ONLINE_SOFTMAX = {"npu_fused_infer_attention_score", "npu_fusion_attention"}
# Takes the statistics of a forward pass over the queries, which change here: huge ones then give
# weights beyond 1.
ATTENTION_BACKWARD = {"npu_fusion_attention_grad"}
MAGNITUDES = {"float32": (1e12, 1e-12), "bfloat16": (1e12, 1e-12), "float16": (3e3, 1e-3)}


def _calls(dtypes: int) -> list[object]:
    """One parameter per operator, dtype and sample, of the first few dtypes."""
    return [
        pytest.param(op, dtype, i, id=f"{op.name}-{dtype}-{sample.id or i}")
        for op in OPS
        if op.outputs
        for dtype in op.sample_dtypes[:dtypes]
        for i, sample in enumerate(samples(op, dtype))
    ]


def _changed(op: Op, sample: Sample, change: Callable[[torch.Tensor], torch.Tensor]) -> Sample:
    """Return the call with its first tensor of floats changed."""
    bound = bind(op, sample)
    for name, value in bound.items():
        if isinstance(value, torch.Tensor) and value.is_floating_point():
            bound[name] = change(value.clone())
            break
    positional = [a.name for a in op.schema.arguments if not a.keyword_only]
    args = [bound.pop(name) for name in positional]
    return Sample(*args, **bound)


@pytest.mark.parametrize("op", [op for op in OPS if op.outputs], ids=lambda op: op.name)
def test_samples_cover_edge_shapes(op: Op) -> None:
    made = samples(op, op.sample_dtypes[0])
    sizes = [t.numel() for s in made for v in bind(op, s).values() for t in _tensors(v)]
    assert 0 in sizes, "no sample has a tensor without elements"


@pytest.mark.parametrize(("op", "dtype", "i"), _calls(1))
def test_strides_do_not_change_results(op: Op, dtype: str, i: int) -> None:
    sample = samples(op, dtype)[i]

    def spread(tensor: torch.Tensor) -> torch.Tensor:
        """Return the same values, every second element of a larger tensor, axes reversed."""
        axes = list(reversed(range(tensor.dim())))
        room = torch.zeros([2 * n for n in reversed(tensor.shape)], dtype=tensor.dtype)
        view = room[tuple(slice(1, None, 2) for _ in axes)].permute(axes)
        return view.copy_(tensor)

    bound = {name: _map(spread, value) for name, value in bind(op, sample).items()}
    positional = [bound[a.name] for a in op.schema.arguments if not a.keyword_only]
    keywords = {a.name: bound[a.name] for a in op.schema.arguments if a.keyword_only}
    for got, want in zip(
        eager(op, Sample(*positional, **keywords)), eager(op, sample), strict=True
    ):
        torch.testing.assert_close(got, want, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize(("op", "dtype", "i"), _calls(2))
def test_nan_and_infinities_propagate_like_the_reference(op: Op, dtype: str, i: int) -> None:
    struck = [(0.0, math.nan), (0.4, math.inf), (0.8, -math.inf)]
    struck = struck[: 1 if op.name in ONLINE_SOFTMAX | ATTENTION_BACKWARD else None]

    def strike(tensor: torch.Tensor) -> torch.Tensor:
        flat = tensor.reshape(-1)
        for place, value in struck:
            if flat.numel():
                flat[int(place * flat.numel())] = value
        return flat.reshape(tensor.shape)

    sample = _changed(op, samples(op, dtype)[i], strike)
    tolerance = op.tolerance_for(dtype)
    for got, want in zip(eager(op, sample), reference(op, sample), strict=True):
        if not got.is_floating_point():
            continue
        want = want.to(got.dtype)
        torch.testing.assert_close(
            got, want, rtol=2 * tolerance.rtol, atol=2 * tolerance.atol, equal_nan=True
        )


@pytest.mark.parametrize("large", [True, False], ids=["huge", "tiny"])
@pytest.mark.parametrize(("op", "dtype", "i"), _calls(2))
def test_magnitudes(op: Op, dtype: str, i: int, large: bool) -> None:
    """Sums of squares overflow float16, not float32, which exposes accumulation in float16."""
    if large and op.name in ATTENTION_BACKWARD:
        pytest.skip("the statistics belong to other queries")
    if large and op.name in ONLINE_SOFTMAX:
        return  # the order of two scores of 1e12 depends on their last bits
    factor = MAGNITUDES.get(dtype, (1, 1))[0 if large else 1]
    sample = _changed(op, samples(op, dtype)[i], lambda t: t * factor)
    tolerance = op.tolerance_for(dtype)
    for got, want in zip(eager(op, sample), reference(op, sample), strict=True):
        if not got.is_floating_point() or not got.numel():
            continue
        want = want.to(got.dtype).double()
        scale = max([1.0, *want[want.isfinite()].abs().tolist()])
        torch.testing.assert_close(
            got.double(), want, rtol=2 * tolerance.rtol, atol=tolerance.atol * scale, equal_nan=True
        )
