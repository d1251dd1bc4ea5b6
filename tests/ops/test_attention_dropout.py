"""Attention with dropout: seeds, masks that they determine, and gradients through the mask."""

from __future__ import annotations

import sys

import onnxruntime_npu
import pytest
import torch
from onnxruntime_npu.opdef import Sample, all_ops
from op_paths import NPU, make_model, run_model


def _qkv(rows: int = 40, keys: int = 50) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(5)
    return [torch.randn(2, 2, n, 16, generator=generator) for n in (rows, keys, keys)]


def _fusion(*tensors: torch.Tensor, **given: object) -> tuple[object, ...]:
    return onnxruntime_npu.npu_fusion_attention(*tensors, 2, "BNSD", scale=0.25, **given)


def _close(got: torch.Tensor, want: torch.Tensor) -> None:
    """Sums of up to 64 products of float32; the reference adds in float64."""
    torch.testing.assert_close(got.cpu().double(), want, rtol=1e-5, atol=1e-5)


def test_reference_philox_matches_published_values() -> None:
    all_ops()
    philox = sys.modules["onnxruntime_npu.contrib_ops.attention._dropout"].philox
    words = torch.arange(4)
    got = philox(0, 0, words).tolist()
    assert got == [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]
    counter = 0x05A308D3243F6A88 * 4 + words  # int64 can hold only bits 32 to 62
    assert philox(1, 2, counter).tolist() != philox(1, 2, 0x243F6A88 * 4 + words).tolist()


def test_seed_comes_from_torch_and_is_returned() -> None:
    tensors = _qkv()
    torch.manual_seed(1)
    first = _fusion(*tensors, keep_prob=0.5)
    second = _fusion(*tensors, keep_prob=0.5)
    torch.manual_seed(1)
    again = _fusion(*tensors, keep_prob=0.5)
    seed, offset, numels = first[4:]
    assert numels == 2 * 2 * 40 * 50 and offset == 0 and seed != 0
    assert again[4] == seed != second[4]
    assert torch.equal(first[0], again[0]) and not torch.equal(first[0], second[0])
    assert torch.equal(_fusion(*tensors, keep_prob=0.5, seed=seed)[0], first[0])
    other = _fusion(*tensors, keep_prob=0.5, seed=seed, offset=1)[0]
    assert not torch.equal(other, first[0])


@pytest.mark.parametrize("keep_prob", [0.1, 0.75, 0.999])
def test_kept_fraction_matches_keep_prob(keep_prob: float) -> None:
    # With equal scores and values of one, the output is the kept fraction.
    rows, keys = 64, 4096
    query, key = torch.zeros(1, 1, rows, 8), torch.zeros(1, 1, keys, 8)
    out = onnxruntime_npu.npu_fusion_attention(
        query, key, torch.ones(1, 1, keys, 8), 1, "BNSD", keep_prob=keep_prob
    )[0]
    kept = out.mean().item() * keep_prob
    spread = (keep_prob * (1 - keep_prob) / (rows * keys)) ** 0.5
    assert abs(kept - keep_prob) < 6 * spread


def test_gradient_uses_the_forward_dropout_mask() -> None:
    tensors = [t.requires_grad_() for t in _qkv()]
    out, *_, seed, offset, _ = _fusion(*tensors, keep_prob=0.7)
    weight = torch.randn(out.shape)
    got = torch.autograd.grad((out * weight).sum(), tensors)
    wide = [t.detach().double().requires_grad_() for t in tensors]
    op = all_ops()["npu_fusion_attention"]
    again = op.call_reference(
        *wide, 2, "BNSD", scale=0.25, keep_prob=0.7, seed=seed, offset=offset
    )[0]
    want = torch.autograd.grad((again * weight).sum(), wide)
    for g, w in zip(got, want, strict=True):
        _close(g, w)


def test_checkpointing_reuses_the_dropout_mask() -> None:
    query, key, value = _qkv()
    query.requires_grad_()
    seeds = []

    def attend(query: torch.Tensor) -> torch.Tensor:
        out, *_, seed, _, _ = _fusion(query, key, value, keep_prob=0.5)
        seeds.append(seed)
        return out

    out = torch.utils.checkpoint.checkpoint(attend, query, use_reentrant=False)
    got = torch.autograd.grad(out.square().sum(), query)[0]
    plain = _fusion(query, key, value, keep_prob=0.5, seed=seeds[0])[0]
    assert torch.equal(got, torch.autograd.grad(plain.square().sum(), query)[0])


def test_traced_call_requires_a_seed() -> None:
    _ = onnxruntime_npu.npu_fusion_attention
    tensors = _qkv()

    def traced(seed: int) -> object:
        def function(*tensors: torch.Tensor) -> torch.Tensor:
            return torch.ops.npu.npu_fusion_attention(
                *tensors, 2, "BNSD", scale=0.25, keep_prob=0.5, seed=seed
            )[0]

        return torch.compile(function, backend="aot_eager", fullgraph=True)(*tensors)

    torch.testing.assert_close(traced(7), _fusion(*tensors, keep_prob=0.5, seed=7)[0])
    with pytest.raises(RuntimeError, match="expected a seed in a traced call, got 0"):
        traced(0)


def _score(seed: int = 0) -> Sample:
    mask = torch.zeros(1, 1, 40, 50)
    return Sample(*_qkv(), mask, 0.25, 0.6, seed=seed)


def _block(seed: int = 0) -> Sample:
    generator = torch.Generator().manual_seed(6)
    x = [torch.randn(n, 32, generator=generator) for n in (18, 22, 22)]
    weights = [torch.randn(32, 32, generator=generator) / 6 for _ in range(4)]
    mask = torch.zeros(2, 1, 9, 11)
    return Sample(
        *x, *weights[:3], mask, weights[3], None, None, None, None, None, 4, 8, 11, 9, 0.4, True,
        seed=seed,
    )  # fmt: skip


CASES = pytest.mark.parametrize(
    ("name", "make"),
    [("npu_fused_attention_score", _score), ("npu_multi_head_attention", _block)],
)


@CASES
@pytest.mark.parametrize("seed", [1, 2**63 - 2])
def test_seeded_node_drops_like_the_reference(name: str, make: object, seed: int) -> None:
    op, sample = all_ops()[name], make(seed)  # type: ignore[operator]
    got = run_model(make_model(op, sample, body=False), NPU, op, sample)
    want = op.call_reference(*sample.args, **sample.kwargs)
    for g, w in zip(got, want, strict=True):
        torch.testing.assert_close(g, w, rtol=1e-5, atol=1e-5)


@CASES
def test_calls_and_nodes_without_seed_draw_new_masks(name: str, make: object) -> None:
    op, sample = all_ops()[name], make()  # type: ignore[operator]
    model = make_model(op, sample, body=False)
    first, second = (run_model(model, NPU, op, sample)[0] for _ in range(2))
    assert not torch.equal(first, second)
    function = getattr(onnxruntime_npu, name)
    results = []
    for seed in (3, 3, 4):
        torch.manual_seed(seed)
        result = function(*sample.args)
        results.append(result if isinstance(result, torch.Tensor) else result[0])
    assert torch.equal(results[0], results[1]) and not torch.equal(results[0], results[2])


def test_multi_head_attention_gradient_uses_its_dropout_mask() -> None:
    sample = _block()
    args = [a.requires_grad_() if isinstance(a, torch.Tensor) else a for a in sample.args]
    leaves = [a for a in args if isinstance(a, torch.Tensor)]
    y, kept, *_ = onnxruntime_npu.npu_multi_head_attention(*args)
    weight = torch.randn(y.shape)
    got = torch.autograd.grad((y * weight).sum(), leaves)
    wide = [a.detach().double().requires_grad_() for a in leaves]
    rest = iter(wide)
    again = [next(rest) if isinstance(a, torch.Tensor) else a for a in args]
    again[12] = kept
    op = all_ops()["npu_multi_head_attention"]
    want = torch.autograd.grad((op.call_reference(*again)[0] * weight).sum(), wide)
    for g, w in zip(got, want, strict=True):
        _close(g, w)


@pytest.mark.parametrize("device", ["cpu", "npu"])
def test_attention_score_gradient_uses_its_dropout_mask(device: str) -> None:
    turned = {"key_transpose": True, "bmm_score_transpose_b": True}
    query, key, value = _qkv()
    mask = torch.randn(2, 1, 40, 50)
    tensors = query, key.transpose(2, 3), value.transpose(2, 3), mask
    leaves = [x.to(device).requires_grad_() for x in tensors]
    torch.manual_seed(3)
    out = onnxruntime_npu.npu_fused_attention_score(*leaves, 0.25, 0.6, **turned)
    weight = torch.randn(out.shape)
    got = torch.autograd.grad((out * weight.to(device)).sum(), leaves)
    # Values that form a unit matrix expose the dropout mask.
    eye = torch.eye(50).expand(2, 2, 50, 50)
    torch.manual_seed(3)
    with torch.no_grad():
        call = (x.to(device) for x in (query, key, eye, mask))
        dropped = onnxruntime_npu.npu_fused_attention_score(*call, 0.25, 0.6).cpu()
    kept = (dropped.view(2, 40, 2, 50).transpose(1, 2) != 0) / 0.6
    wide = [x.detach().double().requires_grad_() for x in tensors]
    q, k, v, m = wide
    again = (torch.softmax(q @ k * 0.25 + m, -1) * kept) @ v.transpose(2, 3)
    again = again.transpose(1, 2).reshape(80, 32)
    _close(out.detach(), again)
    want = torch.autograd.grad((again * weight).sum(), wide)
    for g, w in zip(got, want, strict=True):
        _close(g, w)


def test_compiled_attention_score_gradient_with_dropout_is_refused() -> None:
    query, key, value = _qkv()
    mask = torch.zeros(1, 1, 40, 50)

    def score(query: torch.Tensor, keep_prob: float) -> torch.Tensor:
        return torch.ops.npu.npu_fused_attention_score(query, key, value, mask, 1.0, keep_prob)

    compiled = torch.compile(score, backend="aot_eager")
    query.requires_grad_()
    got = torch.autograd.grad(compiled(query, 1.0).sum(), query)[0]
    torch.testing.assert_close(got, torch.autograd.grad(score(query, 1.0).sum(), query)[0])
    with pytest.raises(
        RuntimeError, match="expected keep_prob 0 or 1 in a traced call whose gradi"
    ):
        compiled(query, 0.5).sum().backward()
