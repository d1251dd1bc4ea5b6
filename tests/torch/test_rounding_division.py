"""Division with a rounding mode."""

import math

import pytest
import torch
from against_cpu import FLOATS, INTEGERS, equal_on_cpu


@pytest.mark.usefixtures("no_fallback")
@pytest.mark.parametrize("mode", ["floor", "trunc", None])
@pytest.mark.parametrize("dtype", FLOATS + INTEGERS, ids=str)
def test_rounding_division(dtype, mode):
    a = torch.tensor([[7, -7, 7, -7, 0, 100, -128, 1]]).to(dtype)
    b = torch.tensor([[2], [-2], [3], [-1], [7]]).to(dtype)
    b[b == 0] = 1
    equal_on_cpu(lambda x, y: torch.div(x, y, rounding_mode=mode), a, b)
    equal_on_cpu(lambda x: torch.div(x, 3, rounding_mode=mode), a)
    equal_on_cpu(lambda x: x.t().clone().t().div_(3, rounding_mode=mode) if mode else x / 3, a)
    if mode == "floor":
        equal_on_cpu(lambda x, y: x // y, a, b)
        equal_on_cpu(lambda x: x.clone().floor_divide_(3), a)
    if dtype.is_floating_point:
        special = torch.tensor([0.0, -0.0, math.inf, -math.inf, math.nan, 1.0]).to(dtype)
        equal_on_cpu(lambda x, y: torch.div(x, y, rounding_mode=mode), special, special[:, None])


@pytest.mark.usefixtures("no_fallback")
def test_integer_division_by_zero_is_an_error():
    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        (torch.ones(3, dtype=torch.int64, device="npu") // 0).cpu()
    assert torch.ones(2, device="npu").sum().item() == 2


@pytest.mark.parametrize("mode", ["floor", "trunc"])
def test_scalar_divisor_of_16_bit_floats_is_not_rounded(mode):
    x = torch.tensor([72.1875, 144.375, 100.0]).half()  # 72.2 rounds to 72.1875 in float16
    assert torch.div(x.npu(), 72.2, rounding_mode=mode).tolist() == [0, 1, 1]
