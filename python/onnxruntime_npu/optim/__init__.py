"""``torch_npu.optim``: optimizers whose steps update all parameters together."""

from __future__ import annotations

from .fused_optimizers import NpuFusedAdadelta as NpuFusedAdadelta
from .fused_optimizers import NpuFusedAdam as NpuFusedAdam
from .fused_optimizers import NpuFusedAdamW as NpuFusedAdamW
from .fused_optimizers import NpuFusedOptimizerBase as NpuFusedOptimizerBase
from .fused_optimizers import NpuFusedRMSprop as NpuFusedRMSprop
from .fused_optimizers import NpuFusedSGD as NpuFusedSGD

__all__ = [
    "NpuFusedAdadelta",
    "NpuFusedAdam",
    "NpuFusedAdamW",
    "NpuFusedOptimizerBase",
    "NpuFusedRMSprop",
    "NpuFusedSGD",
]
