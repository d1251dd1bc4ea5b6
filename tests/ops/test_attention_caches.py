"""Caches of inference attention in blocks, quantised or with a shared prefix equal plain ones."""

from __future__ import annotations

import onnxruntime_npu
import pytest
import torch
from attention_calls import (
    COMPRESSED,
    TOLERANCES,
    check_near,
    dtypes,
    head_counts,
    operands,
    paged,
    random_floats,
)
from hypothesis import given
from hypothesis import strategies as st

attention = onnxruntime_npu.npu_fused_infer_attention_score


@given(
    data=st.data(),
    heads=head_counts(),
    batch=st.integers(1, 3),
    rows=st.sampled_from([1, 1, 3, 9, 20]),
    blocks=st.integers(1, 6),
    block_size=st.sampled_from([1, 3, 16, 48, 128]),
    flat=st.booleans(),
    causal=st.booleans(),
    dtype=dtypes,
)
def test_paged_cache_equals_contiguous(
    data, heads, batch, rows, blocks, block_size, flat, causal, dtype
) -> None:
    q, k, v, attributes = operands(heads, batch, rows, blocks * block_size, dtype)
    total = batch * blocks + 2
    order = data.draw(st.permutations(range(total)))[: batch * blocks]
    table = torch.tensor(order, dtype=torch.int32).reshape(batch, blocks)
    lengths = st.integers(0, blocks * block_size)
    attributes["actual_seq_lengths_kv"] = [data.draw(lengths) for _ in range(batch)]
    if causal:
        attributes |= {"sparse_mode": 3, "atten_mask": COMPRESSED}
    want = attention(q, k, v, **attributes)
    k, v = (paged(x, table, total, block_size, flat) for x in (k, v))
    for b, length in enumerate(attributes["actual_seq_lengths_kv"]):
        # Entries beyond a sequence's length are never read.
        table[b, -(-length // block_size) :] = data.draw(st.integers(-(2**31), 2**31 - 1))
    got = attention(q, k, v, block_table=table, block_size=block_size, **attributes)
    assert all(torch.equal(g, w) for g, w in zip(got, want, strict=True))


def _quantised(x: torch.Tensor, mode: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return [B, N, S, D] as int8 and the scales of antiquant mode 0, 1, 2 or 3."""
    axes = {0: (0, 2), 1: (1, 3), 2: (0, 2, 3), 3: (3,)}[mode]
    scale = x.abs().amax(axes, keepdim=True).clamp(min=1e-3) / 127
    return (x / scale).round().to(torch.int8), scale


@given(
    heads=head_counts(),
    rows=st.sampled_from([1, 2, 9, 40]),
    keys=st.integers(1, 150),
    mode=st.integers(0, 3),
    causal=st.booleans(),
)
def test_quantised_cache_stays_within_error_bound(heads, rows, keys, mode, causal) -> None:
    q, k, v, attributes = operands(heads, 2, rows, keys, torch.float32)
    if causal:
        attributes |= {"sparse_mode": 3, "atten_mask": COMPRESSED}
    exact, exact_lse = attention(q, k, v, **attributes)
    (k8, k_scale), (v8, v_scale) = _quantised(k, mode), _quantised(v, mode)
    shape = {0: (heads[1], heads[2]), 1: (2, keys), 2: (heads[1],), 3: (2, heads[1], keys)}[mode]
    attributes |= {
        "key_antiquant_scale": k_scale.reshape(shape),
        "value_antiquant_scale": v_scale.reshape(shape),
        "key_antiquant_mode": mode,
        "value_antiquant_mode": mode,
    }
    got, lse = attention(q, k8, v8, **attributes)
    # A key is off by at most half a step, and a score by that error times its query. If scores
    # are off by e, weights are off by a relative exp(2e) - 1, and so is their weighted sum.
    group = heads[0] // heads[1]
    step = (k_scale / 2).expand(k.shape).repeat_interleave(group, 1)
    off = attributes["scale"] * (q.abs() @ step.transpose(2, 3)).amax(3, keepdim=True)
    largest = v.abs().amax((2, 3), keepdim=True).repeat_interleave(group, 1)
    half = (v_scale / 2).expand(v.shape).amax((2, 3), keepdim=True).repeat_interleave(group, 1)
    bound = (2 * off).expm1() * (largest + half) + half + 1e-5
    assert ((got - exact).abs() <= bound).all()
    seen = torch.isfinite(exact_lse)
    assert torch.equal(seen, torch.isfinite(lse))
    assert ((lse - exact_lse).abs() <= off + 1e-5)[seen].all()


@given(
    data=st.data(),
    heads=head_counts(),
    rows=st.sampled_from([1, 2, 9, 40]),
    blocks=st.integers(1, 5),
    block_size=st.sampled_from([1, 8, 16]),
    mode=st.integers(0, 5),
    offsets=st.booleans(),
    int4=st.booleans(),
    rotated=st.sampled_from([0, 0, 1, 8, 65]),
    dtype=dtypes,
)
def test_quantised_cache_equals_dequantised_cache(
    data, heads, rows, blocks, block_size, mode, offsets, int4, rotated, dtype
) -> None:
    n, kv, size = heads
    if int4:
        size = -(-size // 8) * 8
    keys, batch = blocks * block_size, 2
    q, _, _, attributes = operands((n, kv, size), batch, rows, keys, dtype)
    total = batch * blocks + 1
    table = torch.tensor(data.draw(st.permutations(range(total)))[:-1], dtype=torch.int32)
    table = table.reshape(batch, blocks)
    attributes["actual_seq_lengths_kv"] = [data.draw(st.integers(0, keys)) for _ in range(batch)]
    paged = {"block_table": table, "block_size": block_size}
    shape = {0: (kv, size), 1: (batch, keys), 2: (kv,), 3: (batch, kv, keys),
             4: (total, block_size), 5: (total, kv, block_size)}[mode]  # fmt: skip
    numbers, arguments = [], {}
    for i, name in enumerate(("key", "value")):
        generator = torch.Generator().manual_seed(i)
        low = -8 if int4 else -128
        ints = torch.randint(low, -low, (total, kv, block_size, size), generator=generator)
        # Scales that are powers of two cause no rounding.
        scale = torch.full(shape, 2.0 ** (-2 if int4 else -6)).to(dtype)
        scale *= 2.0 ** torch.randint(-1, 2, shape, generator=generator)
        offset = torch.randint(-2, 3, shape, generator=generator).to(dtype)
        arguments[f"{name}_antiquant_scale"] = scale
        arguments[f"{name}_antiquant_mode"] = mode
        if offsets:
            arguments[f"{name}_antiquant_offset"] = offset

        def spread(x: torch.Tensor) -> torch.Tensor:
            if mode in (4, 5):
                x = x.reshape(total, -1, block_size, 1)
            elif mode == 0:
                return x.reshape(1, kv, 1, size)
            elif mode == 2:
                return x.reshape(1, kv, 1, 1)
            else:
                x = x.reshape(batch, -1, blocks, block_size, 1)
                pages = torch.zeros(total, x.shape[1], block_size, 1)
                pages[table.long()] = x.transpose(1, 2).float()
                return pages
            return x

        x = ints.float() + (spread(offset).float() if offsets else 0.0)
        numbers.append((x * spread(scale).float()).to(dtype))
        ints = ints.to(torch.int32)
        if int4:
            words = (ints.unflatten(-1, (-1, 8)) & 15).long() << torch.arange(0, 32, 4)
            ints = words.sum(-1)
            ints = torch.where(ints >= 2**31, ints - 2**32, ints).to(torch.int32)
        arguments[name] = ints if int4 else ints.to(torch.int8)
    if rotated:  # further columns, of floats
        attributes["query_rope"] = random_floats(4, batch, n, rows, rotated, dtype=dtype)
        attributes["key_rope"] = random_floats(5, total, kv, block_size, rotated, dtype=dtype)
    want, want_lse = attention(q, *numbers, **attributes, **paged)
    got, lse = attention(q, **arguments, **attributes, **paged)
    check_near(got, want, dtype)
    check_near(lse, want_lse, dtype)


@given(
    heads=head_counts(),
    rows=st.sampled_from([1, 3, 20]),
    block_size=st.sampled_from([1, 5, 16]),
    piece=st.sampled_from([1, 3, 16]),
    pieces=st.integers(1, 4),
    dtype=dtypes,
)
def test_cache_blocks_in_device_order_equal_plain_blocks(
    heads, rows, block_size, piece, pieces, dtype
) -> None:
    heads = (*heads[:2], piece * pieces)
    q, k, v, attributes = operands(heads, 2, rows, 3 * block_size, dtype)
    table = torch.tensor([[5, 0, 2], [3, 1, 4]], dtype=torch.int32)
    attributes |= {"block_table": table, "block_size": block_size,
                   "actual_seq_lengths_kv": [3 * block_size, block_size]}  # fmt: skip
    k, v = (paged(x, table, 6, block_size, False) for x in (k, v))
    want = attention(q, k, v, **attributes)
    k, v = (x.unflatten(3, (pieces, piece)).permute(0, 1, 3, 2, 4).contiguous() for x in (k, v))
    for g, w in zip(attention(q, k, v, **attributes), want, strict=True):
        check_near(g, w, dtype)


@given(
    data=st.data(),
    heads=head_counts(),
    rows=st.sampled_from([1, 3, 20]),
    keys=st.integers(1, 60),
    prefix=st.integers(0, 140),
    causal=st.booleans(),
    dtype=dtypes,
)
def test_shared_prefix_equals_concatenated_keys(
    data, heads, rows, keys, prefix, causal, dtype
) -> None:
    q, k, v, attributes = operands(heads, 2, rows, keys, dtype)
    used = data.draw(st.integers(0, prefix))
    fronts = [random_floats(s, 1, heads[1], prefix, heads[2], dtype=dtype) for s in (8, 9)]
    lengths = [data.draw(st.integers(0, keys)) for _ in range(2)]
    if causal:
        attributes |= {"sparse_mode": 3, "atten_mask": COMPRESSED}
    got = attention(
        q, k, v, **attributes, key_shared_prefix=fronts[0], value_shared_prefix=fronts[1],
        actual_shared_prefix_len=[used], actual_seq_lengths_kv=lengths,
    )  # fmt: skip
    k, v = (
        torch.cat([front[:, :, :used].expand(2, -1, -1, -1), x], 2)
        for front, x in zip(fronts, (k, v), strict=True)
    )
    want = attention(q, k, v, **attributes, actual_seq_lengths_kv=[used + n for n in lengths])
    for g, w in zip(got, want, strict=True):
        check_near(g, w, dtype)


@given(
    data=st.data(),
    rows=st.sampled_from([1, 9]),
    length=st.integers(1, 64),
    entry=st.integers(-(2**31), -1) | st.integers(9, 2**31 - 1),
)
def test_block_table_entries_are_checked(data, rows, length, entry) -> None:
    q, k, v, attributes = operands((4, 2, 16), 2, rows, 64, torch.float32)
    table = torch.arange(8, dtype=torch.int32).reshape(2, 4)
    attributes |= {"block_table": table, "block_size": 16}
    k, v = (paged(x, table, 9, 16, False) for x in (k, v))
    lengths = [length, 64]
    want = attention(q, k, v, **attributes, actual_seq_lengths_kv=lengths)[0]
    wild = table.clone()
    wild[0, data.draw(st.integers(0, (length - 1) // 16))] = entry
    message = r"\[npu_fused_infer_attention_score\] expected block_table entries in \[0, 9\), got "
    with pytest.raises(RuntimeError, match=message):
        attributes["block_table"] = wild
        attention(q, k, v, **attributes, actual_seq_lengths_kv=lengths)
    attributes["block_table"] = table
    assert torch.equal(want, attention(q, k, v, **attributes, actual_seq_lengths_kv=lengths)[0])


@pytest.mark.parametrize("dtype", list(TOLERANCES))
@pytest.mark.parametrize("rows", [1, 20])
@pytest.mark.parametrize("size", [20, 64, 128])  # 64 fills whole registers, which are read in place
def test_block_table_entries_beyond_lengths_are_not_read(rows, size, dtype) -> None:
    q, k, v, attributes = operands((4, 2, size), 2, rows, 256, dtype)
    attributes |= {"actual_seq_lengths_kv": [0, 256], "sparse_mode": 0}
    mask = torch.zeros(2, 1, rows, 256, dtype=torch.bool)
    mask[..., :128] = True
    attributes["atten_mask"] = mask
    want = attention(q, k, v, **attributes)
    table = torch.tensor([[0, 1], [2, 3]], dtype=torch.int32)
    k, v = (paged(x, table, 4, 128, False) for x in (k, v))
    table[0] = -5  # nothing is cached
    table[1, 0] = 99  # masked for every query
    got = attention(q, k, v, block_table=table, block_size=128, **attributes)
    assert all(torch.equal(g, w) for g, w in zip(got, want, strict=True))
    del attributes["atten_mask"]
    table[1, 0] = 2
    got = attention(q, k, v, block_table=table, block_size=128, **attributes)
    assert torch.isfinite(got[0]).all()
