"""Rotary frequencies: fixed ones, and those that depend on the number of tokens.

A frequency belongs to a pair of columns of a head, of which it is in both halves. Those that depend
on the number of tokens are chosen by each step for its new tokens; what is cached stays rotated as
it was, as in transformers' forward pass.
"""

from __future__ import annotations

import abc
from typing import Any

import torch
from torch import nn

from ..proof import NotProven


class Frequencies(nn.Module, abc.ABC):
    """Frequencies for a row's number of tokens."""

    limit: int  # number of tokens beyond which they differ from those of few

    @abc.abstractmethod
    def forward(self, lengths: torch.Tensor) -> torch.Tensor:
        """Return the frequencies for lengths [B, 1, 1, 1]: [D], the size of a head, or [.., D]."""


class FixedFrequencies(Frequencies):
    """The same for every length."""

    values: torch.Tensor

    def __init__(self, frequencies: torch.Tensor) -> None:
        super().__init__()
        self.register_buffer("values", frequencies.repeat(2))

    def forward(self, lengths: torch.Tensor) -> torch.Tensor:
        """Return the frequencies [D]."""
        return self.values


class DynamicFrequencies(Frequencies):
    """NTK scaling: beyond the trained length, a base that grows with the length."""

    rope_type = "dynamic"
    values: torch.Tensor
    exponents: torch.Tensor

    def __init__(self, frequencies: torch.Tensor, factor: float, limit: int) -> None:
        super().__init__()
        self.register_buffer("values", frequencies.repeat(2))
        pairs = len(frequencies)
        # Of the base's growth: it is raised to D / (D - 2), and divides pair i's to 2 i / D.
        exponents = -torch.arange(pairs) / (pairs - 1)
        self.register_buffer("exponents", exponents.repeat(2))
        self.factor = factor
        self.limit = limit

    @staticmethod
    def of(original: Any, settings: dict[str, Any], few: torch.Tensor) -> DynamicFrequencies:
        """Read the factor of ``rope_parameters`` and the trained length of a rotary embedding."""
        if len(few) < 2:
            raise NotProven("expected two frequencies or more")
        return DynamicFrequencies(
            few, float(settings["factor"]), int(original.original_max_seq_len)
        )

    def forward(self, lengths: torch.Tensor) -> torch.Tensor:
        """Return the frequencies [B, 1, 1, D]."""
        growth = self.factor * lengths.clamp(min=self.limit) / self.limit - (self.factor - 1)
        return self.values * growth.to(torch.float32) ** self.exponents


class LongFrequencies(Frequencies):
    """LongRoPE: other factors beyond the trained length."""

    rope_type = "longrope"
    short: torch.Tensor
    long: torch.Tensor

    def __init__(self, short: torch.Tensor, long: torch.Tensor, limit: int) -> None:
        super().__init__()
        self.register_buffer("short", short.repeat(2))
        self.register_buffer("long", long.repeat(2))
        self.limit = limit

    @staticmethod
    def of(original: Any, settings: dict[str, Any], few: torch.Tensor) -> LongFrequencies:
        """Read the factors and the trained length of ``rope_parameters``."""
        del original
        short, long = (torch.tensor(settings[f"{name}_factor"]) for name in ("short", "long"))
        limit = int(settings["original_max_position_embeddings"])
        return LongFrequencies(few, few * short / long, limit)

    def forward(self, lengths: torch.Tensor) -> torch.Tensor:
        """Return the frequencies [B, 1, 1, D]."""
        return torch.where(lengths > self.limit, self.long, self.short)
