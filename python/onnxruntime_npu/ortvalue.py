"""OrtValues in NPU memory, from and to NumPy arrays and torch tensors."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any

import numpy as np
from onnxruntime import OrtValue
from onnxruntime.capi.onnxruntime_inference_collection import copy_tensors

if TYPE_CHECKING:
    import torch

# ONNX element types by name, as NumPy, ml_dtypes and torch all spell them.
_ELEMENT_TYPES = {
    "float32": 1,
    "uint8": 2,
    "int8": 3,
    "uint16": 4,
    "int16": 5,
    "int32": 6,
    "int64": 7,
    "bool": 9,
    "float16": 10,
    "float64": 11,
    "uint32": 12,
    "uint64": 13,
    "bfloat16": 16,
    "float8_e4m3fn": 17,
    "float8_e4m3fnuz": 18,
    "float8_e5m2": 19,
    "float8_e5m2fnuz": 20,
}
_NAMES = {number: name for name, number in _ELEMENT_TYPES.items()}


def _element_type(name: str) -> int:
    if name not in _ELEMENT_TYPES:
        raise TypeError(
            f"expected an element type of {', '.join(_ELEMENT_TYPES)}; got {name}, "
            "which has no form in NPU memory"
        )
    return _ELEMENT_TYPES[name]


def _carrier(name: str) -> np.dtype:
    """NumPy's own type of that name, or for what it lacks an unsigned one as wide."""
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


def _download(value: OrtValue) -> tuple[np.ndarray, str]:
    if not value.is_tensor() or value.element_type() not in _NAMES:
        raise TypeError(f"expected a tensor of a fixed-size element type, got {value.data_type()}")
    name = _NAMES[value.element_type()]
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
        a: any shape; float16, bfloat16 and float8 (as ``ml_dtypes`` spells them), float32, float64,
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
    """Copies an OrtValue from wherever it lives into a new array.

    bfloat16 and float8 come as the types of ``ml_dtypes``.

    Raises:
        TypeError: the value is no tensor, or holds strings.
        ImportError: it holds bfloat16 or float8 and ``ml_dtypes`` is not installed.
    """
    carrier, name = _download(value)
    if carrier.dtype.name == name:
        return carrier
    import ml_dtypes

    return carrier.view(getattr(ml_dtypes, name))


def ortvalue_from_torch(t: torch.Tensor, device_id: int = 0) -> OrtValue:
    """Copies a torch tensor into NPU memory.

    Args:
        t: any shape and strides; any dtype but complex and quantized ones.
        device_id: index of the logical NPU.

    Raises:
        TypeError: the dtype has no form in NPU memory.
    """
    import torch

    name = str(t.dtype).removeprefix("torch.")
    element_type = _element_type(name)
    host = t.detach().cpu().resolve_neg().contiguous()
    carrier = _carrier(name)
    if carrier.name != name:
        host = host.view(torch.uint8 if carrier.itemsize == 1 else torch.int16)
    return _upload(host.numpy().view(carrier), element_type, device_id)


def ortvalue_to_torch(value: Any) -> torch.Tensor:
    """Copies an OrtValue from wherever it lives into a new torch tensor in CPU memory.

    Raises:
        TypeError: the value is no tensor, or holds strings.
    """
    import torch

    carrier, name = _download(value)
    if carrier.dtype.name == name:
        return torch.from_numpy(carrier)
    if carrier.dtype.itemsize == 2:
        carrier = carrier.view(np.int16)
    return torch.from_numpy(carrier).view(getattr(torch, name))
