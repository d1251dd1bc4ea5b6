"""Deterministic algorithms for a part of a model, in the forward and in the backward pass."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

__all__ = ["disable_deterministic_with_backward", "enable_deterministic_with_backward"]


def enable_deterministic_with_backward(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor, and turn deterministic algorithms on from here on.

    When the backward pass comes to this point, it turns them off: behind the region, call
    disable_deterministic_with_backward, where the backward pass turns them on.

    Raises:
        RuntimeError: the call is being compiled.
        TypeError: tensor is no tensor.

    """
    return _switch("enable_deterministic_with_backward", tensor, True)


def disable_deterministic_with_backward(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor, and turn deterministic algorithms off from here on.

    When the backward pass comes to this point, it turns them on.

    Raises:
        RuntimeError: the call is being compiled.
        TypeError: tensor is no tensor.

    """
    return _switch("disable_deterministic_with_backward", tensor, False)


def _switch(name: str, tensor: Any, on: bool) -> Any:
    import torch

    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"[{name}] expected a torch.Tensor, got {type(tensor).__name__}")
    if torch.compiler.is_compiling():
        raise RuntimeError(f"[{name}] expected a call outside compiled code, which has no switches")
    return _function().apply(tensor, on)


@functools.cache
def _function() -> Any:
    import torch

    class DeterministicSwitch(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, tensor: torch.Tensor, on: bool) -> torch.Tensor:
            ctx.on = on
            torch.use_deterministic_algorithms(on)
            return tensor.view_as(tensor)

        @staticmethod
        def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
            torch.use_deterministic_algorithms(not ctx.on)
            return grad, None

    return DeterministicSwitch
