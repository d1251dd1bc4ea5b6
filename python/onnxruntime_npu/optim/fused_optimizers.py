"""torch's optimizers with torch_npu's signatures; Adam, AdamW and SGD step in one kernel each."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

Parameters = Iterable[Any]


class NpuFusedOptimizerBase(torch.optim.Optimizer):
    """The methods of torch_npu's fused optimizers in addition to torch's interface."""

    is_fused_optimizer = True

    def zero_grad(self, set_to_none: bool = False) -> None:
        """Set gradients to zero in place, or to None with ``set_to_none``."""
        super().zero_grad(set_to_none)

    def clip_grad_norm_fused_(self, max_norm: float, norm_type: float = 2) -> torch.Tensor:
        """Scale the gradients of all groups to a norm of at most ``max_norm``; return the norm."""
        parameters = [p for group in self.param_groups for p in group["params"]]
        return torch.nn.utils.clip_grad_norm_(parameters, max_norm, norm_type)


class _FusedAdam(NpuFusedOptimizerBase):
    _weight_decay = 0.0

    def __init__(
        self,
        params: Parameters,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float | None = None,
        amsgrad: bool = False,
    ) -> None:
        decay = self._weight_decay if weight_decay is None else weight_decay
        super().__init__(params, lr, betas, eps, decay, amsgrad, fused=True)  # type: ignore


class NpuFusedAdam(_FusedAdam, torch.optim.Adam):
    """``torch.optim.Adam``, fused. Source: torch_npu.optim.NpuFusedAdam."""


class NpuFusedAdamW(_FusedAdam, torch.optim.AdamW):
    """``torch.optim.AdamW``, fused; decays by 0.01. Source: torch_npu.optim.NpuFusedAdamW."""

    _weight_decay = 1e-2


class NpuFusedSGD(NpuFusedOptimizerBase, torch.optim.SGD):
    """``torch.optim.SGD``, fused; ``lr`` has no default. Source: torch_npu.optim.NpuFusedSGD."""

    def __init__(
        self,
        params: Parameters,
        lr: float,
        momentum: float = 0,
        dampening: float = 0,
        weight_decay: float = 0,
        nesterov: bool = False,
    ) -> None:
        super().__init__(params, lr, momentum, dampening, weight_decay, nesterov, fused=True)


class NpuFusedRMSprop(NpuFusedOptimizerBase, torch.optim.RMSprop):
    """``torch.optim.RMSprop``. Source: torch_npu.optim.NpuFusedRMSprop."""

    def __init__(
        self,
        params: Parameters,
        lr: float = 1e-2,
        alpha: float = 0.99,
        eps: float = 1e-8,
        weight_decay: float = 0,
        momentum: float = 0,
        centered: bool = False,
    ) -> None:
        super().__init__(params, lr, alpha, eps, weight_decay, momentum, centered, foreach=True)


class NpuFusedAdadelta(NpuFusedOptimizerBase, torch.optim.Adadelta):
    """``torch.optim.Adadelta``. Source: torch_npu.optim.NpuFusedAdadelta."""

    def __init__(
        self,
        params: Parameters,
        lr: float = 1.0,
        rho: float = 0.9,
        eps: float = 1e-6,
        weight_decay: float = 0,
    ) -> None:
        super().__init__(params, lr, rho, eps, weight_decay, foreach=True)
