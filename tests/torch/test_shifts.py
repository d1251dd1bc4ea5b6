"""Shifts of integers, by too much and by less than nothing, too."""

import pytest
import torch
from against_cpu import INTEGERS, equal_on_cpu

BY = [-3, -1, 0, 1, 3, 6, 7, 8, 9, 15, 16, 31, 32, 63, 64, 70]


@pytest.mark.usefixtures("no_fallback")
@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_shifts(dtype):
    by = torch.tensor(BY).to(dtype)
    x = torch.tensor([0, 1, -1, 5, -6, 127, -128, 2**40 + 3]).to(dtype)[:, None]
    equal_on_cpu(torch.bitwise_left_shift, x, by)
    equal_on_cpu(torch.bitwise_right_shift, x, by)
    equal_on_cpu(lambda t: t << 3, x)
    equal_on_cpu(lambda t: t >> 2, x)
    equal_on_cpu(lambda t: 3 << t.clamp(0, 5), x)
    equal_on_cpu(lambda t, n: t << n, x, by)
    equal_on_cpu(lambda t, n: t >> n, x, by)


def in_place(x):
    x = x.clone().t()
    x <<= 2
    x >>= 1
    x[1] <<= x[0]
    return x


@pytest.mark.usefixtures("no_fallback")
def test_shifts_in_place():
    equal_on_cpu(in_place, torch.arange(6, dtype=torch.int32).view(3, 2))


def test_floats_are_refused():
    with pytest.raises(NotImplementedError, match="not implemented for"):  # as on the CPU
        torch.ones(2, device="npu").bitwise_left_shift(1)
