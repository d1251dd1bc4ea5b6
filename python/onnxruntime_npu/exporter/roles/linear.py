"""The exported form of a projection, which several roles use."""

from __future__ import annotations

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

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Project x [.., in] to [.., out]."""
        y = torch.matmul(x, self.weight)
        return y if self.bias is None else y + self.bias
