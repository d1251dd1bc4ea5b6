"""OrtValues in NPU memory, from and to NumPy arrays and torch tensors."""

from __future__ import annotations

import ctypes
import itertools
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from onnxruntime import OrtValue
from onnxruntime.capi.onnxruntime_inference_collection import copy_tensors

from .. import _C, torch_device
from ..opdef.dtypes import NAMES, NUMBERS

if TYPE_CHECKING:
    import torch

# Element types in NPU memory: every fixed-size type except the complex ones.
_ELEMENT_TYPES = {name: n for name, n in NUMBERS.items() if not name.startswith("complex")}
_BYTES = NUMBERS["uint8"]
_ALIGNMENT = 512  # of the device's allocator


def _element_type(name: str) -> int:
    if name not in _ELEMENT_TYPES:
        raise TypeError(
            f"expected an element type of {', '.join(_ELEMENT_TYPES)}; got {name}, "
            "which has no form in NPU memory"
        )
    return _ELEMENT_TYPES[name]


def carrier_type(element_type: int) -> np.dtype:
    """Return NumPy's type of an ONNX element type, or an unsigned integer of the same width."""
    return _carrier(NAMES[element_type])


def carrier_of(value: OrtValue) -> np.ndarray:
    """Copy an OrtValue from any device into a new array of its ``carrier_type``."""
    return _download(value)[0]


def fill_with_zeros(value: OrtValue) -> None:
    """Write zeros into an OrtValue on any device."""
    if not math.prod(value.shape()):
        return
    if value.device_name() == "cpu":
        ctypes.memset(value.data_ptr(), 0, value.tensor_size_in_bytes())
        return
    kind = value.element_type()
    zeros = np.zeros(value.shape(), carrier_type(kind))
    copy_tensors([OrtValue.ortvalue_from_numpy_with_onnx_type(zeros, kind)], [value])


def _carrier(name: str) -> np.dtype:
    """NumPy's type of that name, or an unsigned integer of the same width if it has none."""
    if name.startswith("float8"):
        return np.dtype("uint8")
    return np.dtype("uint16" if name == "bfloat16" else name)


def _upload(carrier: np.ndarray, element_type: int, device_id: int) -> OrtValue:
    value = OrtValue.ortvalue_from_shape_and_type(
        list(carrier.shape), element_type, "npu", device_id, 0
    )
    if carrier.size:
        host = OrtValue.ortvalue_from_numpy_with_onnx_type(carrier, element_type)
        copy_tensors([host], [value])
    return value


def _name(value: OrtValue) -> str:
    if not isinstance(value, OrtValue):
        raise TypeError(f"expected an OrtValue, got {type(value).__name__}")
    if not value.is_tensor() or NAMES.get(value.element_type()) not in _ELEMENT_TYPES:
        raise TypeError(f"expected a tensor of a fixed-size element type, got {value.data_type()}")
    return NAMES[value.element_type()]


def _download(value: OrtValue) -> tuple[np.ndarray, str]:
    name = _name(value)
    carrier = np.empty(value.shape(), dtype=_carrier(name))
    if carrier.size and value.device_name() == "cpu":
        ctypes.memmove(carrier.ctypes.data, value.data_ptr(), carrier.nbytes)
    elif carrier.size:
        host = OrtValue.ortvalue_from_numpy_with_onnx_type(carrier, value.element_type())
        copy_tensors([value], [host])
    return carrier, name


def ortvalue_from_numpy(a: np.ndarray, device_id: int = 0) -> OrtValue:
    """Copies an array into NPU memory.

    Args:
        a: any shape; float16, bfloat16 and float8 (the types of ``ml_dtypes``), float32, float64,
            integers, bool.
        device_id: index of the logical NPU.

    Raises:
        TypeError: the array holds strings, objects or complex numbers.
    """
    a = np.asarray(a)
    name = a.dtype.name
    element_type = _element_type(name)
    carrier = np.array(a, order="C", copy=None).view(_carrier(name))
    return _upload(carrier.reshape(a.shape), element_type, device_id)


def ortvalue_to_numpy(value: OrtValue) -> np.ndarray:
    """Copies an OrtValue from any device into a new array.

    bfloat16 and float8 have the types of ``ml_dtypes``.

    Raises:
        TypeError: the value is not a tensor, or holds strings.
        ImportError: it holds bfloat16 or float8 and ``ml_dtypes`` is not installed.
    """
    carrier, name = _download(value)
    if carrier.dtype.name == name:
        return carrier
    import ml_dtypes

    return carrier.view(getattr(ml_dtypes, name))


def ortvalue_from_torch(t: torch.Tensor, device_id: int | None = None) -> OrtValue:
    """Returns an OrtValue in NPU memory that shares the memory of a dense npu tensor.

    Args:
        t: any shape and strides; any dtype except complex and quantized ones. The memory of a
            dense npu tensor is shared: writes are visible in both, and it is freed after both.
            Other tensors are copied.
        device_id: index of the logical NPU; default the tensor's own, 0 for a CPU tensor.

    Raises:
        TypeError: the dtype is not supported in NPU memory.
        ValueError: the tensor's storage was resized to less than its elements.
    """
    import torch

    name = str(t.dtype).removeprefix("torch.")
    element_type = _element_type(name)
    t = t.detach().resolve_neg()
    if t.device.type == "npu" and device_id in (None, t.device.index):
        return _share(t.contiguous(), element_type)
    host = t.cpu().contiguous()
    carrier = _carrier(name)
    if carrier.name != name:
        host = host.view(torch.uint8 if carrier.itemsize == 1 else torch.int16)
    return _upload(host.numpy().view(carrier), element_type, device_id or 0)


def _share(t: torch.Tensor, element_type: int) -> OrtValue:
    held = t.untyped_storage().nbytes() - t.storage_offset() * t.itemsize
    if t.nbytes > held:
        raise ValueError(
            f"[ortvalue_from_torch] expected a tensor with {t.nbytes} bytes of memory, got one "
            f"with {max(held, 0)}: untyped_storage().resize_() has freed them"
        )
    return _over(t, t.data_ptr(), t.nbytes, list(t.shape), element_type, t.device.index)


def _over(
    owner: Any, address: int, nbytes: int, shape: list[int], element_type: int, device_id: int
) -> OrtValue:
    """Return a value over the owner's memory at an address; the value keeps the owner alive."""
    _C.offer_memory(device_id, address, nbytes, owner)
    try:
        return OrtValue.ortvalue_from_shape_and_type(shape, element_type, "npu", device_id, 0)
    finally:
        _C.withdraw_memory()


def ortvalues_in_one_block(
    shapes: Sequence[Sequence[int]], element_types: Sequence[int], device_id: int = 0
) -> list[OrtValue]:
    """Return values, none of them empty, in one block of NPU memory, with undefined content.

    Memory for small values is allocated in segments of 2 MiB, whose ends stay unused when values
    of one size do not fill them: one block has only one such end.
    """
    sizes = [
        math.prod(shape) * _carrier(NAMES[element_type]).itemsize
        for shape, element_type in zip(shapes, element_types, strict=True)
    ]
    starts = [0, *itertools.accumulate(-(-size // _ALIGNMENT) * _ALIGNMENT for size in sizes)]
    block = OrtValue.ortvalue_from_shape_and_type([starts.pop()], _BYTES, "npu", device_id, 0)
    address = block.data_ptr()
    return [
        _over(block, address + start, size, list(shape), element_type, device_id)
        for shape, element_type, size, start in zip(
            shapes, element_types, sizes, starts, strict=True
        )
    ]


def ortvalue_to_torch(value: OrtValue) -> torch.Tensor:
    """Returns a tensor of an OrtValue, which shares the memory of a value on an NPU.

    Shared memory: the tensor is on the same npu, writes are visible in both, and the memory is
    freed after both. A value on the CPU, or any value if torch has no device npu, is copied to a
    CPU tensor.

    Raises:
        TypeError: the value is not a tensor, or holds strings.
    """
    import torch

    name = _name(value)
    if value.device_name() == "npu" and torch_device.is_registered():
        index = _C.device_of_address(value.data_ptr())
        if index >= 0:
            dtype = getattr(torch, name)
            return torch_device.tensor_over(value.data_ptr(), value.shape(), dtype, index, value)
    carrier, name = _download(value)
    if carrier.dtype.name == name:
        return torch.from_numpy(carrier)
    if carrier.dtype.itemsize == 2:
        carrier = carrier.view(np.int16)
    return torch.from_numpy(carrier).view(getattr(torch, name))
