"""Automatic mixed precision: torch's autocast and gradient scaler for the npu device."""

from __future__ import annotations

import importlib
from typing import Any

__all__ = [
    "custom_bwd",
    "custom_fwd",
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


def custom_fwd(fwd: Any = None, *, cast_inputs: Any = None) -> Any:
    """Decorate ``forward`` of a ``torch.autograd.Function``: :func:`torch.amp.custom_fwd` for npu.

    Args:
        fwd: the function; omitted where the decorator is called with ``cast_inputs``.
        cast_inputs: a floating-point dtype. Inside autocast, floating-point npu tensors among the
            arguments are converted to it, and ``forward`` runs with autocast off.
    """
    import torch

    return torch.amp.custom_fwd(fwd, device_type=device_type(), cast_inputs=cast_inputs)


def custom_bwd(bwd: Any = None) -> Any:
    """Decorate ``backward`` beside :func:`custom_fwd`: it runs with the autocast of ``forward``."""
    import torch

    return torch.amp.custom_bwd(bwd, device_type=device_type())


def __getattr__(name: str) -> Any:
    modules = {"autocast": "autocast_mode", "GradScaler": "grad_scaler"}
    if name not in modules:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f".{modules[name]}", __name__), name)
    globals()[name] = value
    return value
