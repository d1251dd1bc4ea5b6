"""Typed storages and tensor types: ``torch.npu.FloatStorage``, ``torch.npu.FloatTensor``."""

from __future__ import annotations

import functools
from typing import Any

from .. import torch_bridge

DTYPES = {
    "Bool": "bool",
    "Byte": "uint8",
    "Char": "int8",
    "Short": "int16",
    "Int": "int32",
    "Long": "int64",
    "Half": "float16",
    "BFloat16": "bfloat16",
    "Float": "float32",
    "Double": "float64",
}
NAMES = [f"{name}{kind}" for name in DTYPES for kind in ("Storage", "Tensor")]


@functools.cache
def legacy_type(name: str) -> type:
    """Make the class of that name, such as ``FloatStorage``."""
    torch_bridge.ensure_registered()
    if name.endswith("Storage"):
        return _storage_type(name, DTYPES[name.removesuffix("Storage")])
    return _tensor_type(name, DTYPES[name.removesuffix("Tensor")])


def _storage_type(name: str, dtype_name: str) -> type:
    import torch
    from torch.storage import _LegacyStorage, _warn_typed_storage_removal

    dtype = getattr(torch, dtype_name)

    class classproperty:
        def __init__(self, get: Any) -> None:
            self._get = get

        def __get__(self, _: Any, owner: Any) -> Any:
            return self._get(owner)

    def refused(what: str) -> classmethod:
        def call(cls: type, *args: Any, **kwargs: Any) -> Any:
            raise RuntimeError(f"{what}: Not available for NPU storage")

        return classmethod(call)

    def public_dtype(cls: Any) -> Any:
        _warn_typed_storage_removal()
        return dtype

    made = type(
        name,
        (_LegacyStorage,),
        {
            # torch derives the device from the last part of the module name.
            "__module__": "torch.npu",
            "__doc__": f"Typed storage of torch.{dtype_name} on the npu.",
            "dtype": classproperty(public_dtype),
            "_dtype": classproperty(lambda cls: dtype),
            "from_buffer": refused("from_buffer"),
            "_new_with_weak_ptr": refused("_new_with_weak_ptr"),
            "_new_shared_filename": refused("_new_shared_filename"),
        },
    )
    torch._storage_classes.add(made)
    return made


def _tensor_type(name: str, dtype_name: str) -> type:
    import torch

    wanted = getattr(torch, dtype_name)

    class TensorType(type):
        def __instancecheck__(cls, value: object) -> bool:
            return (
                isinstance(value, torch.Tensor)
                and value.device.type == "npu"
                and value.dtype == wanted
            )

        def __call__(cls, *args: Any, device: Any = None) -> Any:
            device = "npu" if device is None else device
            if len(args) == 1 and isinstance(args[0], torch.Tensor):
                if not isinstance(args[0], cls):
                    raise TypeError(
                        f"{name}: expected an npu tensor of {wanted}, got {args[0].dtype} on "
                        f"{args[0].device}"
                    )
                return args[0].view_as(args[0])
            if len(args) == 1 and isinstance(args[0], torch.Size):
                args = tuple(args[0])
            elif len(args) == 1 and not isinstance(args[0], int):  # a list, an array of numpy
                return torch.tensor(args[0], dtype=wanted, device=device)
            return torch.empty(args or (0,), dtype=wanted, device=device)

    return TensorType(
        name,
        (),
        {
            "__module__": "torch.npu",
            "__doc__": f"Makes npu tensors of torch.{dtype_name}, and recognises them.",
            "dtype": wanted,
            "is_sparse": False,
        },
    )
