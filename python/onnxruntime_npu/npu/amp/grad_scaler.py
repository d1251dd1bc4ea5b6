"""The gradient scaler of torch_npu: torch's, with one verdict for all optimizers."""

from __future__ import annotations

from typing import Any

import torch

from . import device_type

__all__ = ["GradScaler"]


class GradScaler(torch.amp.GradScaler):
    """``torch.amp.GradScaler`` of the npu device, which differs as torch_npu's does.

    An infinity or NaN among the gradients of one optimizer skips the steps of all optimizers until
    ``update()``. With ``dynamic=False`` the scale is fixed, and no step is skipped.
    """

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
        self._overflow: torch.Tensor | None = None

    def _unscale_grads_(
        self, optimizer: Any, inv_scale: torch.Tensor, found_inf: torch.Tensor, allow_fp16: bool
    ) -> dict[torch.device, torch.Tensor]:
        found = super()._unscale_grads_(optimizer, inv_scale, found_inf, allow_fp16)
        if self._overflow is None:
            self._overflow = found_inf  # still 0: what was found is in copies of it
        if self._dynamic:
            for count in found.values():
                self._overflow.add_(count.to(self._overflow.device))
        # One tensor for all optimizers: those unscaled before learn of an overflow found later.
        return dict.fromkeys(found, self._overflow)

    def update(self, new_scale: Any = None) -> None:
        """Adapt the scale to the results of step(); a fixed one changes to ``new_scale`` only."""
        if not self.is_enabled():
            return
        if new_scale is None and not self._dynamic:
            new_scale = self._scale  # torch's update() then only ends the iteration
        super().update(new_scale)
        self._overflow = None

    def state_dict(self) -> dict[str, Any]:
        """Return torch's state and ``dynamic``; empty while disabled."""
        state = super().state_dict()
        return {**state, "dynamic": self._dynamic} if self.is_enabled() else state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state of this class, or of torch's scaler, which does not say ``dynamic``."""
        super().load_state_dict(state_dict)
        self._dynamic = state_dict.get("dynamic", self._dynamic)
