"""Unary and binary elementwise functions of floats."""

import math

import pytest
import torch
from against_cpu import FLOATS, both, check, equal_on_cpu, make

pytestmark = pytest.mark.usefixtures("no_fallback")

dtypes = pytest.mark.parametrize("dtype", FLOATS, ids=str)


@dtypes
def test_small_functions(dtype):
    x = make(dtype, 3, 5)
    weight = torch.linspace(-0.5, 1.5, 15).view(3, 5).to(dtype)
    check(lambda t, w: torch.lerp(t, t.flip(0), w), x, weight)
    check(torch.sinc, x)
    inside = x.detach().sigmoid().requires_grad_()
    check(torch.logit, inside)
    check(lambda t: t.clone().logit_(), inside)
    check(lambda t: torch.logit(t * 1.5 - 0.2, eps=0.1), inside)
    infinite = torch.tensor([float("nan"), float("inf"), -float("inf"), 2]).to(dtype)
    for options in ({}, {"nan": 7.0, "posinf": 8.0, "neginf": 9.0}):
        expected = infinite.nan_to_num(**options)
        assert torch.equal(infinite.npu().nan_to_num(**options).cpu(), expected)
    assert torch.arange(3).npu().nan_to_num().tolist() == [0, 1, 2]


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_erfinv_and_trunc(dtype):
    y = torch.cat(
        [torch.linspace(-1, 1, 401), torch.tensor([1e-30, -1e-7, 0.9999999, 1.5, math.nan])]
    )
    equal_on_cpu(torch.erfinv, y.to(dtype))
    equal_on_cpu(torch.trunc, y.to(dtype) * 3)
    equal_on_cpu(torch.trunc, torch.tensor([3, -4]))
    if dtype == torch.float64:
        tail = 1 - torch.logspace(-15, -1, 50, dtype=torch.float64)
        equal_on_cpu(torch.erfinv, tail, rtol=1e-12, atol=0)
    weight = torch.empty(64, 32, device="npu")
    torch.nn.init.trunc_normal_(weight, std=0.02)
    assert weight.abs().max().item() <= 2 and 0.015 < weight.std().item() < 0.025


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_unary_float_functions(dtype):
    x = torch.linspace(0.01, 4, 50, dtype=torch.float64).to(dtype)
    names = ("acosh", "asinh", "atan", "cosh", "erfc", "exp2", "expm1", "frac", "lgamma", "digamma")
    names += ("log10", "log1p", "log2", "sinh", "tan")
    for function in (getattr(torch, name) for name in names):
        equal_on_cpu(function, x)
        equal_on_cpu(function, x.view(5, 10).t())
        equal_on_cpu(function, torch.tensor([-math.inf, -1.0, -0.0, math.inf, math.nan]).to(dtype))
    for function in (torch.acos, torch.asin, torch.atanh):
        equal_on_cpu(function, x / 4)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_binary_float_functions(dtype):
    special = [-math.inf, -2.5, -0.0, 0.0, 0.3, 1.0, math.inf, math.nan]
    a = torch.tensor(special).to(dtype)
    for name in ("atan2", "copysign", "hypot", "logaddexp", "logaddexp2", "xlogy", "fmax", "fmin"):
        function = getattr(torch, name)
        equal_on_cpu(function, a, a[:, None])
        equal_on_cpu(function, a[:, None], a)
    for name in ("clamp_min", "clamp_max"):
        equal_on_cpu(getattr(torch, name), a, a[:, None])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64])
def test_cross_products(dtype):
    a, b = (torch.arange(24).reshape(2, 3, 4).roll(n).to(dtype) for n in (0, 5))
    equal_on_cpu(lambda x, y: torch.linalg.cross(x, y, dim=1), a, b)
    equal_on_cpu(lambda x, y: torch.cross(x.transpose(1, 2), y[:1].transpose(1, 2), dim=-1), a, b)
    equal_on_cpu(lambda x, y: torch.linalg.cross(x[:0], y[:0], dim=1), a, b)
    with pytest.raises(RuntimeError, match="must have length 3"):
        torch.linalg.cross(a.npu(), b.npu(), dim=2)


def test_powers_of_a_scalar():
    equal_on_cpu(lambda t: torch.pow(0.9, t), torch.randn(3, 4))
    equal_on_cpu(lambda t: 2**t, torch.tensor([0, 3, 5]))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.half, torch.bfloat16])
@pytest.mark.parametrize("function", [torch.sign, torch.sgn, torch.Tensor.sign_])
def test_sign_of_nan_is_0(function, dtype):
    values = [[float("nan"), -0.0, 0.0], [float("inf"), -float("inf"), 1e-7]]

    def sign(device):
        return function(torch.tensor(values, dtype=dtype, device=device).t())

    got, expected = both(sign)
    assert torch.equal(got, expected) and got[0, 0] == 0
    assert torch.equal(
        torch.tensor([-3, 0, 9], device="npu").sign().cpu(), torch.tensor([-1, 0, 1])
    )


def test_digamma_at_poles_and_far_away():
    x = [-30.25, -2.5, -2.0, -1e-9, 1e-9, 1.4616321449683623, 9.99, 10.0, 1e6, math.nan, -math.inf]
    equal_on_cpu(torch.digamma, torch.tensor(x, dtype=torch.float64), rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int64, torch.bool], ids=str)
def test_functions_of_floats_take_integers(dtype):
    x = torch.tensor([0, 1, 3, 100]).to(dtype)
    equal_on_cpu(torch.fmax, x, x.flip(0))
    equal_on_cpu(torch.fmin, x, x.flip(0)[:, None])
    if dtype != torch.bool:
        for function in (torch.ceil, torch.floor, torch.round, torch.neg):
            equal_on_cpu(function, x)
        equal_on_cpu(lambda t: t.clone().ceil_(), x)
        equal_on_cpu(torch.pow, x, x.remainder(5)[:, None])
    equal_on_cpu(torch.logit, x)


@dtypes
def test_rounding_to_decimals(dtype):
    x = torch.tensor([0.125, -2.675, 1234.5678, -0.05, math.inf, math.nan]).to(dtype)
    for decimals in (-2, 0, 1, 2):
        wide = x.float() if dtype.itemsize == 2 else x
        expected = torch.round(wide, decimals=decimals).to(dtype)
        got = torch.round(x.npu(), decimals=decimals)
        torch.testing.assert_close(got.cpu(), expected, equal_nan=True)
