"""npu_dropout_with_add_softmax with dropout, which the derived tests cannot compare by value."""

from __future__ import annotations

import math

import onnxruntime_npu
import pytest
import torch
from onnxruntime_npu.opdef import Sample, all_ops
from op_paths import CPU, NPU, make_model, run_model

OP = all_ops()["npu_dropout_with_add_softmax"]
DTYPES = [torch.float32, torch.float16, torch.bfloat16]
SHAPE = (2, 3, 31, 37)


def _bits(mask: torch.Tensor, shape: torch.Size) -> torch.Tensor:
    bits = mask[:, None] >> torch.arange(8, dtype=torch.uint8) & 1
    return bits.flatten()[: shape.numel()].reshape(shape).bool()


def _scores(dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    return tuple(torch.randn(SHAPE, generator=generator).to(dtype) for _ in range(2))  # type: ignore[return-value]


def _check_consistent(
    results: list[torch.Tensor], x: torch.Tensor, x1: torch.Tensor, alpha: float, prob: float
) -> None:
    """Checks that hold for any random stream."""
    mask, softmax, dropout = results
    rounding = {torch.float32: 1e-6, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}[x.dtype]
    want = (x1.double() + alpha * x.double()).softmax(-1)
    torch.testing.assert_close(softmax.double(), want, rtol=rounding, atol=1e-6)
    keep = _bits(mask, x.shape)
    assert mask.numel() == math.ceil(x.numel() / 128) * 16
    assert not dropout[~keep].any()
    kept = (want / (1 - prob))[keep]
    torch.testing.assert_close(dropout[keep].double(), kept, rtol=rounding, atol=1e-6)
    # Six standard deviations of a binomial distribution.
    spread = 6 * math.sqrt(x.numel() * prob * (1 - prob))
    assert abs(int(keep.sum()) - x.numel() * (1 - prob)) < spread


@pytest.mark.parametrize("prob", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_eager(dtype: torch.dtype, prob: float) -> None:
    x, x1 = _scores(dtype)
    results = onnxruntime_npu.npu_dropout_with_add_softmax(x, x1, 0.5, prob, -1)
    _check_consistent(list(results), x, x1, 0.5, prob)


def test_seed_comes_from_torch() -> None:
    x, x1 = _scores(torch.float32)
    masks = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        first = onnxruntime_npu.npu_dropout_with_add_softmax(x, x1, 1.0, 0.5, -1)[0]
        second = onnxruntime_npu.npu_dropout_with_add_softmax(x, x1, 1.0, 0.5, -1)[0]
        assert not torch.equal(first, second)
        masks.append(first)
    assert torch.equal(masks[0], masks[1])
    assert not torch.equal(masks[0], masks[2])


@pytest.mark.parametrize("x1_shape", [SHAPE, (2, 1, 1, 37), (31, 1), ()])
@pytest.mark.parametrize("seed", [1, 2**63 - 2])
def test_seeded_node_drops_like_the_reference(seed: int, x1_shape: tuple[int, ...]) -> None:
    x, x1 = _scores(torch.float32)[0], torch.randn(x1_shape)
    sample = Sample(x, x1, 0.5, 0.3, -1, seed=seed)
    got = run_model(make_model(OP, sample, body=False), NPU, OP, sample)
    want = OP.call_reference(x, x1, 0.5, 0.3, -1, seed=seed)
    assert torch.equal(got[0], want[0])
    for g, w in zip(got[1:], want[1:], strict=True):
        torch.testing.assert_close(g, w, rtol=1e-5, atol=1e-6)


def test_node_without_seed_draws_new_masks() -> None:
    x, x1 = _scores(torch.float32)
    sample = Sample(x, x1, 0.5, 0.3, -1)
    model = make_model(OP, sample, body=False)
    first, second = (run_model(model, NPU, OP, sample) for _ in range(2))
    _check_consistent(first, x, x1, 0.5, 0.3)
    _check_consistent(second, x, x1, 0.5, 0.3)
    assert not torch.equal(first[0], second[0])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_function_body(dtype: torch.dtype) -> None:
    x, x1 = _scores(dtype)
    sample = Sample(x, x1, 0.5, 0.3, -1)
    results = run_model(make_model(OP, sample, body=True), CPU, OP, sample)
    _check_consistent(results, x, x1, 0.5, 0.3)


@pytest.mark.parametrize("x1_shape", [SHAPE, (2, 1, 1, 37), (31, 1)])
def test_gradient_uses_the_forward_dropout_mask(x1_shape: tuple[int, ...]) -> None:
    x, x1 = torch.randn(SHAPE, requires_grad=True), torch.randn(x1_shape, requires_grad=True)
    mask, softmax, dropout = onnxruntime_npu.npu_dropout_with_add_softmax(x, x1, 0.5, 0.3, -1)
    assert not mask.requires_grad and not softmax.requires_grad
    weight = torch.randn(SHAPE)
    got = torch.autograd.grad((dropout * weight).sum(), (x, x1))
    keep = _bits(mask, x.shape)
    again = (x1.double() + 0.5 * x.double()).softmax(-1) * keep / 0.7
    want = torch.autograd.grad((again * weight).sum(), (x, x1))
    for g, w in zip(got, want, strict=True):
        torch.testing.assert_close(g, w, rtol=1e-5, atol=1e-5)


def test_checkpointing_reuses_the_dropout_mask() -> None:
    x, x1 = _scores(torch.float32)
    x.requires_grad_()
    masks = []

    def drop(x: torch.Tensor) -> torch.Tensor:
        mask, _, dropout = onnxruntime_npu.npu_dropout_with_add_softmax(x, x1, 1.0, 0.5, -1)
        masks.append(mask)
        return dropout

    y = torch.utils.checkpoint.checkpoint(drop, x, use_reentrant=False)
    got = torch.autograd.grad(y.square().sum(), x)[0]
    again = (x1.double() + x.double()).softmax(-1) * _bits(masks[0], x.shape) / 0.5
    want = torch.autograd.grad(again.square().sum(), x)[0]
    torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-6)


def test_compiled_call_draws_on_every_run_and_has_gradients() -> None:
    _ = onnxruntime_npu.npu_dropout_with_add_softmax
    x, x1 = _scores(torch.float32)
    compiled = torch.compile(
        lambda a, b: torch.ops.npu.npu_dropout_with_add_softmax(a, b, 1.0, 0.5, -1),
        backend="aot_eager",
        fullgraph=True,
    )
    first, second = compiled(x, x1), compiled(x, x1)
    _check_consistent(list(first), x, x1, 1.0, 0.5)
    assert not torch.equal(first[0], second[0])

    x.requires_grad_()
    mask, _, dropout = compiled(x, x1)
    got = torch.autograd.grad(dropout.square().sum(), x)[0]
    again = (x1.double() + x.double()).softmax(-1) * _bits(mask, x.shape) / 0.5
    want = torch.autograd.grad(again.square().sum(), x)[0]
    torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-6)
