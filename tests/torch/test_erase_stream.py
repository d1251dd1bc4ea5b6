"""Marks of streams on the memory of tensors: torch_npu.erase_stream."""

import onnxruntime_npu
import pytest
import torch
from onnxruntime_npu import erase_stream, npu

pytestmark = pytest.mark.no_values

SIZE = 1 << 20


def _freed_while_a_stream_uses_it(erase):
    """Return the address of a tensor that was freed, and that of the next one of its size."""
    npu.synchronize()
    npu.empty_cache()
    side, gate = npu.Stream(), npu.ExternalEvent()
    with npu.stream(side):
        gate.wait()
    tensor = torch.empty(SIZE, device="npu")
    address = tensor.data_ptr()
    tensor[5:].record_stream(side)
    if erase:
        erase_stream(tensor[7:], side)
    del tensor
    following = torch.empty(SIZE, device="npu").data_ptr()
    gate.record(npu.default_stream())
    npu.synchronize()
    return address, following


def test_erased_mark_does_not_hold_the_memory_back():
    address, following = _freed_while_a_stream_uses_it(erase=False)
    assert following != address
    address, following = _freed_while_a_stream_uses_it(erase=True)
    assert following == address


def test_nothing_to_erase():
    side = npu.Stream()
    erase_stream(torch.empty(0, device="npu"), side)
    tensor = torch.empty(4, device="npu")
    erase_stream(tensor, side)
    erase_stream(tensor, npu.default_stream())


def test_memory_of_another_allocator_is_left_alone():
    swapped = onnxruntime_npu.empty_with_swapped_memory([16])
    side = npu.Stream()
    with pytest.warns(
        UserWarning, match=r"\[erase_stream\] the tensor's memory is not the caching"
    ):
        erase_stream(swapped, side)


def test_wrong_types():
    side = npu.Stream()
    with pytest.raises(TypeError, match=r"expected a tensor on an npu, got a tensor on cpu"):
        erase_stream(torch.empty(4), side)
    with pytest.raises(TypeError, match=r"expected a tensor on an npu, got list"):
        erase_stream([1.0], side)
    with pytest.raises(TypeError, match=r"expected a torch.npu.Stream, got int"):
        erase_stream(torch.empty(4, device="npu"), 3)
