"""Derivatives that several operators' ``@op.backward`` share."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .definition import torch
from .samples import check

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


def check_gradient(op: str, grad: Tensor, value: Tensor, name: str = "input") -> None:
    """Refuse a gradient of another shape or dtype than ``value``, which the call names so."""
    check(
        grad.shape == value.shape and grad.dtype == value.dtype,
        f"[{op}] expected grad like {name}, {list(value.shape)} of {value.dtype}, "
        f"got {list(grad.shape)} of {grad.dtype}",
    )
