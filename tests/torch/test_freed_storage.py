"""Tensors whose storage was resized: any call is an error, and works after it is resized back."""

import onnxruntime_npu
import pytest
import torch
import torch.nn.functional as F
from onnxruntime_npu import npu

CALLS = {
    "add": lambda a: a + 1,
    "add_": lambda a: a.add_(1),
    "out": lambda a: torch.add(torch.ones(5, device="npu"), 1, out=a),
    "fill_": lambda a: a.fill_(1),
    "zero_": lambda a: a.zero_(),
    "normal_": lambda a: a.normal_(),
    "copy of it": lambda a: a.clone(),
    "copy into it": lambda a: a.copy_(torch.ones(5, device="npu")),
    "copy to the host": lambda a: a.cpu(),
    "copy from the host": lambda a: a.copy_(torch.ones(5)),
    "non-blocking copy": lambda a: a.copy_(torch.ones(5).pin_memory(), non_blocking=True),
    "flip": lambda a: a.flip(0),
    "cat": lambda a: torch.cat([a, a]),
    "where": lambda a: torch.where(a > 0, a, a),
    "cast": lambda a: a.half(),
    "print": str,
    "fused operator": lambda a: torch.ops.npu.npu_rms_norm(torch.ones(1, 5, device="npu"), a),
    "foreach": lambda a: torch._foreach_add_([a], 1),
    "linear": lambda a: F.linear(torch.ones(5, device="npu"), torch.ones(5, 5, device="npu"), a),
}


@pytest.fixture
def freed():
    tensor = torch.arange(5.0, device="npu")
    tensor.untyped_storage().resize_(0)
    return tensor


@pytest.mark.parametrize("name", CALLS)
def test_freed_storage_is_an_error(freed, name):
    with pytest.raises(RuntimeError, match=r"expected a storage of 20 bytes or more .* got 0: "):
        CALLS[name](freed)
    freed.untyped_storage().resize_(20)
    assert freed.fill_(2).sum().item() == 10


def test_part_of_a_storage_is_an_error():
    whole = torch.ones(1 << 20, device="npu")
    first, second = whole[: 1 << 10], whole.view(2, -1).t()[:, 1]
    whole.untyped_storage().resize_(4 << 10)
    npu.empty_cache()
    assert first.sum().item() == 1 << 10
    for tensor in (whole, second):
        with pytest.raises(RuntimeError, match=r"expected a storage of 4194304 bytes"):
            tensor + 1


def test_optimizer_of_freed_parameters_is_an_error():
    parameter = torch.nn.Parameter(torch.ones(5, device="npu"))
    parameter.grad = torch.ones(5, device="npu")
    optimizer = torch.optim.AdamW([parameter], fused=True)
    parameter.untyped_storage().resize_(0)
    with pytest.raises(RuntimeError, match="expected a storage of 20 bytes"):
        optimizer.step()


def test_freed_storage_has_views_without_elements(freed):
    assert freed[:0].sum().item() == 0 and (freed[:0] + 1).shape == (0,)


def test_ort_value_of_a_freed_storage_is_an_error(freed):
    with pytest.raises(ValueError, match=r"expected a tensor with 20 bytes of memory, got .* 0: "):
        onnxruntime_npu.ortvalue_from_torch(freed)
    whole = torch.arange(8.0, device="npu")
    value = onnxruntime_npu.ortvalue_from_torch(whole[3:])  # an offset is not a lack of memory
    assert onnxruntime_npu.ortvalue_to_numpy(value).tolist() == [3, 4, 5, 6, 7]
