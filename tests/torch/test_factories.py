"""Factories: eye, linspace, tril_indices and triu_indices."""

import pytest
import torch
from against_cpu import FLOATS, INTEGERS

pytestmark = pytest.mark.usefixtures("no_fallback")


def test_triangle_indices():
    for make_indices in (torch.tril_indices, torch.triu_indices):
        for options in ({}, {"offset": 1}, {"dtype": torch.int32}):
            got = make_indices(3, 4, device="npu", **options)
            assert got.device.type == "npu" and torch.equal(
                got.cpu(), make_indices(3, 4, **options)
            )


@pytest.mark.parametrize("dtype", FLOATS + INTEGERS, ids=str)
def test_eye_and_linspace(dtype):
    for size in ((4,), (3, 5), (5, 3), (0, 2)):
        assert torch.equal(
            torch.eye(*size, device="npu", dtype=dtype).cpu(), torch.eye(*size, dtype=dtype)
        )
    for arguments in ((0, 10, 11), (3, -5, 7), (2, 9, 1), (1, 2, 0), (0, 100, 33)):
        if dtype == torch.uint8 and arguments[1] < 0:
            continue
        # The CPU also rounds the step to 16 bits.
        exact = torch.float32 if dtype.itemsize == 2 and dtype.is_floating_point else dtype
        expected = torch.linspace(*arguments, dtype=exact).to(dtype)
        torch.testing.assert_close(
            torch.linspace(*arguments, dtype=dtype, device="npu").cpu(), expected
        )


@pytest.mark.usefixtures("no_fallback")
def test_forward_derivatives_of_matrices():
    x, weight = torch.randn(3), torch.randn(4, 3)

    def derivative(w, x):
        return torch.func.jacfwd(lambda t: torch.tanh(w @ t))(x)

    torch.testing.assert_close(derivative(weight.npu(), x.npu()).cpu(), derivative(weight, x))


def test_logspace():
    for arguments in ((0, 3, 4), (1.5, -2.25, 7), (2, 5, 1), (0, 1, 0)):
        for dtype in (torch.float32, torch.float64, torch.float16, torch.int64):
            got = torch.logspace(*arguments, base=2, dtype=dtype, device="npu")
            expected = torch.logspace(*arguments, base=2, dtype=dtype)
            # the CPU computes powers in float32 where the device does in float64
            torch.testing.assert_close(
                got.cpu(), expected, rtol=1e-3 if dtype == torch.half else 1e-5, atol=0
            )
