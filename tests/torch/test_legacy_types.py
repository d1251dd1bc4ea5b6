"""torch.npu.FloatTensor and the other types of that kind."""

import pytest
import torch
from null_backend import computed

pytestmark = pytest.mark.no_values


def test_a_legacy_type_takes_a_size():
    assert torch.npu.FloatTensor(torch.Size([2, 3])).shape == (2, 3)
    assert torch.npu.FloatTensor([2, 3]).tolist() == computed([2, 3])


def test_a_legacy_type_without_a_device_is_on_the_current_one():
    assert torch.npu.FloatTensor(2, device=None).device == torch.device("npu:0")
    assert torch.npu.FloatTensor(2, device=0).device == torch.device("npu:0")
