"""Storages and tensors by the name of their type."""

import warnings

import pytest
from onnxruntime_npu import npu

from row_calls import calls

_STORAGES = ["Bool", "Byte", "Short", "Long", "Int", "Half", "Char", "Double", "Float"]


@calls(*(f"npu.{kind}Storage" for kind in _STORAGES))
@pytest.mark.filterwarnings("ignore:TypedStorage is deprecated")
def _(c, name):
    _ = c.torch
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        kind = getattr(npu, name)
        storage = kind([1, 0, 1])
        assert storage.device.type == "npu" and storage.dtype == kind.dtype
        assert storage.tolist() == [1, 0, 1] and len(kind(5)) == 5
        with pytest.raises(RuntimeError, match="Not available for NPU storage"):
            kind.from_buffer(b"")


@calls(*(f"npu.{kind}Tensor" for kind in _STORAGES))
def _(c, name):
    torch = c.torch
    kind = getattr(npu, name)
    tensor = kind([1, 0, 1])
    assert tensor.device.type == "npu" and tensor.dtype == kind.dtype
    assert tensor.cpu().tolist() == [1, 0, 1]
    assert kind(2, 3).shape == (2, 3)
    assert isinstance(tensor, kind) and not isinstance(torch.ones(1), kind)
