"""Properties of every call of an operator, against straightforward NumPy."""

from __future__ import annotations

import itertools
import math

import hypothesis.extra.numpy as hnp
import numpy as np
import onnxruntime_npu
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

_DTYPES = {"float32": 1e-6, "float16": 2e-3, "bfloat16": 1.6e-2}
dtypes = st.sampled_from(sorted(_DTYPES))


def _random(seed: int, *shape: int, dtype: str = "float32") -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator).clamp(-4, 4).to(getattr(torch, dtype))


def _wide(tensor: torch.Tensor) -> np.ndarray:
    return tensor.double().numpy()


@st.composite
def _table_shapes(draw, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Draw a shape that NumPy broadcasts to ``shape``."""
    kept = draw(st.integers(0, len(shape)))
    return tuple(draw(st.sampled_from([1, n])) for n in shape[len(shape) - kept :])


@given(
    data=st.data(),
    lead=st.lists(st.integers(0, 5), max_size=4),
    half=st.integers(1, 70),
    mode=st.sampled_from(["half", "interleave"]),
    dtype=dtypes,
)
def test_rotary_tables_broadcast_as_in_numpy(data, lead, half, mode, dtype) -> None:
    shape = (*lead, 2 * half)
    x = _random(1, *shape, dtype=dtype)
    cos = _random(2, *data.draw(_table_shapes(shape)), dtype=dtype)
    sin = _random(3, *data.draw(_table_shapes(shape)), dtype=dtype)
    wide = _wide(x)
    turned = np.empty_like(wide)
    if mode == "half":
        turned[..., :half], turned[..., half:] = -wide[..., half:], wide[..., :half]
    else:
        turned[..., ::2], turned[..., 1::2] = -wide[..., 1::2], wide[..., ::2]
    want = wide * _wide(cos) + turned * _wide(sin)
    got = onnxruntime_npu.npu_rotary_mul(x, cos, sin, mode)
    assert got.dtype == x.dtype and got.shape == x.shape
    # Two products of up to 16 each, rounded to the dtype.
    np.testing.assert_allclose(_wide(got), want, rtol=_DTYPES[dtype], atol=32 * _DTYPES[dtype])


@given(half=st.integers(1, 40), rows=st.integers(1, 9), angle=st.floats(-100, 100))
def test_rotary_keeps_the_length_of_every_pair(half, rows, angle) -> None:
    x = _random(1, rows, 2 * half)
    cos, sin = torch.full((2 * half,), math.cos(angle)), torch.full((2 * half,), math.sin(angle))
    for mode, pairs in (
        ("half", lambda t: t.reshape(rows, 2, half).norm(dim=1)),
        ("interleave", lambda t: t.reshape(rows, half, 2).norm(dim=2)),
    ):
        y = onnxruntime_npu.npu_rotary_mul(x, cos, sin, mode)
        torch.testing.assert_close(pairs(y), pairs(x), rtol=1e-5, atol=1e-5)


@given(
    data=st.data(),
    shape=st.lists(st.integers(0, 6), min_size=1, max_size=4),
    lead=st.lists(st.integers(0, 4), max_size=2),
    dtype=st.sampled_from([torch.float32, torch.bfloat16, torch.int64, torch.int8, torch.bool]),
    index_dtype=st.sampled_from([torch.int32, torch.int64]),
)
def test_scatter_nd_update_equals_a_loop(data, shape, lead, dtype, index_dtype) -> None:
    depth = data.draw(st.integers(1, len(shape)))
    assume(all(shape[:depth]) or 0 in lead)
    indices = np.zeros((*lead, depth), dtype=np.int64)
    for place in np.ndindex(*lead):
        for axis in range(depth):
            indices[(*place, axis)] = data.draw(st.integers(0, max(shape[axis] - 1, 0)))
    self = _random(1, *shape).mul(10).to(dtype)
    updates = _random(2, *lead, *shape[depth:]).mul(10).to(dtype)
    want = self.clone()
    for place in np.ndindex(*lead):
        want[tuple(indices[place])] = updates[place]
    given_indices = torch.from_numpy(indices).to(index_dtype)
    before = self.clone()
    assert torch.equal(onnxruntime_npu.npu_scatter_nd_update(self, given_indices, updates), want)
    assert torch.equal(self, before)
    assert onnxruntime_npu.npu_scatter_nd_update_(self, given_indices, updates) is self
    assert torch.equal(self, want)


@given(
    shape=hnp.array_shapes(min_dims=1, max_dims=3, max_side=5),
    tuples=st.integers(1, 4),
    bad=st.one_of(st.integers(-(2**63), -1), st.integers(5, 2**63 - 1)),
    data=st.data(),
)
def test_scatter_nd_update_refuses_out_of_range_index_without_writing(
    shape, tuples, bad, data
) -> None:
    depth = data.draw(st.integers(1, len(shape)))
    indices = torch.zeros(tuples, depth, dtype=torch.int64)
    indices[data.draw(st.integers(0, tuples - 1)), data.draw(st.integers(0, depth - 1))] = bad
    self = _random(1, *shape)
    before = self.clone()
    with pytest.raises(RuntimeError, match=r"\[npu_scatter_nd_update\] expected indices in \[0, "):
        onnxruntime_npu.npu_scatter_nd_update_(self, indices, _random(2, tuples, *shape[depth:]))
    assert torch.equal(self, before)


def _survivors(logits: list[float], p: float | None, k: int | None) -> set[int]:
    """Return the indices that top-k, then top-p keep; exact for logits whose exps are exact."""
    order = sorted(range(len(logits)), key=lambda i: logits[i])
    if k is not None:
        smallest = logits[order[len(order) - k]]
        order = [i for i in order if logits[i] >= smallest]
    if p is not None:
        weights = [math.exp(logits[i] - logits[order[-1]]) for i in order]
        total = math.fsum(weights)
        mass = list(itertools.accumulate(weights))
        # The sum at the cut must be clear of rounding for the answer to be unique.
        assume(all(abs(m / total - (1 - p)) > 1e-4 for m in mass))
        order = [
            i for i, m in zip(order, mass, strict=True) if m > (1 - p) * total or i == order[-1]
        ]
    return set(order)


@given(
    logits=st.lists(st.integers(-24, 24), min_size=1, max_size=60),
    p=st.one_of(st.none(), st.integers(1, 64)),
    data=st.data(),
    dtype=dtypes,
)
def test_top_k_top_p_equals_a_sort(logits, p, data, dtype) -> None:
    values = [v / 8 for v in logits]  # exact in every dtype, with many ties
    k = data.draw(st.one_of(st.none(), st.integers(1, len(values))))
    assume(p is not None or k is not None)
    p = None if p is None else p / 64  # 1 - p is exact in every dtype
    keep = _survivors(values, p, k)
    row = torch.tensor([values], dtype=getattr(torch, dtype))
    got = onnxruntime_npu.npu_top_k_top_p(
        row,
        None if p is None else torch.tensor([p], dtype=row.dtype),
        None if k is None else torch.tensor([k], dtype=torch.int32),
    )
    want = [v if i in keep else -math.inf for i, v in enumerate(values)]
    assert got[0].tolist() == want


@given(
    logits=hnp.arrays(np.float32, hnp.array_shapes(min_dims=2, max_dims=2, max_side=12)),
    p=st.one_of(st.none(), st.floats(0, 1, width=32)),
    with_k=st.booleans(),
)
def test_top_k_top_p_keeps_or_masks_every_logit(logits, p, with_k) -> None:
    # Includes NaN, infinities and denormals: a kept logit is unchanged.
    assume(p is not None or with_k)
    rows = torch.from_numpy(logits)
    n, count = rows.shape
    k = torch.arange(n, dtype=torch.int32) % count + 1 if with_k else None
    got = onnxruntime_npu.npu_top_k_top_p(rows, None if p is None else torch.full((n,), p), k)
    kept = got.isnan() & rows.isnan() | (got == rows)
    assert bool((kept | (got == -math.inf)).all())
    # At least one logit of every row is kept.
    assert bool(kept.any(dim=1).all())


@given(
    rows=st.integers(0, 5),
    width=st.integers(1, 700),
    scale=st.floats(1e-3, 1e3),
    dtype=dtypes,
)
def test_add_rms_norm_equals_rms_norm_of_the_sum(rows, width, scale, dtype) -> None:
    x1, x2 = _random(1, rows, width, dtype=dtype), _random(2, rows, width, dtype=dtype)
    x1, gamma = x1 * scale, _random(3, width, dtype=dtype)
    y, rstd, x = onnxruntime_npu.npu_add_rms_norm(x1, x2, gamma)
    assert torch.equal(x, x1 + x2)
    norm = onnxruntime_npu.npu_rms_norm(x, gamma)
    assert torch.equal(y, norm[0]) and torch.equal(rstd, norm[1])
