"""Elements by place, by mask and by rank; windows of images; small reductions and functions."""

import pytest
import torch
import torch.nn.functional as F
from against_cpu import FLOATS, check, make

pytestmark = pytest.mark.usefixtures("no_fallback")
dtypes = pytest.mark.parametrize("dtype", FLOATS, ids=str)


@dtypes
def test_elements_by_place_and_mask(dtype):
    x, source = make(dtype, 3, 4), make(dtype, 3, 4, seed=1)
    index = torch.tensor([[0, 11, -3], [5, 5, -12]])
    check(lambda x, i: x.t().take(i), x, index)
    check(lambda x, i, s: x.put(i[0], s[0, :3]), x, index, source)
    check(lambda x, i, s: x.put(i, s.view(2, 6)[:, :3], accumulate=True), x, index, source)
    mask = torch.tensor([[True, False, True, True]])
    check(lambda x, m, s: x.masked_scatter(m, s), x, mask, source)
    check(lambda x, m, s: x.t().masked_scatter(m.t(), s.flatten()[:9]), x, mask, source)
    there = torch.zeros(4, 3, dtype=dtype, device="npu")
    there.t().put_(torch.tensor([1], device="npu"), torch.ones(1, dtype=dtype, device="npu"))
    assert there.nonzero().tolist() == [[1, 0]]


def test_elements_that_are_not_there():
    x, mask = torch.zeros(4, device="npu"), torch.ones(4, dtype=torch.bool, device="npu")
    assert x.masked_scatter(mask.logical_not(), x[:0]).tolist() == [0] * 4
    for call, message in (
        (lambda: x.masked_scatter(mask, torch.ones(3, device="npu")), "index|indices"),
        (lambda: x.masked_scatter(mask, x[:0]), "as many elements"),
        (lambda: x.masked_scatter(mask, x.double()), "same dtypes"),
        (lambda: x.take(torch.tensor([4], device="npu")), "index"),
        (lambda: x[:0].take(torch.tensor([0], device="npu")), "empty tensor"),
        (lambda: x.take(torch.zeros(1, device="npu")), "long tensor"),
        (lambda: x.put_(torch.tensor([0, 1], device="npu"), x[:1]), "same number of elements"),
    ):
        with pytest.raises((RuntimeError, IndexError), match=message):
            call()
            torch.npu.synchronize()


@pytest.mark.parametrize("include_self", [True, False])
@pytest.mark.parametrize("reduce", ["sum", "prod", "mean", "amax", "amin"])
def test_scatter_reduce(reduce, include_self):
    index = torch.tensor([[0, 2, 0, 1], [1, 1, 3, 3], [0, 0, 0, 0]])
    for dtype in (*FLOATS, torch.int64, torch.int32):
        generator = torch.Generator().manual_seed(0)
        x, source = (torch.randn(3, 5, generator=generator).mul(4).to(dtype) for _ in range(2))
        wide = torch.float32 if dtype.itemsize == 2 else dtype  # rounded once at the end, here
        expected = x.to(wide).scatter_reduce(
            1, index, source.to(wide), reduce, include_self=include_self
        )
        got = x.npu().scatter_reduce(
            1, index.npu(), source.npu(), reduce, include_self=include_self
        )
        torch.testing.assert_close(got.cpu(), expected.to(dtype), rtol=1e-5, atol=1e-5)


@dtypes
def test_elements_by_rank(dtype):
    # No two are equal: which of equals has the rank is not determined, and has the gradient.
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
def test_windows(dtype):
    x = make(dtype, 2, 3, 7, 6)
    options = {"kernel_size": (3, 2), "dilation": (2, 1), "padding": (1, 0), "stride": (1, 3)}
    check(lambda t: F.unfold(t, 2), x)
    check(lambda t: F.unfold(t[0], **options), x)
    columns = F.unfold(x.detach(), **options).requires_grad_()
    check(lambda t: F.fold(t, (7, 6), **options), columns)
    check(lambda t: F.fold(t[0], (7, 6), **options), columns)
    for size, step in ((3, 1), (2, 3), (6, 1)):
        check(lambda t, size=size, step=step: t.unfold(2, size, step), x)


def test_windows_that_do_not_fit():
    x = torch.ones(1, 1, 3, 3, device="npu")
    huge = 1 << 40
    for options in ({"kernel_size": 4}, {"kernel_size": huge}, {"kernel_size": 2, "padding": huge}):
        with pytest.raises(RuntimeError, match=r"does not fit|expected kernel"):
            F.unfold(x, **options)
    with pytest.raises(RuntimeError, match="col2im"):
        F.fold(torch.ones(1, 5, 4, device="npu"), (3, 3), 2)


@dtypes
def test_small_reductions(dtype):
    x = make(dtype, 4, 5)
    check(lambda t: t[0].prod(), x)
    check(lambda t: t.trace(), x)
    check(lambda t: torch.where(t > 0, t, float("nan")).nansum(1), x)
    check(lambda t: t.aminmax(dim=1).max, x)
    check(lambda t: t.aminmax().min, x)
    host = (x.detach() > 0).to(dtype)
    assert torch.equal(host.npu().count_nonzero((0, 1)).cpu(), host.count_nonzero((0, 1)))
    assert torch.equal(host.npu().count_nonzero(0).cpu(), host.count_nonzero(0))
    assert torch.arange(1, 6).npu().prod().item() == 120


@dtypes
def test_small_functions(dtype):
    x = make(dtype, 3, 5)
    weight = torch.linspace(-0.5, 1.5, 15).view(3, 5).to(dtype)
    check(lambda t, w: torch.lerp(t, t.flip(0), w), x, weight)
    check(torch.sinc, x)
    inside = x.detach().sigmoid().requires_grad_()
    check(torch.logit, inside)
    check(lambda t: torch.logit(t * 1.5 - 0.2, eps=0.1), inside)
    infinite = torch.tensor([float("nan"), float("inf"), -float("inf"), 2]).to(dtype)
    for options in ({}, {"nan": 7.0, "posinf": 8.0, "neginf": 9.0}):
        expected = infinite.nan_to_num(**options)
        assert torch.equal(infinite.npu().nan_to_num(**options).cpu(), expected)
    assert torch.arange(3).npu().nan_to_num().tolist() == [0, 1, 2]


def test_places_of_a_triangle():
    for make_indices in (torch.tril_indices, torch.triu_indices):
        for options in ({}, {"offset": 1}, {"dtype": torch.int32}):
            got = make_indices(3, 4, device="npu", **options)
            assert got.device.type == "npu" and torch.equal(
                got.cpu(), make_indices(3, 4, **options)
            )
