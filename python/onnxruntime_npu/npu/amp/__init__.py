"""Automatic mixed precision: torch's autocast and gradient scaler for the npu device."""

from __future__ import annotations

import importlib
from typing import Any

__all__ = [
    "get_amp_supported_dtype",
    "get_autocast_dtype",
    "is_autocast_enabled",
    "set_autocast_dtype",
    "set_autocast_enabled",
]


def device_type() -> str:
    """Return torch's name of the npu device: the torch bridge renames PrivateUse1."""
    import torch

    return torch._C._get_privateuse1_backend_name()


def get_amp_supported_dtype() -> list[Any]:
    """Return the dtypes that autocast may use: float16, bfloat16, float32."""
    import torch

    return [torch.float16, torch.bfloat16, torch.float32]


def is_autocast_enabled() -> bool:
    """Return whether autocast is on for npu in this thread."""
    import torch

    return torch.is_autocast_enabled(device_type())


def set_autocast_enabled(enable: bool) -> None:
    """Switch autocast for npu on or off in this thread.

    Raises:
        TypeError: ``enable`` is not a bool.
    """
    import torch

    if not isinstance(enable, bool):
        raise TypeError(f"set_autocast_enabled: expected a bool, got {type(enable).__name__}")
    torch.set_autocast_enabled(device_type(), enable)


def get_autocast_dtype() -> Any:
    """Return the dtype that autocast uses on npu in this thread; initially float16."""
    import torch

    return torch.get_autocast_dtype(device_type())


def set_autocast_dtype(dtype: Any) -> None:
    """Choose the dtype that autocast uses on npu in this thread.

    Raises:
        TypeError: ``dtype`` is not a torch dtype.
    """
    import torch

    if not isinstance(dtype, torch.dtype):
        raise TypeError(f"set_autocast_dtype: expected a torch.dtype, got {type(dtype).__name__}")
    torch.set_autocast_dtype(device_type(), dtype)


def __getattr__(name: str) -> Any:
    modules = {"autocast": "autocast_mode", "GradScaler": "grad_scaler"}
    if name not in modules:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f".{modules[name]}", __name__), name)
    globals()[name] = value
    return value
