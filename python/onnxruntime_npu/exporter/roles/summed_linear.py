"""The projection back from what several ranks have computed, each a part of it."""

from __future__ import annotations

import torch
from torch import nn


class SummedLinear(nn.Module):
    """``x @ weight + bias``, summed over the ranks, of which each has some rows of the weight."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None, group: str) -> None:
        """Take this rank's rows [in, out], and the bias on one rank; ``group``: all ranks."""
        super().__init__()
        self.group = group
        self.weight = nn.Parameter(weight, requires_grad=False)
        self.bias = None if bias is None else nn.Parameter(bias, requires_grad=False)

    @property
    def in_features(self) -> int:
        """Size of the last axis of this rank's input."""
        return self.weight.shape[0]

    @property
    def out_features(self) -> int:
        """Size of the output's last axis."""
        return self.weight.shape[1]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Project x [.., in] to [.., out]."""
        return torch.ops.npu.npu_mm_all_reduce_base(x, self.weight, self.group, bias=self.bias)
