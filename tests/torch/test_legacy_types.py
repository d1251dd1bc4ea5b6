"""torch.npu.FloatTensor and the other legacy tensor types."""

import pytest
import torch
from null_backend import computed

pytestmark = pytest.mark.no_values


def test_legacy_type_accepts_a_size():
    assert torch.npu.FloatTensor(torch.Size([2, 3])).shape == (2, 3)
    assert torch.npu.FloatTensor([2, 3]).tolist() == computed([2, 3])


def test_legacy_type_without_device_uses_the_current_one():
    assert torch.npu.FloatTensor(2, device=None).device == torch.device("npu:0")
    assert torch.npu.FloatTensor(2, device=0).device == torch.device("npu:0")
