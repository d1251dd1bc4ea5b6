"""Storage formats of npu tensors: ``Format``, ``npu_format_cast``, ``get_npu_format`` and friends.

An Ascend device may store a matrix in tiles (FRACTAL_NZ and others). On the host NPU the format is
only a label of the storage, which scripts set and read; it never changes the layout.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from enum import IntEnum
from typing import Any

import torch
from torch._subclasses.fake_tensor import is_fake


class Format(IntEnum):
    """Formats by their numbers in Ascend's interfaces."""

    UNDEFINED = -1
    NCHW = 0
    NHWC = 1
    ND = 2
    NC1HWC0 = 3
    FRACTAL_Z = 4
    NC1HWC0_C04 = 12
    HWCN = 16
    NDHWC = 27
    FRACTAL_NZ = 29
    NCDHW = 30
    NDC1HWC0 = 32
    FRACTAL_Z_3D = 33
    NC = 35
    NCL = 47
    FRACTAL_NZ_C0_16 = 50
    FRACTAL_NZ_C0_32 = 51
    FRACTAL_NZ_C0_2 = 52
    FRACTAL_NZ_C0_4 = 53
    FRACTAL_NZ_C0_8 = 54

    def __str__(self) -> str:
        return self.name


# Formats that are always allowed; others are private and need `allow_internal_format`.
_PLAIN = {
    Format.NCHW,
    Format.NHWC,
    Format.ND,
    Format.HWCN,
    Format.NDHWC,
    Format.NCDHW,
    Format.NC,
    Format.NCL,
}
_LABEL = "_npu_format"


def get_npu_format(input: torch.Tensor) -> Format:
    """Return the format of a tensor's storage.

    Raises:
        RuntimeError: ``input`` is not on an npu.
    """
    _check_npu("get_npu_format", input)
    label = getattr(input.untyped_storage(), _LABEL, None)
    return _natural(input.dim()) if label is None else label


def npu_format_cast(
    input: torch.Tensor,
    acl_format: int | torch.Tensor,
    *,
    customize_dtype: int | None = None,
    input_dtype: int | None = None,
) -> torch.Tensor:
    """Return the tensor in another format; or the tensor itself if nothing changes.

    A trace has a copy instead, which is the node that torch_npu's exporter writes.

    Args:
        input: a tensor on an npu, any shape and dtype.
        acl_format: a Format or its number, or a tensor with that format.
        customize_dtype: dtype of tiles; accepted, unused.
        input_dtype: dtype of the bytes if torch lacks it; accepted, unused.

    Raises:
        RuntimeError: the tensor is not on an npu, or there is no such format.
    """
    if is_fake(input):
        return _traced_cast(input, acl_format)
    _check_npu("npu_format_cast", input)
    wanted = _storable("npu_format_cast", acl_format, input.dim())
    present = get_npu_format(input)
    if present is wanted:
        return input
    result = input if {present, wanted} <= _PLAIN else input.clone()
    setattr(result.untyped_storage(), _LABEL, wanted)
    return result


def npu_format_cast_(
    input: torch.Tensor,
    acl_format: int | torch.Tensor,
    *,
    customize_dtype: int | None = None,
    input_dtype: int | None = None,
) -> torch.Tensor:
    """Change a storage's format in place; copies the data if ``acl_format`` is a tensor.

    Raises:
        RuntimeError: the tensor is not on an npu, or there is no such format.
    """
    _check_npu("npu_format_cast_", input)
    if isinstance(acl_format, torch.Tensor):
        _check_npu("npu_format_cast_", acl_format)
        return input.copy_(acl_format)
    wanted = _storable("npu_format_cast_", acl_format, input.dim())
    setattr(input.untyped_storage(), _LABEL, wanted)
    return input


def empty_with_format(
    size: Sequence[int],
    *,
    dtype: torch.dtype | None = None,
    layout: torch.layout | None = None,
    device: Any = None,
    pin_memory: bool | None = None,
    acl_format: int = Format.ND,
    base_addr_aligned_kb: int | None = None,
) -> torch.Tensor:
    """Return an uninitialised npu tensor in a format; every address is aligned to 512 bytes.

    Raises:
        RuntimeError: the device is not an npu, there is no such format, or memory is to be pinned.
    """
    if pin_memory:
        raise RuntimeError(
            "[empty_with_format] expected no pin_memory, got True: only dense CPU tensors can be "
            "pinned, such as torch.empty(size, pin_memory=True)"
        )
    result = torch.empty(
        tuple(size), dtype=dtype, layout=layout, device="npu" if device is None else device
    )
    return npu_format_cast_(result, acl_format)


def get_storage_size(input: torch.Tensor) -> int:
    """Return the size of the tensor's storage in elements of its dtype.

    Raises:
        RuntimeError: ``input`` is not on an npu.
    """
    _check_npu("get_storage_size", input)
    return math.ceil(input.untyped_storage().nbytes() / input.element_size())


def _traced_cast(input: torch.Tensor, acl_format: int | torch.Tensor) -> torch.Tensor:
    """Return what the operator does; a trace knows no other format of a tensor than its own."""
    if isinstance(acl_format, torch.Tensor):
        acl_format = _natural(acl_format.dim())
    return torch.ops.npu._npu_format_cast.default(input, int(acl_format))


def _natural(dimensions: int) -> Format:
    return {4: Format.NCHW, 5: Format.NCDHW}.get(dimensions, Format.ND)


def _check_npu(name: str, tensor: torch.Tensor) -> None:
    if tensor.device.type != "npu":
        raise RuntimeError(
            f"[{name}] expected all tensors to be on npu, got one on {tensor.device}; move it with "
            ".npu()"
        )


def _storable(name: str, acl_format: int | torch.Tensor, dimensions: int) -> Format:
    """Return the label of a storage for a requested ``acl_format``."""
    from ..npu.options import get_option

    if isinstance(acl_format, torch.Tensor):
        return get_npu_format(acl_format)
    try:
        wanted = Format(acl_format)
    except ValueError:
        known = ", ".join(str(int(f)) for f in Format)
        raise RuntimeError(f"[{name}] expected acl_format of {known}, got {acl_format}") from None
    if wanted in _PLAIN or wanted is Format.UNDEFINED:
        return _natural(dimensions) if wanted is Format.UNDEFINED else wanted
    if get_option("ALLOW_INTERNAL_FORMAT") != "enable":
        warnings.warn(
            f"{name} keeps the format {_natural(dimensions)} instead of {wanted}, because "
            "torch.npu.config.allow_internal_format is False",
            stacklevel=3,
        )
        return _natural(dimensions)
    if dimensions < 2:
        return _natural(dimensions)
    return wanted
