"""Comparisons and logic, also with scalars outside a dtype's range."""

import pytest
import torch
from against_cpu import both
from onnxruntime_npu import torch_device


def test_complex_number_is_nonzero_by_either_part():
    x = torch.tensor([0j, 1j, 2 + 0j])
    assert x.npu().logical_not().tolist() == [True, False, False]


def test_bitwise_ops_on_floats_are_refused_like_torch():
    with pytest.raises(NotImplementedError, match="bitwise_not"):
        torch.ones(2, device="npu").bitwise_not()
    assert torch_device.fallback_counts() == {}


@pytest.mark.usefixtures("no_fallback")
@pytest.mark.parametrize("number", [300, -300, 256, -1, 2**40 + 5, 44, 2.5])
@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16, torch.int32, torch.bool])
def test_out_of_range_scalars_compare_like_the_cpu(dtype, number):
    x = torch.tensor([0, 1, 5, 44, 100, 127]).to(dtype)
    for name in ("eq", "ne", "lt", "le", "gt", "ge"):
        got, expected = both(lambda device, name=name: getattr(x.to(device), name)(number))
        assert torch.equal(got, expected), name
