"""Properties that relate calls of the inference attention operators, for any sizes."""

from __future__ import annotations

import re

import onnxruntime_npu
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

attention = onnxruntime_npu.npu_fused_infer_attention_score
prompt = onnxruntime_npu.npu_prompt_flash_attention
increment = onnxruntime_npu.npu_incre_flash_attention

COMPRESSED = torch.ones(2048, 2048, dtype=torch.bool).triu(1)
# One rounding of the weights and one of the result, to values of about 1.
_DTYPES = {torch.float32: 2e-5, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}
dtypes = st.sampled_from(list(_DTYPES))
HOSTILE = st.integers(-(2**63), 2**63 - 1)


def _random(seed: int, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator).clamp(-4, 4).to(dtype)


def _close(got: torch.Tensor, want: torch.Tensor, dtype: torch.dtype) -> None:
    tolerance = _DTYPES[dtype]
    torch.testing.assert_close(
        got.double(), want.double(), rtol=tolerance, atol=tolerance, equal_nan=True
    )


@st.composite
def _heads(draw) -> tuple[int, int, int]:
    """Draw the numbers of query heads and of key heads, and a head size."""
    kv_heads = draw(st.integers(1, 3))
    return kv_heads * draw(st.integers(1, 5)), kv_heads, draw(st.integers(1, 70))


def _operands(heads, batch: int, rows: int, keys: int, dtype: torch.dtype):
    """Return query, key and value as BNSD, and the attributes."""
    n, kv, size = heads
    q = _random(1, batch, n, rows, size, dtype=dtype)
    k, v = (_random(s, batch, kv, keys, size, dtype=dtype) for s in (2, 3))
    attributes = {"num_heads": n, "num_key_value_heads": kv, "scale": size**-0.5,
                  "input_layout": "BNSD", "softmax_lse_flag": True}  # fmt: skip
    return q, k, v, attributes


def _pages(rows: torch.Tensor, table: torch.Tensor, blocks: int, block_size: int, flat: bool):
    """Return [B, N, S, D] in blocks as the table says; what the table does not name is NaN."""
    _, heads, _, size = rows.shape
    cache = torch.full((blocks, heads, block_size, size), float("nan")).to(rows.dtype)
    parts = rows.unflatten(2, (table.shape[1], block_size)).transpose(1, 2)
    cache[table.long().flatten()] = parts.flatten(0, 1)
    return cache.transpose(1, 2).flatten(2).contiguous() if flat else cache


@given(
    data=st.data(),
    heads=_heads(),
    batch=st.integers(1, 3),
    rows=st.sampled_from([1, 1, 3, 9, 20]),
    blocks=st.integers(1, 6),
    block_size=st.sampled_from([1, 3, 16, 128]),
    flat=st.booleans(),
    causal=st.booleans(),
    dtype=dtypes,
)
def test_paged_cache_equals_contiguous(
    data, heads, batch, rows, blocks, block_size, flat, causal, dtype
) -> None:
    q, k, v, attributes = _operands(heads, batch, rows, blocks * block_size, dtype)
    total = batch * blocks + 2
    order = data.draw(st.permutations(range(total)))[: batch * blocks]
    table = torch.tensor(order, dtype=torch.int32).reshape(batch, blocks)
    lengths = st.integers(0, blocks * block_size)
    attributes["actual_seq_lengths_kv"] = [data.draw(lengths) for _ in range(batch)]
    if causal:
        attributes |= {"sparse_mode": 3, "atten_mask": COMPRESSED}
    want = attention(q, k, v, **attributes)
    k, v = (_pages(x, table, total, block_size, flat) for x in (k, v))
    for b, length in enumerate(attributes["actual_seq_lengths_kv"]):
        # Entries beyond a sequence's length are never read.
        table[b, -(-length // block_size) :] = data.draw(st.integers(-(2**31), 2**31 - 1))
    got = attention(q, k, v, block_table=table, block_size=block_size, **attributes)
    assert all(torch.equal(g, w) for g, w in zip(got, want, strict=True))


@given(data=st.data(), heads=_heads(), rows=st.integers(1, 200), dtype=dtypes)
def test_chunked_prefill_equals_full_prefill(data, heads, rows, dtype) -> None:
    q, k, v, attributes = _operands(heads, 1, rows, rows, dtype)
    attributes |= {"sparse_mode": 3, "atten_mask": COMPRESSED}
    want, want_lse = attention(q, k, v, **attributes)
    begin = 0
    while begin < rows:
        end = data.draw(st.integers(begin + 1, rows))
        got, lse = attention(q[:, :, begin:end], k[:, :, :end], v[:, :, :end], **attributes)
        _close(got, want[:, :, begin:end], dtype)
        _close(lse, want_lse[:, :, begin:end], torch.float32)
        begin = end


@given(
    heads=_heads(),
    batch=st.integers(0, 2),
    rows=st.sampled_from([1, 2, 7, 33]),
    keys=st.integers(0, 150),
    dtype=dtypes,
)
def test_grouped_heads_equal_repeated_heads(heads, batch, rows, keys, dtype) -> None:
    q, k, v, attributes = _operands(heads, batch, rows, keys, dtype)
    want = attention(q, k, v, **attributes)
    k, v = (x.repeat_interleave(heads[0] // heads[1], dim=1) for x in (k, v))
    got = attention(q, k, v, **{**attributes, "num_key_value_heads": 0})
    _close(got[0], want[0], dtype)
    _close(got[1], want[1], torch.float32)


@given(
    data=st.data(),
    heads=_heads(),
    mode=st.integers(2, 4),
    rows=st.integers(2, 80),
    keys=st.integers(1, 150),
    dtype=dtypes,
)
def test_sparse_mode_equals_explicit_mask(data, heads, mode, rows, keys, dtype) -> None:
    q, k, v, attributes = _operands(heads, 2, rows, keys, dtype)
    lengths = [data.draw(st.integers(0, rows)) for _ in range(2)]
    kv_lengths = [data.draw(st.integers(0, keys)) for _ in range(2)]
    attributes |= {"actual_seq_lengths": lengths, "actual_seq_lengths_kv": kv_lengths}
    pre, following = data.draw(st.integers(-200, 200)), data.draw(st.integers(-200, 200))
    masked = torch.zeros(2, 1, rows, keys, dtype=torch.bool)
    for b in range(2):
        for i in range(rows):
            delta = kv_lengths[b] - lengths[b]
            j = torch.arange(keys)
            masked[b, 0, i] = {
                2: j > i,
                3: j > i + delta,
                4: (j < i + delta - pre) | (j > i + delta + following),
            }[mode]
    band = {"pre_tokens": pre, "next_tokens": following}
    got = attention(q, k, v, **attributes, **band, sparse_mode=mode, atten_mask=COMPRESSED)
    want = attention(q, k, v, **attributes, **band, sparse_mode=1, atten_mask=masked)
    _close(got[0], want[0], dtype)
    _close(got[1], want[1], torch.float32)
    j, i = torch.arange(keys), torch.arange(rows)[:, None]
    for b in range(2):
        none = (masked[b, 0] | (j >= kv_lengths[b]) | (i >= lengths[b])).all(1)
        assert not got[0][b, :, none].any()
        assert torch.isneginf(got[1][b, :, none]).all()
        assert torch.isfinite(got[1][b, :, ~none]).all()


@given(
    data=st.data(),
    heads=_heads(),
    ends=st.lists(st.integers(0, 60), min_size=1, max_size=4),
    causal=st.booleans(),
    dtype=dtypes,
)
def test_packed_sequences_equal_separate_calls(data, heads, ends, causal, dtype) -> None:
    ends = sorted(ends)
    kv_ends = sorted(data.draw(st.integers(0, 90)) for _ in ends)
    q, k, v, attributes = _operands(heads, 1, max(ends[-1], 1), max(kv_ends[-1], 1), dtype)
    packed = {**attributes, "input_layout": "TND"}
    if causal:
        attributes |= {"sparse_mode": 3, "atten_mask": COMPRESSED}
        packed |= {"sparse_mode": 3, "atten_mask": COMPRESSED}
    got, lse = attention(
        *(x[0].transpose(0, 1).contiguous() for x in (q, k, v)),
        **packed,
        actual_seq_lengths=ends,
        actual_seq_lengths_kv=kv_ends,
    )
    begin = kv_begin = 0
    for end, kv_end in zip(ends, kv_ends, strict=True):
        own = (x[:, :, kv_begin:kv_end].contiguous() for x in (k, v))
        want, want_lse = attention(q[:, :, begin:end].contiguous(), *own, **attributes)
        _close(got[begin:end], want[0].transpose(0, 1), dtype)
        _close(lse[begin:end], want_lse[0].transpose(0, 1), torch.float32)
        begin, kv_begin = end, kv_end


@given(heads=_heads(), rows=st.sampled_from([1, 4, 40]), keys=st.integers(2, 700), data=st.data())
def test_partial_results_merge_by_log_sum_exp(heads, rows, keys, data) -> None:
    q, k, v, attributes = _operands(heads, 1, rows, keys, torch.float32)
    want, lse = attention(q, k, v, **attributes)
    cut = data.draw(st.integers(1, keys - 1))
    left, left_lse = attention(q, k[:, :, :cut], v[:, :, :cut], **attributes)
    right, right_lse = attention(q, k[:, :, cut:], v[:, :, cut:], **attributes)
    _close(torch.logaddexp(left_lse, right_lse), lse, torch.float32)
    merged = left * (left_lse - lse).exp() + right * (right_lse - lse).exp()
    _close(merged, want, torch.float32)


@given(
    heads=_heads(),
    rows=st.sampled_from([1, 5, 40]),
    keys=st.integers(1, 60),
    layout=st.sampled_from(
        ["BSH", "BSND", "BNSD_BSND", "BSH_BNSD", "BSND_BNSD", "BSH_NBSD", "BSND_NBSD", "BNSD_NBSD"]
    ),
    dtype=dtypes,
)
def test_layouts_agree(heads, rows, keys, layout, dtype) -> None:
    q, k, v, attributes = _operands(heads, 2, rows, keys, dtype)
    want, lse = attention(q, k, v, **attributes)
    into, _, out = layout.partition("_")
    if into != "BNSD":
        q, k, v = (x.transpose(1, 2).contiguous() for x in (q, k, v))
    if into == "BSH":
        q, k, v = (x.flatten(2) for x in (q, k, v))
    got, got_lse = attention(q, k, v, **{**attributes, "input_layout": layout})
    order = {"BNSD": (0, 1, 2, 3), "NBSD": (1, 0, 2, 3)}.get(out or into, (0, 2, 1, 3))
    want = want.permute(order)
    assert torch.equal(got, want.flatten(2) if (out or into) == "BSH" else want)
    assert torch.equal(got_lse, lse)


def _quantised(x: torch.Tensor, mode: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return [B, N, S, D] as int8 and the scales of antiquant mode 0, 1, 2 or 3."""
    axes = {0: (0, 2), 1: (1, 3), 2: (0, 2, 3), 3: (3,)}[mode]
    scale = x.abs().amax(axes, keepdim=True).clamp(min=1e-3) / 127
    return (x / scale).round().to(torch.int8), scale


@given(
    heads=_heads(),
    rows=st.sampled_from([1, 2, 9, 40]),
    keys=st.integers(1, 150),
    mode=st.integers(0, 3),
    causal=st.booleans(),
)
def test_quantised_cache_stays_within_error_bound(heads, rows, keys, mode, causal) -> None:
    q, k, v, attributes = _operands(heads, 2, rows, keys, torch.float32)
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
    heads=_heads(),
    rows=st.sampled_from([1, 2, 9, 40]),
    blocks=st.integers(1, 5),
    block_size=st.sampled_from([1, 8, 16]),
    mode=st.integers(0, 5),
    offsets=st.booleans(),
    int4=st.booleans(),
    dtype=dtypes,
)
def test_quantised_cache_equals_dequantised_cache(
    data, heads, rows, blocks, block_size, mode, offsets, int4, dtype
) -> None:
    n, kv, size = heads
    if int4:
        size = -(-size // 8) * 8
    keys, batch = blocks * block_size, 2
    q, _, _, attributes = _operands((n, kv, size), batch, rows, keys, dtype)
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
    want, want_lse = attention(q, *numbers, **attributes, **paged)
    got, lse = attention(q, **arguments, **attributes, **paged)
    _close(got, want, dtype)
    _close(lse, want_lse, dtype)


@given(
    heads=_heads(),
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
    q, k, v, attributes = _operands(heads, 2, rows, 3 * block_size, dtype)
    table = torch.tensor([[5, 0, 2], [3, 1, 4]], dtype=torch.int32)
    attributes |= {"block_table": table, "block_size": block_size,
                   "actual_seq_lengths_kv": [3 * block_size, block_size]}  # fmt: skip
    k, v = (_pages(x, table, 6, block_size, False) for x in (k, v))
    want = attention(q, k, v, **attributes)
    k, v = (x.unflatten(3, (pieces, piece)).permute(0, 1, 3, 2, 4).contiguous() for x in (k, v))
    for g, w in zip(attention(q, k, v, **attributes), want, strict=True):
        _close(g, w, dtype)


@given(
    data=st.data(),
    heads=_heads(),
    rows=st.sampled_from([1, 3, 20]),
    keys=st.integers(1, 60),
    prefix=st.integers(0, 140),
    causal=st.booleans(),
    dtype=dtypes,
)
def test_shared_prefix_equals_concatenated_keys(
    data, heads, rows, keys, prefix, causal, dtype
) -> None:
    q, k, v, attributes = _operands(heads, 2, rows, keys, dtype)
    used = data.draw(st.integers(0, prefix))
    fronts = [_random(s, 1, heads[1], prefix, heads[2], dtype=dtype) for s in (8, 9)]
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
        _close(g, w, dtype)


@given(
    data=st.data(),
    heads=_heads(),
    rows=st.sampled_from([2, 3, 20]),
    keys=st.integers(1, 60),
    paddings=st.tuples(st.integers(0, 9), st.integers(0, 30)),
    dtype=dtypes,
)
def test_left_padding_shifts_rows(data, heads, rows, keys, paddings, dtype) -> None:
    q, k, v, attributes = _operands(heads, 2, rows, keys, dtype)
    attributes |= {"sparse_mode": 3, "atten_mask": COMPRESSED}
    lengths = [data.draw(st.integers(0, rows)) for _ in range(2)]
    kv_lengths = [data.draw(st.integers(0, keys)) for _ in range(2)]
    attributes |= {"actual_seq_lengths": lengths, "actual_seq_lengths_kv": kv_lengths}
    got, lse = attention(
        q, k, v, **attributes,
        query_padding_size=torch.tensor([paddings[0]]), kv_padding_size=torch.tensor([paddings[1]]),
    )  # fmt: skip
    for b in range(2):
        first = rows - paddings[0] - lengths[b]
        first_key = keys - paddings[1] - kv_lengths[b]
        if first < 0 or first_key < 0:
            assert not got[b].any() and torch.isneginf(lse[b]).all()
            continue
        ends = first + lengths[b], first_key + kv_lengths[b]
        assert not got[b, :, :first].any() and not got[b, :, ends[0] :].any()
        own = q[b : b + 1, :, first : ends[0]]
        kv = (x[b : b + 1, :, first_key : ends[1]] for x in (k, v))
        call = {n: x for n, x in attributes.items() if not n.startswith("actual")}
        want, want_lse = attention(own, *kv, **call)
        _close(got[b, :, first : ends[0]], want[0], dtype)
        _close(lse[b, :, first : ends[0]], want_lse[0], dtype)


@given(heads=_heads(), rows=st.sampled_from([1, 9]), per_channel=st.booleans(), dtype=dtypes)
def test_quantised_output_equals_rounded_output(heads, rows, per_channel, dtype) -> None:
    q, k, v, attributes = _operands(heads, 2, rows, 30, dtype)
    want, lse = attention(q.float(), k.float(), v.float(), **attributes)
    shape = (1, heads[0], 1, heads[2]) if per_channel else (1, 1, 1, 1)
    scale, offset = _random(4, *shape).abs() * 100, _random(5, *shape)
    call = {**attributes, "quant_scale2": scale.flatten(), "quant_offset2": offset.flatten()}
    got, got_lse = attention(q, k, v, **call)
    assert got.dtype == torch.int8
    # One integer off if the exact result is close to a rounding boundary.
    off = got.float() - (want * scale + offset).clamp(-128, 127)
    assert (off.abs() <= 0.5 + 2 * _DTYPES[dtype] * scale.max() * 4).all()
    _close(got_lse, lse, dtype)


@given(heads=_heads(), rows=st.integers(1, 20), keys=st.integers(1, 150), dtype=dtypes)
def test_prompt_and_increment_equal_fused_infer_attention(heads, rows, keys, dtype) -> None:
    q, k, v, attributes = _operands(heads, 2, rows, keys, dtype)
    own = {**attributes, "scale_value": attributes["scale"]}
    del own["scale"], own["softmax_lse_flag"]
    pattern = {"sparse_mode": 3, "atten_mask": COMPRESSED}
    want = attention(q, k, v, **attributes, **pattern)[0]
    assert torch.equal(prompt(q, k, v, **own, **pattern), want)
    want = attention(q[:, :, :1].contiguous(), k, v, **attributes, actual_seq_lengths_kv=[keys])[0]
    row = q[:, :, :1].contiguous()
    assert torch.equal(increment(row, k, v, **own, actual_seq_lengths=[keys]), want)


@given(size=st.integers(0, 600), which=st.sampled_from(["key", "value"]), mode=st.integers(-1, 6))
def test_scales_are_checked(size, which, mode) -> None:
    q, _, _, attributes = _operands((4, 2, 16), 2, 3, 8, torch.float32)
    ints = torch.ones(2, 2, 8, 16, dtype=torch.int8)
    other = "value" if which == "key" else "key"
    attributes |= {f"{which}_antiquant_scale": torch.ones(size), f"{which}_antiquant_mode": mode,
                   f"{other}_antiquant_scale": torch.ones(1)}  # fmt: skip
    if (mode, size) in ((0, 1), (0, 32), (2, 2)):
        assert torch.isfinite(attention(q, ints, ints, **attributes)[0]).all()
    else:
        message = rf"\[npu_fused_infer_attention_score\] expected {which}_antiquant_(scale|mode) "
        with pytest.raises(RuntimeError, match=message):
            attention(q, ints, ints, **attributes)


@given(
    data=st.data(),
    rows=st.sampled_from([1, 9]),
    length=st.integers(1, 64),
    entry=st.integers(-(2**31), -1) | st.integers(9, 2**31 - 1),
)
def test_block_table_entries_are_checked(data, rows, length, entry) -> None:
    q, k, v, attributes = _operands((4, 2, 16), 2, rows, 64, torch.float32)
    table = torch.arange(8, dtype=torch.int32).reshape(2, 4)
    attributes |= {"block_table": table, "block_size": 16}
    k, v = (_pages(x, table, 9, 16, False) for x in (k, v))
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


@pytest.mark.parametrize("dtype", list(_DTYPES))
@pytest.mark.parametrize("rows", [1, 20])
@pytest.mark.parametrize("size", [20, 64])  # 64 fills whole registers, which are read in place
def test_block_table_entries_beyond_lengths_are_not_read(rows, size, dtype) -> None:
    q, k, v, attributes = _operands((4, 2, size), 2, rows, 256, dtype)
    attributes |= {"actual_seq_lengths_kv": [0, 256], "sparse_mode": 0}
    mask = torch.zeros(2, 1, rows, 256, dtype=torch.bool)
    mask[..., :128] = True
    attributes["atten_mask"] = mask
    want = attention(q, k, v, **attributes)
    table = torch.tensor([[0, 1], [2, 3]], dtype=torch.int32)
    k, v = (_pages(x, table, 4, 128, False) for x in (k, v))
    table[0] = -5  # nothing is cached
    table[1, 0] = 99  # masked for every query
    got = attention(q, k, v, block_table=table, block_size=128, **attributes)
    assert all(torch.equal(g, w) for g, w in zip(got, want, strict=True))
    del attributes["atten_mask"]
    table[1, 0] = 2
    got = attention(q, k, v, block_table=table, block_size=128, **attributes)
    assert torch.isfinite(got[0]).all()


@given(lengths=st.lists(HOSTILE, min_size=2, max_size=2), packed=st.booleans())
def test_lengths_are_checked(lengths, packed) -> None:
    q, k, v, attributes = _operands((4, 2, 16), 2, 3, 8, torch.float32)
    if packed:
        q, k, v = (x[0].transpose(0, 1).contiguous() for x in (q, k, v))
        attributes |= {"input_layout": "TND", "actual_seq_lengths": [1, 3]}
    inside = all(0 <= n <= 8 for n in lengths) and (not packed or lengths == sorted(lengths))
    attributes["actual_seq_lengths_kv"] = lengths
    if inside:
        assert torch.isfinite(attention(q, k, v, **attributes)[0]).all()
    else:
        message = r"\[npu_fused_infer_attention_score\] expected actual_seq_lengths_kv (in|to) "
        with pytest.raises(RuntimeError, match=message):
            attention(q, k, v, **attributes)


@given(layout=st.text(max_size=8).filter(lambda text: not re.match("[BNST]+[HD]", text)))
def test_unknown_layouts_are_reported(layout) -> None:
    q = _random(1, 1, 2, 4, 16)
    with pytest.raises(RuntimeError, match=r"\[npu_fused_infer_attention_score\] expected input_l"):
        attention(q, q, q, num_heads=4, input_layout=layout)


@given(heads=st.integers(-9, 9), kv_heads=st.integers(-9, 9))
def test_heads_are_checked(heads, kv_heads) -> None:
    q = _random(1, 1, 2, 4, 16)
    call = {"num_heads": heads, "num_key_value_heads": kv_heads, "input_layout": "BSND"}
    if (heads, kv_heads or heads) == (4, 4):
        assert attention(q, q, q, **call)[0].shape == q.shape
    else:
        with pytest.raises(RuntimeError, match=r"\[npu_fused_infer_attention_score\] expected "):
            attention(q, q, q, **call)
