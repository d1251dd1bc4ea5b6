"""Automatic mixed precision: torch's autocast and gradient scaler for the npu device."""

from __future__ import annotations

import sys
from typing import Any

__all__ = [
    "get_amp_supported_dtype",
    "get_autocast_dtype",
    "is_autocast_enabled",
    "set_autocast_dtype",
    "set_autocast_enabled",
]


def _device_type() -> str:
    """How this process's torch calls the npu: the torch bridge renames PrivateUse1."""
    import torch

    return torch._C._get_privateuse1_backend_name()


def get_amp_supported_dtype() -> list[Any]:
    """Return the dtypes that autocast may use: float16, bfloat16, float32."""
    import torch

    return [torch.float16, torch.bfloat16, torch.float32]


def is_autocast_enabled() -> bool:
    """Return whether autocast is on for npu in this thread."""
    import torch

    return torch.is_autocast_enabled(_device_type())


def set_autocast_enabled(enable: bool) -> None:
    """Switch autocast for npu on or off in this thread.

    Raises:
        TypeError: ``enable`` is no bool.
    """
    import torch

    if not isinstance(enable, bool):
        raise TypeError(f"set_autocast_enabled: expected a bool, got {type(enable).__name__}")
    torch.set_autocast_enabled(_device_type(), enable)


def get_autocast_dtype() -> Any:
    """Return the dtype that autocast uses on npu in this thread; float16 at first."""
    import torch

    return torch.get_autocast_dtype(_device_type())


def set_autocast_dtype(dtype: Any) -> None:
    """Choose the dtype that autocast uses on npu in this thread.

    Raises:
        TypeError: ``dtype`` is no torch dtype.
    """
    import torch

    if not isinstance(dtype, torch.dtype):
        raise TypeError(f"set_autocast_dtype: expected a torch.dtype, got {type(dtype).__name__}")
    torch.set_autocast_dtype(_device_type(), dtype)


def __getattr__(name: str) -> Any:
    if name not in ("autocast", "GradScaler"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = _autocast_class() if name == "autocast" else _scaler_class()
    setattr(sys.modules[__name__], name, value)
    return value


def _autocast_class() -> type:
    import torch

    class autocast(torch.autocast):
        """``torch.autocast`` of the npu device."""

        def __init__(
            self, enabled: bool = True, dtype: Any = torch.float16, cache_enabled: bool = True
        ) -> None:
            super().__init__(_device_type(), dtype, enabled, cache_enabled)

    return autocast


def _scaler_class() -> type:
    import torch

    class GradScaler(torch.amp.GradScaler):
        """``torch.amp.GradScaler`` of the npu device; ``dynamic=False`` keeps the scale fixed."""

        def __init__(
            self,
            init_scale: float = 65536.0,
            growth_factor: float = 2.0,
            backoff_factor: float = 0.5,
            growth_interval: int = 2000,
            dynamic: bool = True,
            enabled: bool = True,
        ) -> None:
            super().__init__(
                _device_type(), init_scale, growth_factor, backoff_factor, growth_interval, enabled
            )
            self._dynamic = dynamic

        def update(self, new_scale: Any = None) -> None:
            """Adapt the scale to what step() found; a fixed scale stays."""
            if self._dynamic or new_scale is not None:
                super().update(new_scale)

    return GradScaler
