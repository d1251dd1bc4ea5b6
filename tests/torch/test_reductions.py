"""Reductions, norms, std and var."""

import math

import pytest
import torch
from against_cpu import FLOATS, check, equal_on_cpu, make

dtypes = pytest.mark.parametrize("dtype", FLOATS, ids=str)


@pytest.mark.usefixtures("no_fallback")
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


@pytest.mark.usefixtures("no_fallback")
@pytest.mark.parametrize("order", [2, 1, 3, 0, math.inf, -math.inf])
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_vector_norms(dtype, order):
    x = torch.randn(4, 5, 6, generator=torch.Generator().manual_seed(0)).to(dtype)
    for axes in (None, 1, (0, 2)):
        # One rounding of float32 sums; the CPU may round intermediate results.
        equal_on_cpu(
            lambda t, axes=axes: torch.linalg.vector_norm(t, order, axes),
            x,
            rtol=2**-7 if x.itemsize == 2 else 1e-5,
            atol=0,
        )
    equal_on_cpu(
        lambda t: torch.linalg.vector_norm(t, order, 1, keepdim=True), x, rtol=2**-7, atol=0
    )


@pytest.mark.usefixtures("no_fallback")
@pytest.mark.filterwarnings("ignore:.*degrees of freedom")
@pytest.mark.parametrize("dim", [0, -1, None])
@pytest.mark.parametrize("keepdim", [True, False])
@pytest.mark.parametrize("name", ["std", "var", "std_mean", "var_mean"])
@pytest.mark.parametrize("correction", [0, 1])
def test_std_and_var_of_scalars_and_rows(name, correction, keepdim, dim):
    function = getattr(torch, name)
    for x in (torch.tensor(3.5), torch.rand(4, 5), torch.rand(4, 5).half()):
        expected = function(x.float(), dim=dim, keepdim=keepdim, correction=correction)
        got = function(x.npu(), dim=dim, keepdim=keepdim, correction=correction)
        for g, e in zip(torch.atleast_1d(got), torch.atleast_1d(expected), strict=True):
            torch.testing.assert_close(g.cpu(), e.to(x.dtype), equal_nan=True)


@pytest.mark.no_values
def test_std_of_a_scalar_refuses_dim_1():
    with pytest.raises(IndexError, match="Dimension out of range"):
        torch.tensor(1.0, device="npu").std(dim=1)


@pytest.mark.filterwarnings("ignore:Casting complex values to real")
@pytest.mark.parametrize("dtype", [torch.float64, torch.int32, torch.float16, torch.complex128])
@pytest.mark.parametrize("name", ["sum", "prod", "mean"])
def test_complex_reduction_with_another_dtype(name, dtype):
    if name == "mean" and dtype == torch.int32:
        pytest.skip("no mean of integers")
    x = torch.tensor([1 + 2j, 3 - 1j])
    got = getattr(torch, name)(x.npu(), dtype=dtype)
    assert torch.equal(got.cpu(), getattr(torch, name)(x, dtype=dtype))


def test_masks_are_counted_without_a_wider_copy():
    mask = torch.rand(3, 1 << 20) > 0.3
    on_npu = mask.npu()
    torch.npu.reset_peak_memory_stats()
    before = torch.npu.memory_allocated()
    assert on_npu.sum().item() == mask.sum().item()
    assert torch.npu.max_memory_allocated() - before < mask.numel()
    for t in (mask, mask.t(), mask[0, 0], mask[:, :0]):
        got = t.npu().sum(list(range(t.dim())), keepdim=True)
        assert got.shape == (1,) * t.dim() and got.item() == t.sum().item()


def test_norms_of_single_numbers_and_of_none():
    for order in (0, 1, 2, 3, float("inf")):
        equal_on_cpu(lambda t, p=order: torch.linalg.vector_norm(t, p), torch.tensor(-2.5))
    for order in (0, 1, 2, 3):
        equal_on_cpu(lambda t, p=order: torch.linalg.vector_norm(t, p, dim=1), torch.ones(3, 0))
    equal_on_cpu(torch.linalg.vector_norm, torch.ones(0, 3, dtype=torch.half))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_renorm(dtype):
    x = make(dtype, 4, 3, 5)
    for p in (1, 2, 3):
        check(lambda t, p=p: t.renorm(p, 1, 2.0), x)
    equal_on_cpu(lambda t: t.renorm(2, 0, 1e3), x.detach())  # nothing is scaled


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.bfloat16, torch.float64, torch.int64], ids=str
)
def test_one_number_of_more_elements_than_a_piece_has(dtype):
    """Threads reduce pieces of 65,536 elements each, the last of which is shorter."""
    x = torch.randn(200_003).mul(8).to(dtype)
    on_npu = x.npu()
    assert torch.equal(on_npu.max().cpu(), x.max()) and torch.equal(on_npu.amin().cpu(), x.amin())
    # Elements are summed in float32 a few hundred at a time, and these sums in double.
    exact = x.double().sum()
    bound = 0.0
    if dtype.is_floating_point:
        bound = 1e-6 * x.double().abs().sum() + torch.finfo(dtype).eps * exact.abs()
    assert (on_npu.sum().cpu().double() - exact).abs() <= bound
    mask = torch.zeros(200_003, dtype=torch.bool)
    mask[-1] = True
    assert mask.npu().any() and not mask.npu().all() and mask[-1:].npu().all()
