"""A masked key contributes nothing to a row, even if the key or its value is NaN."""

from __future__ import annotations

import itertools
import math

import onnxruntime_npu
import pytest
import torch
from onnxruntime_npu.opdef import Sample, all_ops
from op_paths import reference

infer = onnxruntime_npu.npu_fused_infer_attention_score
fusion = onnxruntime_npu.npu_fusion_attention

COMPRESSED = torch.ones(2048, 2048, dtype=torch.bool).triu(1)
# Rows are recomputed one by one: one rounding of the weights and one of the result.
TOLERANCES = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}
STRIKES = (math.nan, math.inf, -math.inf)
dtypes = pytest.mark.parametrize("dtype", list(TOLERANCES), ids=str)


def _random(seed: int, *shape: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def _close(got: torch.Tensor, want: torch.Tensor) -> None:
    tolerance = TOLERANCES[want.dtype]
    torch.testing.assert_close(got, want, rtol=tolerance, atol=tolerance)


def _struck(x: torch.Tensor, rows: object, value: float) -> torch.Tensor:
    """Return BNSD with one column of the rows overwritten."""
    x = x.clone()
    x[:, :, rows, 3] = value
    return x


# Enough rows for a panel, a few rows, and one decode row, whose keys are split between threads.
@pytest.mark.parametrize(("heads", "rows", "keys"), [(6, 40, 200), (2, 3, 70), (4, 1, 2100)])
@dtypes
def test_masked_keys_and_values_do_not_affect_results(
    heads: int, rows: int, keys: int, dtype
) -> None:
    q = _random(1, 2, heads, rows, 64, dtype=dtype)
    k, v = (_random(s, 2, 2, keys, 64, dtype=dtype) for s in (2, 3))
    mask = torch.rand(2, 1, rows, keys, generator=torch.Generator().manual_seed(4)) < 0.3
    mask[..., [0, 17, keys - 1]] = True
    call = {"atten_mask": mask, "num_heads": heads, "num_key_value_heads": 2,
            "input_layout": "BNSD", "scale": 0.125, "softmax_lse_flag": True}  # fmt: skip
    want = infer(q, k, v, **call)
    for strike, (of_key, of_value) in itertools.product(STRIKES, [(1, 0), (0, 1), (1, 1)]):
        other = _struck(k, [0, 17, keys - 1], strike) if of_key else k
        value = _struck(v, [0, 17, keys - 1], strike) if of_value else v
        got = infer(q, other, value, **call)
        _close(got[0], want[0])
        torch.testing.assert_close(got[1], want[1], rtol=1e-5, atol=1e-5)
        op = all_ops()["npu_fused_infer_attention_score"]
        _close(reference(op, Sample(q, other, value, **call))[0].to(dtype), want[0])


@dtypes
def test_keys_and_values_outside_the_pattern_do_not_affect_results(dtype) -> None:
    q, k, v = (_random(s, 1, 4, 90, 64, dtype=dtype) for s in (1, 2, 3))
    call = {"atten_mask": COMPRESSED, "sparse_mode": 3, "num_heads": 4, "input_layout": "BNSD",
            "scale": 0.125}  # fmt: skip
    want = infer(q, k, v, **call)[0]
    for strike in STRIKES:
        got = infer(q, k, _struck(v, 33, strike), **call)[0]
        _close(got[:, :, :33], want[:, :, :33])
        assert not got[:, :, 33:, 3].isfinite().any()
        _close(got[:, :, 33:, 4:], want[:, :, 33:, 4:])
    got = infer(q, _struck(k, 33, math.nan), v, **call)[0]
    _close(got[:, :, :33], want[:, :, :33])
    assert got[:, :, 33:].isnan().all()


@dtypes
def test_masked_bias_does_not_affect_results(dtype) -> None:
    q, k, v = (_random(s, 1, 2, 30, 32, dtype=dtype) for s in (1, 2, 3))
    bias, mask = _random(4, 1, 2, 30, 30, dtype=dtype), torch.rand(30, 30) < 0.5
    mask[:, 0] = False
    call = {"atten_mask": mask, "num_heads": 2, "input_layout": "BNSD", "scale": 0.2}
    want = infer(q, k, v, pse_shift=bias, **call)[0]
    for strike in STRIKES:
        _close(infer(q, k, v, pse_shift=bias.masked_fill(mask, strike), **call)[0], want)


@pytest.mark.parametrize("causal", [False, True], ids=["mask", "causal"])
@dtypes
def test_training_attention_and_its_gradients(dtype, causal: bool) -> None:
    """Keys that no row attends to; queries that attend to no key contain NaN, too."""
    q, k, v, dy = (_random(s, 2, 2, 70, 32, dtype=dtype) for s in (1, 2, 3, 4))
    mask = torch.zeros(70, 70, dtype=torch.bool)
    call = {"head_num": 2, "input_layout": "BNSD", "scale": 0.2, "atten_mask": mask}
    if causal:
        call |= {"atten_mask": COMPRESSED, "sparse_mode": 3}
        hidden = [69]  # except for the last row
    else:
        hidden = [0, 33, 69]
        mask[:, hidden] = True
        mask[5] = True

    def run(q, k, v):
        leaves = [x.clone().requires_grad_() for x in (q, k, v)]
        out = fusion(*leaves, **call)[0]
        out.backward(dy)
        return [out.detach(), *(x.grad for x in leaves)]

    want = run(q, k, v)
    rows = 69 if causal else 70
    for strike in STRIKES:
        query = q if causal else _struck(q, 5, strike)
        got = run(query, _struck(k, hidden, strike), _struck(v, hidden, strike))
        _close(got[0][:, :, :rows], want[0][:, :, :rows])
        _close(got[1][:, :, :rows], want[1][:, :, :rows])
        if not causal:  # otherwise the last row's NaN reaches the gradients of its keys
            _close(got[2], want[2])
            _close(got[3], want[3])


@pytest.mark.parametrize("compute", ["kernel", "reference"])
@dtypes
def test_gradient_reaches_only_the_keys_a_row_attends_to(dtype, compute: str) -> None:
    op = all_ops()["npu_fusion_attention_grad"]
    q, k, v, dy = (_random(s, 2, 2, 70, 32, dtype=dtype) for s in (1, 2, 3, 4))
    call = {"head_num": 2, "input_layout": "BNSD", "atten_mask": COMPRESSED, "sparse_mode": 3}
    out, top, total = fusion(q, k, v, scale=0.2, **call)[:3]
    call |= {"softmax_max": top, "softmax_sum": total, "attention_in": out, "scale_value": 0.2}

    def run(dy: torch.Tensor) -> list[torch.Tensor]:
        if compute == "kernel":
            return list(onnxruntime_npu.npu_fusion_attention_grad(q, k, v, dy, **call))
        return list(op.call_reference(q, k, v, dy, **call))

    want = run(dy)
    for strike in STRIKES:
        dq, dk, dv, *_ = run(_struck(dy, 40, strike))
        _close(dq[:, :, :40], want[0][:, :, :40])
        _close(dq[:, :, 41:], want[0][:, :, 41:])
        _close(dk[:, :, 41:], want[1][:, :, 41:])
        _close(dv[:, :, 41:], want[2][:, :, 41:])
        assert not dv[:, :, :41, 3].isfinite().any()
        _close(dv[:, :, :, 4:], want[2][:, :, :, 4:])


@pytest.mark.parametrize("name", ["softmax_max", "softmax_sum"])
def test_fully_masked_row_has_no_gradient(name: str) -> None:
    op = all_ops()["npu_fusion_attention_grad"]
    q, k, v, dy = (_random(s, 1, 2, 9, 16, dtype=torch.float32) for s in (1, 2, 3, 4))
    call = {"head_num": 2, "input_layout": "BNSD"}
    out, top, total = fusion(q, k, v, **call)[:3]
    call |= {"softmax_max": top, "softmax_sum": total, "attention_in": out}
    call[name][:, :, 5] = -math.inf if name == "softmax_max" else 0.0
    got = onnxruntime_npu.npu_fusion_attention_grad(q, k, v, dy, **call)
    want = op.call_reference(q, k, v, dy, **call)
    assert got[0][:, :, 5].count_nonzero() == 0
    for a, b in zip(got, want, strict=True):
        _close(a, b)
