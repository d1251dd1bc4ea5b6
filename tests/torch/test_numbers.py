"""Operators that no ONNX kernel computes: rounding divisions, erfinv, rows of numbers, norms."""

import math

import pytest
import torch
import torch.nn.functional as F

pytestmark = pytest.mark.usefixtures("no_fallback")
FLOATS = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
INTEGERS = [torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64]


def check(function, *tensors, **tolerance):
    expected = function(*tensors)
    got = function(*(t.npu() for t in tensors))
    assert got.device.type == "npu" and got.dtype == expected.dtype
    torch.testing.assert_close(got.cpu(), expected, equal_nan=True, **tolerance)


@pytest.mark.parametrize("mode", ["floor", "trunc", None])
@pytest.mark.parametrize("dtype", FLOATS + INTEGERS, ids=str)
def test_division_that_rounds(dtype, mode):
    a = torch.tensor([[7, -7, 7, -7, 0, 100, -128, 1]]).to(dtype)
    b = torch.tensor([[2], [-2], [3], [-1], [7]]).to(dtype)
    b[b == 0] = 1
    check(lambda x, y: torch.div(x, y, rounding_mode=mode), a, b)
    check(lambda x: torch.div(x, 3, rounding_mode=mode), a)
    check(lambda x: x.t().clone().t().div_(3, rounding_mode=mode) if mode else x / 3, a)
    if mode == "floor":
        check(lambda x, y: x // y, a, b)
        check(lambda x: x.clone().floor_divide_(3), a)
    if dtype.is_floating_point:
        special = torch.tensor([0.0, -0.0, math.inf, -math.inf, math.nan, 1.0]).to(dtype)
        check(lambda x, y: torch.div(x, y, rounding_mode=mode), special, special[:, None])


def test_an_integer_divided_by_zero_is_an_error():
    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        (torch.ones(3, dtype=torch.int64, device="npu") // 0).cpu()
    assert torch.ones(2, device="npu").sum().item() == 2


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_erfinv_and_trunc(dtype):
    y = torch.cat(
        [torch.linspace(-1, 1, 401), torch.tensor([1e-30, -1e-7, 0.9999999, 1.5, math.nan])]
    )
    check(torch.erfinv, y.to(dtype))
    check(torch.trunc, y.to(dtype) * 3)
    check(torch.trunc, torch.tensor([3, -4]))
    if dtype == torch.float64:
        tail = 1 - torch.logspace(-15, -1, 50, dtype=torch.float64)
        check(torch.erfinv, tail, rtol=1e-12, atol=0)
    weight = torch.empty(64, 32, device="npu")
    torch.nn.init.trunc_normal_(weight, std=0.02)
    assert weight.abs().max().item() <= 2 and 0.015 < weight.std().item() < 0.025


@pytest.mark.parametrize("dtype", FLOATS + INTEGERS, ids=str)
def test_eye_and_linspace(dtype):
    for size in ((4,), (3, 5), (5, 3), (0, 2)):
        assert torch.equal(
            torch.eye(*size, device="npu", dtype=dtype).cpu(), torch.eye(*size, dtype=dtype)
        )
    for arguments in ((0, 10, 11), (3, -5, 7), (2, 9, 1), (1, 2, 0), (0, 100, 33)):
        if dtype == torch.uint8 and arguments[1] < 0:
            continue
        # The CPU rounds the step, too, to 16 bits.
        exact = torch.float32 if dtype.itemsize == 2 and dtype.is_floating_point else dtype
        expected = torch.linspace(*arguments, dtype=exact).to(dtype)
        torch.testing.assert_close(
            torch.linspace(*arguments, dtype=dtype, device="npu").cpu(), expected
        )


@pytest.mark.parametrize("order", [2, 1, 3, 0, math.inf, -math.inf])
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_vector_norms(dtype, order):
    x = torch.randn(4, 5, 6, generator=torch.Generator().manual_seed(0)).to(dtype)
    for axes in (None, 1, (0, 2)):
        # One rounding of sums in float32; the CPU may round in between.
        check(
            lambda t, axes=axes: torch.linalg.vector_norm(t, order, axes),
            x,
            rtol=2**-7 if x.itemsize == 2 else 1e-5,
            atol=0,
        )
    check(lambda t: torch.linalg.vector_norm(t, order, 1, keepdim=True), x, rtol=2**-7, atol=0)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_functions_of_one_float(dtype):
    x = torch.linspace(0.01, 4, 50, dtype=torch.float64).to(dtype)
    names = ("acosh", "asinh", "atan", "cosh", "erfc", "exp2", "expm1", "frac", "lgamma")
    names += ("log10", "log1p", "log2", "sinh", "tan")
    for function in (getattr(torch, name) for name in names):
        check(function, x)
        check(function, x.view(5, 10).t())
        check(function, torch.tensor([-math.inf, -1.0, -0.0, math.inf, math.nan]).to(dtype))
    for function in (torch.acos, torch.asin, torch.atanh):
        check(function, x / 4)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_functions_of_two_floats(dtype):
    special = [-math.inf, -2.5, -0.0, 0.0, 0.3, 1.0, math.inf, math.nan]
    a = torch.tensor(special).to(dtype)
    for name in ("atan2", "copysign", "hypot", "logaddexp", "xlogy"):
        function = getattr(torch, name)
        check(function, a, a[:, None])
        check(function, a[:, None], a)
    for name in ("clamp_min", "clamp_max"):
        check(getattr(torch, name), a, a[:, None])


@pytest.mark.parametrize("dtype", [d for d in FLOATS + INTEGERS if d != torch.bfloat16], ids=str)
def test_histograms(dtype):
    x = torch.tensor([0, 1, 1, 2, 5, 7, 7, 9]).to(dtype)
    for bins, low, high in ((4, 0, 8), (3, 0, 0), (10, 2, 7), (1, 3, 3)):
        expected = torch.histc(x.double(), bins, low, high).to(dtype)
        assert torch.equal(torch.histc(x.npu(), bins, low, high).cpu(), expected)
    assert torch.histc(x.npu()[:0], 2).tolist() == [0, 0]
    for bad in ((0, 0, 1), (2, 3, 1), (2, 0, math.inf)):
        with pytest.raises(RuntimeError, match=r"torch\.histc"):
            torch.histc(x.npu(), *bad)


def test_losses_and_powers():
    a, b = torch.randn(3, 4), torch.randn(3, 4)
    for reduction in ("mean", "sum", "none"):
        x, y = a.npu().requires_grad_(), a.clone().requires_grad_()
        loss, expected = (F.mse_loss(t, b.to(t.device), reduction=reduction) for t in (x, y))
        loss.sum().backward()
        expected.sum().backward()
        torch.testing.assert_close(loss.detach().cpu(), expected.detach())
        torch.testing.assert_close(x.grad.cpu(), y.grad)
    check(lambda t: torch.pow(0.9, t), a)
    check(lambda t: 2**t, torch.tensor([0, 3, 5]))
