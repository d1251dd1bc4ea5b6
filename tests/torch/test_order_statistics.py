"""median, nanmedian, kthvalue and mode."""

import pytest
import torch
from against_cpu import FLOATS, INTEGERS, check, equal_on_cpu

pytestmark = pytest.mark.usefixtures("no_fallback")

dtypes = pytest.mark.parametrize("dtype", FLOATS, ids=str)


@dtypes
def test_elements_by_rank(dtype):
    # All elements are distinct: which of several equal ones gets the gradient is undefined.
    order = torch.randperm(84, generator=torch.Generator().manual_seed(0))
    x = order.view(4, 7, 3).to(dtype).requires_grad_()
    for dim in (0, 1, -1):
        check(lambda t, d=dim: t.median(d).values, x)
        check(lambda t, d=dim: t.kthvalue(3, d, keepdim=True).values, x)
    check(lambda t: t.median(), x)
    nan = float("nan")
    host = torch.tensor([[3, nan, 1, nan], [4, 2, 9, 7]]).to(dtype)
    for keepdim in (False, True):
        got, expected = host.npu().median(1, keepdim), host.median(1, keepdim)
        assert torch.equal(got.indices.cpu(), expected.indices)
        torch.testing.assert_close(got.values.cpu(), expected.values, equal_nan=True)
    assert torch.tensor([5, 1, 4, 2]).npu().median().item() == 2
    for k in (0, 8):
        with pytest.raises(RuntimeError, match="out of range"):
            x.npu().kthvalue(k, 1)


@dtypes
def test_medians_without_nan(dtype):
    nan = float("nan")
    x = torch.tensor([[3, nan, 1, nan], [4, 2, 9, 7], [nan] * 4, [nan, 5, nan, nan]]).to(dtype)
    for dim in (0, 1):
        got, expected = x.npu().nanmedian(dim), x.nanmedian(dim)
        torch.testing.assert_close(got.values.cpu(), expected.values, equal_nan=True)
        known = expected.values.isfinite()
        assert torch.equal(got.indices.cpu()[known], expected.indices[known])
    assert x.npu().nanmedian().item() == x.nanmedian().item()
    assert x[2].npu().nanmedian().isnan().item()
    order = torch.randperm(84, generator=torch.Generator().manual_seed(0))
    check(
        lambda t: t.nanmedian(1, keepdim=True).values,
        order.view(4, 7, 3).to(dtype).requires_grad_(),
    )
    assert torch.tensor([5, 1, 4, 2]).npu().nanmedian().item() == 2


@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS, torch.bool], ids=str)
def test_mode(dtype):
    x = torch.tensor([[3, 1, 1, 2, 3], [0, 0, 1, 0, 1], [5, 4, 3, 2, 1], [7, 7, 7, 7, 7]]).to(dtype)
    for dim in (0, 1):
        equal_on_cpu(lambda t, d=dim: t.mode(d), x)
    equal_on_cpu(lambda t: t.mode(1, keepdim=True), x)


def test_mode_counts_each_nan_separately():
    nan = float("nan")
    values, indices = torch.tensor([[nan, 2, nan, 2, nan], [nan, nan, nan, nan, 1]]).npu().mode(1)
    assert values.tolist() == [2, 1] and indices.tolist() == [3, 4]


def test_gradient_and_out_of_mode():
    check(lambda t: t.mode(1).values, torch.tensor([[3.0, 1, 1], [2, 5, 4]]).requires_grad_())
    out = torch.empty(2).npu(), torch.empty(2, dtype=torch.long).npu()
    torch.mode(torch.tensor([[3.0, 1, 1], [2, 5, 4]]).npu(), 1, out=out)
    assert out[0].tolist() == [1, 2] and out[1].tolist() == [2, 0]


def test_order_statistics_of_a_single_number():
    x = torch.tensor(3.0)
    for function in (torch.median, torch.nanmedian, torch.mode):
        equal_on_cpu(lambda t, f=function: f(t, 0), x)
    equal_on_cpu(lambda t: t.kthvalue(1), x)


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int8, torch.int64], ids=str
)
@pytest.mark.parametrize("count", [5, 127, 128, 1000])
@pytest.mark.parametrize("descending", [False, True])
def test_equal_elements_stay_in_order(dtype, count, descending):
    """Few distinct values, the extremes of the type among them."""
    generator = torch.Generator().manual_seed(count)
    if dtype.is_floating_point:
        numbers = [0.0, -0.0, torch.inf, -torch.inf, torch.nan, 1e-40, -1.5, 3.0]
    else:
        numbers = [0, -1, 1, torch.iinfo(dtype).min, torch.iinfo(dtype).max, 100]
    distinct = torch.tensor(numbers, dtype=dtype)
    x = distinct[torch.randint(len(numbers), (3, count), generator=generator)]
    for k in (1, count // 20, count // 3, count):
        expected = x.sort(dim=1, stable=True, descending=descending)
        values, indices = x.npu().topk(k, dim=1, largest=descending)
        assert torch.equal(indices.cpu(), expected.indices[:, :k])
        close = torch.testing.assert_close
        close(values.cpu(), expected.values[:, :k], rtol=0, atol=0, equal_nan=True)
    order = x.npu().argsort(dim=1, stable=True, descending=descending)
    assert torch.equal(order.cpu(), expected.indices)
