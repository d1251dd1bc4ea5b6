"""The exported form of a projection, which several roles use."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn


class Linear(nn.Module):
    """``x @ weight + bias`` with the weight as [in, out]."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight, requires_grad=False)
        self.bias = None if bias is None else nn.Parameter(bias, requires_grad=False)

    @staticmethod
    def joined(*layers: nn.Linear) -> Linear:
        """Return one projection that computes those of ``layers``, concatenated."""
        weight = torch.cat([layer.weight.detach() for layer in layers]).t().contiguous()
        if all(layer.bias is None for layer in layers):
            return Linear(weight, None)
        biases = [
            weight.new_zeros(layer.out_features) if layer.bias is None else layer.bias.detach()
            for layer in layers
        ]
        return Linear(weight, torch.cat(biases))

    def as_torch(self) -> nn.Linear:
        """Return the same projection as torch has it, for what looks for torch's layers."""
        size_in, size_out = self.weight.shape
        layer = nn.Linear(size_in, size_out, bias=self.bias is not None, device="meta")
        layer.weight = nn.Parameter(self.weight.detach().t(), requires_grad=False)
        bias: Any = self.bias
        layer.bias = bias
        return layer

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Project x [.., in] to [.., out]."""
        y = torch.matmul(x, self.weight)
        return y if self.bias is None else y + self.bias
