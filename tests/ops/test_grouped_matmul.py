"""npu_grouped_matmul: grouped matmuls equal a loop of matmuls, in every form of lists."""

from __future__ import annotations

from typing import Any

import onnxruntime_npu  # noqa: F401  defines torch.ops.npu
import pytest
import torch
from onnxruntime_npu.errors import ArgumentError

DEVICES = ["cpu", "npu"]


def _random(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def _sizes(groups: int, rows: int, seed: int) -> list[int]:
    """Split rows among the groups, about a third of which get none."""
    generator = torch.Generator().manual_seed(seed)
    weights = torch.rand(groups, generator=generator) * (
        torch.rand(groups, generator=generator) > 0.33
    )
    if weights.sum() == 0:
        weights[0] = 1
    picks = torch.multinomial(weights, rows, replacement=True, generator=generator)
    return torch.bincount(picks, minlength=groups).tolist()


def _ends(sizes: list[int]) -> torch.Tensor:
    return torch.tensor(sizes).cumsum(0)


def _call(device: str, x: list[torch.Tensor], weight: list[torch.Tensor], **more: Any) -> Any:
    on = {
        name: [t.to(device) for t in value]
        if isinstance(value, list) and value and isinstance(value[0], torch.Tensor)
        else value.to(device)
        if isinstance(value, torch.Tensor)
        else value
        for name, value in more.items()
    }
    results = torch.ops.npu.npu_grouped_matmul(
        [t.to(device) for t in x], [t.to(device) for t in weight], **on
    )
    return [t.cpu() for t in results]


def _close(actual: torch.Tensor, expected: torch.Tensor) -> None:
    # Float32 sums of up to 96 products of standard normal numbers against float64.
    torch.testing.assert_close(actual.double(), expected.double(), rtol=1e-5, atol=2e-5)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("seed", range(4))
def test_groups_of_rows_equal_a_loop(device: str, seed: int) -> None:
    groups, rows, k, n = 7, 50, 96, 40
    sizes = _sizes(groups, rows, seed)
    x, weight = _random(rows, k, seed=seed), _random(groups, k, n, seed=seed + 9)
    bias = _random(groups, n, seed=seed + 99)
    parts = x.double().split(sizes)
    expected = torch.cat([p @ weight[i].double() + bias[i].double() for i, p in enumerate(parts)])
    for group_list, kind in ((_ends(sizes), 0), (torch.tensor(sizes), 1)):
        (y,) = _call(
            device, [x], [weight], bias=[bias], group_list=group_list, group_list_type=kind,
            group_type=0, split_item=3,
        )  # fmt: skip
        _close(y, expected)
    order = torch.randperm(groups, generator=torch.Generator().manual_seed(seed)).tolist()
    pairs = torch.tensor([[i, sizes[i]] for i in order])
    shuffled = torch.cat([parts[i] for i in order]).float()
    (y,) = _call(
        device, [shuffled], [weight], bias=[bias], group_list=pairs, group_list_type=2,
        group_type=0, split_item=2,
    )  # fmt: skip
    expected_parts = expected.split(sizes)
    _close(y, torch.cat([expected_parts[i] for i in order]))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("seed", range(2))
def test_groups_of_depth_equal_a_loop(device: str, seed: int) -> None:
    groups, m, depth, n = 5, 13, 90, 21
    sizes = _sizes(groups, depth, seed)
    x, weight = _random(m, depth, seed=seed), _random(depth, n, seed=seed + 9)
    expected = torch.stack(
        [
            a @ b
            for a, b in zip(
                x.double().split(sizes, 1), weight.double().split(sizes, 0), strict=True
            )
        ]
    )
    (y,) = _call(device, [x], [weight], group_list=_ends(sizes), group_type=2, split_item=3)
    _close(y, expected)
    listed = _call(device, [x], [weight], group_list=_ends(sizes), group_type=2, split_item=0)
    _close(torch.stack(listed), expected)


@pytest.mark.parametrize("device", DEVICES)
def test_lists_of_weights_and_of_results(device: str) -> None:
    sizes = [3, 0, 5]
    x, weight = _random(8, 16, seed=1), _random(3, 16, 24, seed=2)
    bias = _random(3, 24, seed=3)
    parts = x.split(sizes)
    expected = [
        p.double() @ w.double() + c.double() for p, w, c in zip(parts, weight, bias, strict=True)
    ]
    results = _call(
        device, [x], list(weight), bias=list(bias), group_list=_ends(sizes), group_type=0,
        split_item=0,
    )  # fmt: skip
    assert [tuple(r.shape) for r in results] == [(s, 24) for s in sizes]
    for result, value in zip(results, expected, strict=True):
        _close(result, value)
    results = _call(device, list(parts), list(weight), bias=list(bias), group_type=0, split_item=1)
    for result, value in zip(results, expected, strict=True):
        _close(result, value)
    independent = _call(
        device, [x, x[:2, :8]], [weight[0], weight[1, :8, :4]], group_type=-1, split_item=0
    )
    _close(independent[0], x.double() @ weight[0].double())
    _close(independent[1], x[:2, :8].double() @ weight[1, :8, :4].double())


# Not a sample: onnxruntime's MatMul of a batch without depth does not write its result.
@pytest.mark.parametrize("device", DEVICES)
def test_without_depth_the_bias_remains(device: str) -> None:
    bias = _random(2, 4, seed=1)
    (y,) = _call(
        device, [torch.zeros(3, 0)], [torch.zeros(2, 0, 4)], bias=[bias],
        group_list=torch.tensor([1, 3]), group_type=0, split_item=3,
    )  # fmt: skip
    assert torch.equal(y, bias[[0, 1, 1]])


@pytest.mark.parametrize("device", DEVICES)
def test_lists_of_tensors_of_different_sizes(device: str) -> None:
    sizes = [(5, 16), (9, 16), (3, 40)]
    x = [_random(m, k, seed=i) for i, (m, k) in enumerate(sizes)]
    weight = [_random(k, 24, seed=i + 9) for i, (_, k) in enumerate(sizes)]
    bias = [_random(24, seed=i + 20) for i in range(3)]
    (y,) = _call(device, x, weight, bias=bias, group_type=0, split_item=2)
    products = [
        a.double() @ w.double() + b.double() for a, w, b in zip(x, weight, bias, strict=True)
    ]
    _close(y, torch.cat(products))


@pytest.mark.parametrize("device", DEVICES)
def test_one_x_of_integers_and_a_list_of_weights(device: str) -> None:
    generator = torch.Generator().manual_seed(1)
    x = torch.randint(-128, 128, (8, 16), generator=generator).to(torch.int8)
    weight = torch.randint(-128, 128, (2, 16, 24), generator=generator).to(torch.int8)
    tokens = torch.rand(8, generator=generator)
    (y,) = _call(
        device, [x], list(weight), scale=[torch.full((24,), 0.5)] * 2, per_token_scale=[tokens],
        group_list=torch.tensor([3, 8]), group_type=0, split_item=3, output_dtype=torch.float32,
    )  # fmt: skip
    expert = torch.tensor([0] * 3 + [1] * 5)
    exact = torch.einsum("mk,mkn->mn", x.double(), weight.double()[expert])
    _close(y, exact * 0.5 * tokens[:, None])


@pytest.mark.parametrize("device", DEVICES)
def test_the_overload_with_numbers(device: str) -> None:
    x, weight = _random(8, 16, seed=1), _random(2, 16, 24, seed=2)
    overload = torch.ops.npu.npu_grouped_matmul.List
    results = overload([x.to(device)], [weight.to(device)], group_list=[3, 8], split_item=0)
    _close(results[0].cpu(), x[:3].double() @ weight[0].double())
    _close(results[1].cpu(), x[3:].double() @ weight[1].double())


def test_refusals_of_lists() -> None:
    x, weight = torch.zeros(4, 8), torch.zeros(2, 8, 4)
    call = torch.ops.npu.npu_grouped_matmul
    with pytest.raises(ArgumentError, match="Requires manual passing group_type"):
        call([x], [weight], group_list=torch.tensor([2, 4]))
    with pytest.raises(ArgumentError, match="The group type must be -1, 0 or 2, got 3"):
        call([x], [weight], group_list=torch.tensor([2, 4]), group_type=3)
    with pytest.raises(ArgumentError, match="one tensor or more, got 0 and 0"):
        call([], [], group_type=-1)
    with pytest.raises(ArgumentError, match="expected 1 tensors in bias, got 2"):
        call([x], [weight], bias=[x, x], group_list=torch.tensor([2, 4]), group_type=0)
    with pytest.raises(ArgumentError, match="expected no offset on this device"):
        call([x], [weight], offset=[x], group_list=torch.tensor([2, 4]), group_type=0)
    with pytest.raises(ArgumentError, match="one shape and dtype in weight"):
        call([x], [weight[0], weight[1, :, :2]], group_list=torch.tensor([2, 4]), group_type=0)
