"""Derivatives that several operators' ``@op.backward`` share."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .definition import torch

if TYPE_CHECKING:
    from torch import Tensor


def silu_gradient(grad: Tensor, x: Tensor) -> Tensor:
    """Return grad * d/dx (x sigmoid(x)), in the shape and dtype of x.

    Torch's own operator makes one pass over memory, but has no derivative itself.
    """
    if not torch.is_grad_enabled():
        return torch.ops.aten.silu_backward(grad, x)
    s = torch.sigmoid(x)
    return grad * s * (1 + x * (1 - s))
