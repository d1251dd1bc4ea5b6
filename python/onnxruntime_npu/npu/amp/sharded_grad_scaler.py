"""The gradient scaler of parameters that ranks share, by torch_npu's name."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist
from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler

from . import device_type

__all__: list[str] = []


class _ShardedGradScaler(ShardedGradScaler):
    """``torch.distributed.fsdp.sharded_grad_scaler.ShardedGradScaler`` of the npu device."""

    def __init__(
        self,
        device: str = "",
        init_scale: float = 65536.0,
        backoff_factor: float = 0.5,
        growth_factor: float = 2.0,
        growth_interval: int = 2000,
        enabled: bool = True,
        process_group: Any = None,
    ) -> None:
        super().__init__(
            device or device_type(),
            init_scale,
            growth_factor,
            backoff_factor,
            growth_interval,
            enabled,
            process_group or dist.group.WORLD,
        )
