"""_npu_dropout with a probability between, and the choice of true elements: random by design."""

from __future__ import annotations

import math

import onnxruntime_npu
import pytest
import torch
from onnxruntime_npu import torch_device
from onnxruntime_npu.errors import ArgumentError
from onnxruntime_npu.opdef import Sample, all_ops
from op_paths import CPU, NPU, make_model, run_model

DEVICES = ["cpu", *(["npu"] if torch_device.is_built() else [])]
devices = pytest.mark.parametrize("device", DEVICES)
DROPOUT = all_ops()["_npu_dropout"]


def _bits(mask: torch.Tensor, count: int) -> torch.Tensor:
    return (mask.cpu()[:, None] >> torch.arange(8, dtype=torch.uint8) & 1).flatten()[:count].bool()


def _check(y: torch.Tensor, mask: torch.Tensor, x: torch.Tensor, p: float) -> None:
    keep = _bits(mask, x.numel()).reshape(x.shape)
    assert mask.shape == (math.ceil(x.numel() / 128) * 16,)
    want = torch.where(keep, x.float() / (1 - p), 0.0).to(x.dtype)
    torch.testing.assert_close(y.cpu(), want)
    # Six standard deviations of a binomial distribution.
    spread = 6 * math.sqrt(x.numel() * p * (1 - p))
    assert abs(int(keep.sum()) - x.numel() * (1 - p)) < spread


@devices
@pytest.mark.parametrize("p", [0.1, 0.75])
def test_dropout_keeps_what_its_mask_says(p: float, device: str) -> None:
    x = torch.randn(70, 37)
    _check(*onnxruntime_npu._npu_dropout(x.to(device), p), x, p)


@devices
@pytest.mark.parametrize("p", [0.25, 0.5])
def test_neighbours_are_dropped_independently(p: float, device: str) -> None:
    """The patterns of four neighbours have the frequencies of independent draws."""
    torch.manual_seed(5)
    mask = onnxruntime_npu._npu_dropout(torch.ones(64_000, device=device), p)[1]
    patterns = (_bits(mask, 64_000).reshape(-1, 4) * torch.tensor([1, 2, 4, 8])).sum(1)
    kept = torch.tensor([bin(i).count("1") for i in range(16)])
    expected = 16_000 * (1 - p) ** kept * p ** (4 - kept)
    statistic = float(((patterns.bincount(minlength=16) - expected).square() / expected).sum())
    # Chi-square of 15 degrees of freedom: 37.7 is exceeded by chance once in a thousand.
    assert statistic < 37.7


@pytest.mark.parametrize("provider", [NPU, CPU])
def test_dropout_in_a_model(provider: str) -> None:
    x = torch.randn(70, 37)
    sample = Sample(x, 0.3)
    y, mask = run_model(make_model(DROPOUT, sample, body=True), provider, DROPOUT, sample)
    _check(y, mask, x, 0.3)


@devices
def test_dropout_is_reproducible_by_torchs_seed(device: str) -> None:
    x = torch.ones(1000, device=device)
    masks = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        first, second = (onnxruntime_npu._npu_dropout(x, 0.5)[1] for _ in range(2))
        assert not torch.equal(first, second)
        masks.append(first)
    assert torch.equal(masks[0], masks[1]) and not torch.equal(masks[0], masks[2])


@devices
def test_gradient_of_dropout_is_zero_where_it_drops(device: str) -> None:
    x = torch.randn(300, device=device, requires_grad=True)
    y, mask = onnxruntime_npu._npu_dropout(x, 0.25)
    grad = torch.randn(300, device=device)
    (got,) = torch.autograd.grad(y, x, grad)
    want = torch.where(_bits(mask, 300), grad.cpu() / 0.75, 0.0)
    torch.testing.assert_close(got.cpu(), want)
    torch.testing.assert_close(onnxruntime_npu.npu_dropout_backward(grad, mask, 0.25).cpu(), want)
    with pytest.raises(ArgumentError, match=r"\[npu_dropout_backward\] expected mask of uint8"):
        onnxruntime_npu.npu_dropout_backward(grad, mask[:4], 0.25)


@devices
@pytest.mark.parametrize("seeded", [True, False])
def test_every_true_element_is_chosen_equally_often(seeded: bool, device: str) -> None:
    x = (torch.arange(12) % 3 != 0).to(device)  # eight true ones
    counts = torch.zeros(12)
    draws = 400
    torch.manual_seed(7)
    for seed in range(1, draws + 1) if seeded else [0] * draws:
        index, mask = onnxruntime_npu.npu_random_choice_with_mask(x, 3, seed)
        assert mask.all() and len(set(index.flatten().tolist())) == 3
        counts[index.flatten().long().cpu()] += 1
    assert not counts[~x.cpu()].any()
    expected = draws * 3 / 8
    # Chi-square of 7 degrees of freedom: 24.3 is exceeded by chance once in a thousand.
    assert ((counts[x.cpu()] - expected) ** 2 / expected).sum() < 24.3


@devices
def test_choice_without_seeds_follows_torchs_generator(device: str) -> None:
    x = torch.ones(1000, dtype=torch.bool, device=device)
    found = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        first, second = (onnxruntime_npu.npu_random_choice_with_mask(x, 20)[0] for _ in range(2))
        assert not torch.equal(first, second)
        found.append(torch.stack([first, second]))
    assert torch.equal(found[0], found[1]) and not torch.equal(found[0], found[2])


@devices
def test_choice_with_a_seed_is_always_the_same(device: str) -> None:
    x = torch.ones(1000, dtype=torch.bool, device=device)
    seeds = [(5, 0), (5, 0), (5, 1), (6, 0)]
    found = [onnxruntime_npu.npu_random_choice_with_mask(x, 20, *pair)[0] for pair in seeds]
    assert torch.equal(found[0], found[1])
    assert not torch.equal(found[0], found[2]) and not torch.equal(found[0], found[3])


@devices
def test_mask_by_seed_and_offset(device: str) -> None:
    draw = onnxruntime_npu._npu_dropout_gen_mask
    x = torch.zeros(17, 19, device=device)
    torch_device.reset_fallback_counts()
    first = draw(x, x.shape, 0.4, 7, 0)
    assert first.device == x.device and first.shape == (48,) and first.dtype == torch.uint8
    assert torch.equal(first, draw(x, x.shape, 0.4, 7, 0, parallel=False, sync=True))
    assert torch.equal(first.cpu(), draw(x.cpu(), [323], 0.4, 7, 0))
    assert not torch.equal(first, draw(x, x.shape, 0.4, 8, 0))
    assert not torch.equal(first, draw(x, x.shape, 0.4, 7, 1))
    assert draw(x, x.shape, 0.0, 7, 0).eq(255).all() and draw(x, [0], 0.5, 7, 0).numel() == 0
    kept = int(_bits(draw(x, [64_000], 0.4, 7, 3), 64_000).sum())
    assert abs(kept - 64_000 * 0.6) < 6 * math.sqrt(64_000 * 0.4 * 0.6)  # standard deviations
    # The gradient takes the mask.
    grad = onnxruntime_npu.npu_dropout_backward(torch.ones_like(x), first, 0.4)
    want = _bits(first, 323).reshape(17, 19) / 0.6
    torch.testing.assert_close(grad.cpu(), want)
    assert not torch_device.fallback_counts()
    for size, p, match in (([-1], 0.5, "sizes of at least 0"), ([2], 1.5, r"p in \[0, 1\]")):
        with pytest.raises(ArgumentError, match=match):
            draw(x, size, p, 7, 0)


@devices
def test_mask_is_what_fusion_attention_keeps(device: str) -> None:
    zeros = torch.zeros(1, 32, 64, device=device)
    values = torch.eye(32, device=device).repeat(1, 1, 2)  # two heads: the result is the weights
    out, *_, seed, offset, count = onnxruntime_npu.npu_fusion_attention(
        zeros, zeros, values, 2, "BSH", keep_prob=0.75
    )
    assert count == 2 * 32 * 32
    draw = onnxruntime_npu._npu_dropout_gen_mask
    mask = draw(zeros, [1, 2, 32, 32], 0.25, seed, offset)
    weights = out.cpu().reshape(32, 2, 32).transpose(0, 1)
    assert torch.equal(weights > 0, _bits(mask, count).reshape(2, 32, 32))
