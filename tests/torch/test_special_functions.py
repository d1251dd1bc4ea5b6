"""Special functions, common divisors and next floats."""

import math

import mpmath
import pytest
import torch
from against_cpu import FLOATS, INTEGERS, TOLERANCE, check, equal_on_cpu

pytestmark = pytest.mark.usefixtures("no_fallback")

dtypes = pytest.mark.parametrize("dtype", FLOATS, ids=str)
REAL = torch.cat([torch.linspace(-30, 30, 121, dtype=torch.float64), torch.tensor([math.nan])])
POSITIVE = torch.cat([torch.logspace(-3, 1.5, 60, dtype=torch.float64), torch.tensor([math.nan])])


def close_to_cpu(function, *inputs):
    """Checks results against the CPU's in float64, rounded to the dtype of the inputs."""
    dtype = inputs[0].dtype
    expected = function(*(t.double() for t in inputs)).to(dtype)
    got = function(*(t.npu() for t in inputs))
    assert got.dtype == dtype and got.device.type == "npu"
    # Of float64, torch's own approximations have these digits: 1e-16 is what mpmath finds here.
    rtol = 1e-8 if dtype == torch.float64 else TOLERANCE[dtype]
    torch.testing.assert_close(got.cpu(), expected, rtol=rtol, atol=rtol, equal_nan=True)


@dtypes
@pytest.mark.parametrize(
    "name",
    ["entr", "erfcx", "i0e", "i1e", "log_ndtr", "spherical_bessel_j0"],
)
def test_functions_of_all_numbers(name, dtype):
    x = REAL[REAL.abs() < 6] if name == "erfcx" else REAL  # what float16 holds
    close_to_cpu(getattr(torch.special, name), x.to(dtype))


@dtypes
@pytest.mark.parametrize(
    "name",
    ["modified_bessel_k0", "modified_bessel_k1",
     "scaled_modified_bessel_k0", "scaled_modified_bessel_k1"],
)  # fmt: skip
def test_functions_of_positive_numbers(name, dtype):
    close_to_cpu(getattr(torch.special, name), POSITIVE.to(dtype))


@dtypes
def test_bessel_functions(dtype):
    # Against mpmath: torch's own have five digits near their zeros.
    x = torch.linspace(0.25, 30, 60).to(dtype)
    for name, function in (("j", mpmath.besselj), ("y", mpmath.bessely)):
        for order in (0, 1):
            expected = [float(function(order, value)) for value in x.tolist()]
            got = getattr(torch.special, f"bessel_{name}{order}")(x.npu()).cpu().double()
            # one rounding to the dtype, and near zeros that of pi
            tolerance = max(1e-14, torch.finfo(dtype).eps)
            torch.testing.assert_close(
                got, torch.tensor(expected, dtype=torch.float64), rtol=tolerance, atol=tolerance
            )


@dtypes
def test_modified_bessel_functions_of_the_first_kind(dtype):
    x = torch.linspace(-8, 8, 65).to(dtype)
    special = torch.special
    for function in (
        special.i0,
        special.i1,
        special.modified_bessel_i0,
        special.modified_bessel_i1,
    ):
        close_to_cpu(function, x)
    infinite = torch.tensor([-math.inf, math.inf], device="npu", dtype=dtype)
    assert special.i0(infinite).tolist() == [math.inf, math.inf]
    assert special.i1(infinite).tolist() == [-math.inf, math.inf]
    assert special.i0(infinite.new_tensor(math.nan)).isnan()


@dtypes
def test_incomplete_gamma_functions(dtype):
    a, x = (t.to(dtype) for t in torch.meshgrid(POSITIVE, POSITIVE, indexing="ij"))
    for function in (torch.special.gammainc, torch.special.gammaincc):
        close_to_cpu(function, a, x)
    edges = torch.tensor([0, 1, math.inf, -1]).to(dtype)
    for function in (torch.special.gammainc, torch.special.gammaincc):
        a, x = torch.meshgrid(edges, edges, indexing="ij")
        close_to_cpu(function, a, x)
        assert function(a.npu(), a.npu().fill_(math.nan)).isnan().all()
    y = torch.linspace(0.5, 3, 10).to(dtype).requires_grad_()
    check(lambda t: torch.special.gammainc(torch.full_like(t, 1.5), t), y)


def test_incomplete_gamma_functions_of_large_arguments():
    a = torch.tensor([120.0, 1e3, 9e3, 2e4, 1e6], dtype=torch.float64)
    for deviations in (-6, -3, -0.1, 0, 0.2, 3, 6):
        x = a + deviations * a.sqrt()
        for function in (torch.special.gammainc, torch.special.gammaincc):
            got = function(a.npu(), x.npu()).cpu()
            # torch's own loses digits for large arguments: mpmath confirms 14 of these
            torch.testing.assert_close(got, function(a, x), rtol=1e-6, atol=1e-10)
    one = torch.special.gammainc(a.npu(), a.npu()) + torch.special.gammaincc(a.npu(), a.npu())
    torch.testing.assert_close(one.cpu(), torch.ones_like(a), rtol=1e-14, atol=0)


@dtypes
def test_polygamma_and_zeta(dtype):
    x = torch.linspace(0.25, 20, 80).to(dtype)
    for order in range(4):
        close_to_cpu(lambda t, n=order: torch.polygamma(n, t), x)
    exponents = torch.linspace(1.5, 45, 30, dtype=torch.float64)
    grid = torch.meshgrid(exponents, POSITIVE[20:], indexing="ij")
    close_to_cpu(torch.special.zeta, *(t.to(dtype) for t in grid))
    y = x.npu().requires_grad_()
    torch.polygamma(1, y).sum().backward()
    assert torch.equal(y.grad, torch.polygamma(2, y))
    edges = torch.tensor([[1, 0.5, 2, 2, 2.5, 3], [1, 1, 0, -3, -1.5, -1.5]]).to(dtype)
    close_to_cpu(torch.special.zeta, *edges)


@dtypes
def test_quantiles_and_logarithms(dtype):
    p = torch.tensor([0, 1e-6, 0.01, 0.3, 0.5, 0.7, 0.999, 1, -1, 2, math.nan]).to(dtype)
    close_to_cpu(torch.special.ndtri, p)
    y = torch.tensor([-1, -0.5, 0, 0.5, 3, math.inf, math.nan]).to(dtype)
    close_to_cpu(torch.special.xlog1py, torch.zeros_like(y), y)
    close_to_cpu(torch.special.xlog1py, torch.full_like(y, 2), y)


def test_quantile_of_extreme_tails():
    p = torch.logspace(-300, -1, 100, dtype=torch.float64)
    x = torch.special.ndtri(p.npu())
    torch.testing.assert_close(torch.special.log_ndtr(x).cpu(), p.log(), rtol=1e-13, atol=0)


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_common_divisors(dtype):
    a, b = torch.meshgrid(torch.arange(-7, 12), torch.tensor([-12, -6, 0, 1, 8, 9]), indexing="ij")
    a, b = (t.abs() if dtype == torch.uint8 else t for t in (a, b))
    for function in (torch.gcd, torch.lcm):
        equal_on_cpu(function, a.to(dtype), b.to(dtype))


@pytest.mark.parametrize("dtype", FLOATS + INTEGERS, ids=str)
def test_signs(dtype):
    x = torch.tensor([-2, -0.0, 0.0, 3]).to(dtype)
    equal_on_cpu(torch.signbit, x)
    equal_on_cpu(torch.heaviside, x, torch.full((1,), 5).to(dtype))
    if dtype.is_floating_point:
        equal_on_cpu(torch.signbit, torch.tensor([-math.nan, math.inf, -math.inf]).to(dtype))


def test_next_floats():
    x = torch.tensor([0.0, 1.0, -1.0, math.inf, math.nan])
    for dtype in (torch.float32, torch.float64):
        for to in (0.0, math.inf, -math.inf):
            equal_on_cpu(torch.nextafter, x.to(dtype), torch.full((5,), to, dtype=dtype))


def test_integers_become_floats():
    x = torch.tensor([1, 2, 5])
    equal_on_cpu(torch.special.i0, x)
    equal_on_cpu(lambda t: torch.polygamma(2, t), x)
