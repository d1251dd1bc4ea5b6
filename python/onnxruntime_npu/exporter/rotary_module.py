"""Rotary embeddings whose frequencies depend on the length, in a model that is kept.

transformers chooses them by Python code, which cannot be traced, or for the longest row of a batch.
Here each row has those of its own length, as a prompt that is alone.
"""

from __future__ import annotations

import inspect
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn

from .proof import Findings, NotProven, attempt, compare
from .roles.frequencies import DynamicFrequencies, Frequencies, LongFrequencies
from .roles.rotary import fresh_rotary, rows_around


class LengthRotary(nn.Module):
    """The original's tables with the frequencies of each row's length."""

    def __init__(self, original: Any, frequencies: Frequencies) -> None:
        super().__init__()
        self.frequencies = frequencies
        self.scaling = original.attention_scaling
        self._tables = inspect.unwrap(type(original).forward)  # without the choice of frequencies

    def forward(self, x: torch.Tensor, position_ids: torch.Tensor) -> Any:
        """Return the tables for position_ids [B, S], of x's dtype."""
        lengths = position_ids.amax(1).view(-1, 1, 1, 1) + 1
        pairs = self.frequencies(lengths).squeeze(1).chunk(2, -1)[0]  # [B, 1, D / 2]
        state = SimpleNamespace(inv_freq=pairs, attention_scaling=self.scaling)
        return self._tables(state, x, position_ids)


def follow_lengths(model: Any, findings: Findings) -> None:
    """Replace rotary embeddings whose frequencies depend on the length by proven ones."""
    for name, module in list(model.named_modules()):
        kinds = [k for k in (DynamicFrequencies, LongFrequencies)
                 if getattr(module, "rope_type", None) == k.rope_type]  # fmt: skip
        for kind in kinds:
            try:
                model.set_submodule(name, attempt(_proven, module, kind))
            except NotProven as error:
                reason = f"frequencies are those of a batch's longest row: {error}"
                findings.keep(name, "rotary", reason)


def _proven(original: Any, kind: type[DynamicFrequencies | LongFrequencies]) -> LengthRotary:
    """Return the replacement if rows of several lengths have the original's tables."""
    fresh = fresh_rotary(original)
    built = LengthRotary(fresh, kind.of(fresh, fresh.inv_freq.float()))
    for row in rows_around(built.frequencies.limit):
        alone = _real(fresh_rotary(original)(torch.zeros(1), row))
        # Beside a row of few tokens, for which the original would take this one's length.
        ours = _real(built(torch.zeros(1), torch.cat([row, torch.zeros_like(row)])))
        for theirs, table in zip(alone, ours, strict=True):
            compare(theirs[0], table[0], "rotary tables")
    return built


def _real(tables: Any) -> tuple[torch.Tensor, ...]:
    """Return tables [B, S, columns] of real numbers."""
    return torch.view_as_real(tables).unbind(-1) if isinstance(tables, torch.Tensor) else tables
