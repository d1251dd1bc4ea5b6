"""torch's gradient scaler for the npu device."""

from __future__ import annotations

from typing import Any

import torch

from . import device_type

__all__ = ["GradScaler"]


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
            device_type(), init_scale, growth_factor, backoff_factor, growth_interval, enabled
        )
        self._dynamic = dynamic

    def update(self, new_scale: Any = None) -> None:
        """Adapt the scale to the result of step(); a fixed scale is unchanged."""
        if self._dynamic or new_scale is not None:
            super().update(new_scale)
