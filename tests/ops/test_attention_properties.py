"""Properties that relate calls of the inference attention operators, for any sizes."""

from __future__ import annotations

import re

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
    random_floats,
)
from hypothesis import given
from hypothesis import strategies as st

attention = onnxruntime_npu.npu_fused_infer_attention_score
prompt = onnxruntime_npu.npu_prompt_flash_attention
increment = onnxruntime_npu.npu_incre_flash_attention

HOSTILE = st.integers(-(2**63), 2**63 - 1)


@given(data=st.data(), heads=head_counts(), rows=st.integers(1, 200), dtype=dtypes)
def test_chunked_prefill_equals_full_prefill(data, heads, rows, dtype) -> None:
    q, k, v, attributes = operands(heads, 1, rows, rows, dtype)
    attributes |= {"sparse_mode": 3, "atten_mask": COMPRESSED}
    want, want_lse = attention(q, k, v, **attributes)
    begin = 0
    while begin < rows:
        end = data.draw(st.integers(begin + 1, rows))
        got, lse = attention(q[:, :, begin:end], k[:, :, :end], v[:, :, :end], **attributes)
        check_near(got, want[:, :, begin:end], dtype)
        check_near(lse, want_lse[:, :, begin:end], torch.float32)
        begin = end


@given(
    heads=head_counts(),
    batch=st.integers(0, 2),
    rows=st.sampled_from([1, 2, 7, 33]),
    keys=st.integers(0, 150),
    dtype=dtypes,
)
def test_grouped_heads_equal_repeated_heads(heads, batch, rows, keys, dtype) -> None:
    q, k, v, attributes = operands(heads, batch, rows, keys, dtype)
    want = attention(q, k, v, **attributes)
    k, v = (x.repeat_interleave(heads[0] // heads[1], dim=1) for x in (k, v))
    got = attention(q, k, v, **{**attributes, "num_key_value_heads": 0})
    check_near(got[0], want[0], dtype)
    check_near(got[1], want[1], torch.float32)


@given(
    data=st.data(),
    heads=head_counts(),
    mode=st.integers(2, 4),
    rows=st.integers(2, 80),
    keys=st.integers(1, 150),
    dtype=dtypes,
)
def test_sparse_mode_equals_explicit_mask(data, heads, mode, rows, keys, dtype) -> None:
    q, k, v, attributes = operands(heads, 2, rows, keys, dtype)
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
    check_near(got[0], want[0], dtype)
    check_near(got[1], want[1], torch.float32)
    j, i = torch.arange(keys), torch.arange(rows)[:, None]
    for b in range(2):
        none = (masked[b, 0] | (j >= kv_lengths[b]) | (i >= lengths[b])).all(1)
        assert not got[0][b, :, none].any()
        assert torch.isneginf(got[1][b, :, none]).all()
        assert torch.isfinite(got[1][b, :, ~none]).all()


@given(
    data=st.data(),
    heads=head_counts(),
    ends=st.lists(st.integers(0, 60), min_size=1, max_size=4),
    causal=st.booleans(),
    dtype=dtypes,
)
def test_packed_sequences_equal_separate_calls(data, heads, ends, causal, dtype) -> None:
    ends = sorted(ends)
    kv_ends = sorted(data.draw(st.integers(0, 90)) for _ in ends)
    q, k, v, attributes = operands(heads, 1, max(ends[-1], 1), max(kv_ends[-1], 1), dtype)
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
        check_near(got[begin:end], want[0].transpose(0, 1), dtype)
        check_near(lse[begin:end], want_lse[0].transpose(0, 1), torch.float32)
        begin, kv_begin = end, kv_end


@given(
    heads=head_counts(), rows=st.sampled_from([1, 4, 40]), keys=st.integers(2, 700), data=st.data()
)
def test_partial_results_merge_by_log_sum_exp(heads, rows, keys, data) -> None:
    q, k, v, attributes = operands(heads, 1, rows, keys, torch.float32)
    want, lse = attention(q, k, v, **attributes)
    cut = data.draw(st.integers(1, keys - 1))
    left, left_lse = attention(q, k[:, :, :cut], v[:, :, :cut], **attributes)
    right, right_lse = attention(q, k[:, :, cut:], v[:, :, cut:], **attributes)
    check_near(torch.logaddexp(left_lse, right_lse), lse, torch.float32)
    merged = left * (left_lse - lse).exp() + right * (right_lse - lse).exp()
    check_near(merged, want, torch.float32)


@given(
    heads=head_counts(),
    rows=st.sampled_from([1, 5, 40]),
    keys=st.integers(1, 60),
    layout=st.sampled_from(
        ["BSH", "BSND", "BNSD_BSND", "BSH_BNSD", "BSND_BNSD", "BSH_NBSD", "BSND_NBSD", "BNSD_NBSD"]
    ),
    dtype=dtypes,
)
def test_layouts_agree(heads, rows, keys, layout, dtype) -> None:
    q, k, v, attributes = operands(heads, 2, rows, keys, dtype)
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


@given(
    data=st.data(),
    heads=head_counts(),
    rows=st.sampled_from([2, 3, 20]),
    keys=st.integers(1, 60),
    paddings=st.tuples(st.integers(0, 9), st.integers(0, 30)),
    dtype=dtypes,
)
def test_left_padding_shifts_rows(data, heads, rows, keys, paddings, dtype) -> None:
    q, k, v, attributes = operands(heads, 2, rows, keys, dtype)
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
        check_near(got[b, :, first : ends[0]], want[0], dtype)
        check_near(lse[b, :, first : ends[0]], want_lse[0], dtype)


@given(heads=head_counts(), rows=st.sampled_from([1, 9]), per_channel=st.booleans(), dtype=dtypes)
def test_quantised_output_equals_rounded_output(heads, rows, per_channel, dtype) -> None:
    q, k, v, attributes = operands(heads, 2, rows, 30, dtype)
    want, lse = attention(q.float(), k.float(), v.float(), **attributes)
    shape = (1, heads[0], 1, heads[2]) if per_channel else (1, 1, 1, 1)
    scale, offset = random_floats(4, *shape).abs() * 100, random_floats(5, *shape)
    call = {**attributes, "quant_scale2": scale.flatten(), "quant_offset2": offset.flatten()}
    got, got_lse = attention(q, k, v, **call)
    assert got.dtype == torch.int8
    # One integer off if the exact result is close to a rounding boundary.
    off = got.float() - (want * scale + offset).clamp(-128, 127)
    assert (off.abs() <= 0.5 + 2 * TOLERANCES[dtype] * scale.max() * 4).all()
    check_near(got_lse, lse, dtype)


@given(heads=head_counts(), rows=st.integers(1, 20), keys=st.integers(1, 150), dtype=dtypes)
def test_prompt_and_increment_equal_fused_infer_attention(heads, rows, keys, dtype) -> None:
    q, k, v, attributes = operands(heads, 2, rows, keys, dtype)
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
    q, _, _, attributes = operands((4, 2, 16), 2, 3, 8, torch.float32)
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


@given(lengths=st.lists(HOSTILE, min_size=2, max_size=2), packed=st.booleans())
def test_lengths_are_checked(lengths, packed) -> None:
    q, k, v, attributes = operands((4, 2, 16), 2, 3, 8, torch.float32)
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
    q = random_floats(1, 1, 2, 4, 16)
    with pytest.raises(RuntimeError, match=r"\[npu_fused_infer_attention_score\] expected input_l"):
        attention(q, q, q, num_heads=4, input_layout=layout)


@given(heads=st.integers(-9, 9), kv_heads=st.integers(-9, 9))
def test_heads_are_checked(heads, kv_heads) -> None:
    q = random_floats(1, 1, 2, 4, 16)
    call = {"num_heads": heads, "num_key_value_heads": kv_heads, "input_layout": "BSND"}
    if (heads, kv_heads or heads) == (4, 4):
        assert attention(q, q, q, **call)[0].shape == q.shape
    else:
        with pytest.raises(RuntimeError, match=r"\[npu_fused_infer_attention_score\] expected "):
            attention(q, q, q, **call)
