"""What a form of attention modules is that project, cache and attend in one method."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from .alibi import Alibi
from .replaced_functions import ReplacedFunctions

Forward = Callable[..., tuple[torch.Tensor, None]]
BATCH, NEW = 2, 5  # of the proof


class Form(ABC):
    """Modules that attend alike."""

    parts: tuple[str, ...]  # attributes of the module
    arguments: tuple[str, ...]  # of its forward pass

    def takes(self, module: nn.Module) -> bool:
        """Whether a module has the parts and arguments."""
        if not all(hasattr(module, name) for name in self.parts):
            return False
        return set(self.arguments) <= set(inspect.signature(module.forward).parameters)

    def alibi(self, module: Any, given: dict[str, Any]) -> Alibi | None:
        """Return the bias by keys of a module that was called with ``given``; None without one."""
        del module, given
        return None

    @abstractmethod
    def forward(self, module: Any, alibi: Alibi | None) -> Forward:
        """Return the fused forward pass, whose mask [B, 1, S, T] is of visible keys."""

    @abstractmethod
    def example(self, module: Any, alibi: Alibi | None) -> dict[str, Any]:
        """Return arguments without a mask, of [BATCH, NEW, ..]."""

    def mask(self, module: Any, visible: torch.Tensor, given: dict[str, Any]) -> torch.Tensor:
        """Return the mask that the original takes beside its other arguments.

        By default it is added to the scores.
        """
        del module, given
        return added_mask(visible)

    def replace_more(self, module: Any, functions: ReplacedFunctions) -> None:
        """Add what else is replaced where the fused forward pass has a bias; by default nothing."""
        del module, functions


def heads_of(x: torch.Tensor, count: int) -> torch.Tensor:
    """Return [B, N, S, D] of [B, S, N * D]."""
    return x.unflatten(-1, (count, -1)).transpose(1, 2)


def random_mask(batch: int, new: int, total: int) -> torch.Tensor:
    """Return a mask of visible keys [B, 1, S, T] without an order, at least one for a token."""
    visible = torch.rand(batch, 1, new, total) < 0.5
    visible[..., 0] = True
    return visible


def added_mask(visible: torch.Tensor) -> torch.Tensor:
    """Return what transformers adds to the scores for a mask of visible keys."""
    return torch.zeros(visible.shape).masked_fill(~visible, torch.finfo(torch.float32).min)
