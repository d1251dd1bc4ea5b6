"""The role of the rotary embedding: cosines and sines of each position."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import nn

from ..proof import NotProven, compare
from .probes import CutOut
from .role import Role


class RotaryTables(nn.Module):
    """Cosine and sine of the rotary angles of each position, computed in float32.

    Computed rather than looked up: a table for 131072 positions would be larger than a small model.
    """

    frequencies: torch.Tensor

    def __init__(self, frequencies: torch.Tensor, scaling: float) -> None:
        super().__init__()
        self.register_buffer("frequencies", frequencies)  # [D], the size of a head
        self.scaling = scaling

    def forward(
        self, positions: torch.Tensor, dtype: torch.dtype
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return cos and sin [B, 1, S, D] for positions [B, 1, S, 1]."""
        angles = positions.to(torch.float32) * self.frequencies
        cos, sin = angles.cos(), angles.sin()
        if self.scaling != 1.0:
            cos, sin = cos * self.scaling, sin * self.scaling
        return cos.to(dtype), sin.to(dtype)


class RotaryParts(NamedTuple):
    """One frequency per pair of columns, and the factor of cosines and sines."""

    frequencies: torch.Tensor
    scaling: float


class RotaryRole(Role[RotaryParts, RotaryTables]):
    """Frequencies that are the same for every length."""

    def __init__(self, cut_out: CutOut) -> None:
        self._cut_out = cut_out

    def match(self, original: nn.Module) -> RotaryParts:
        """Find the frequencies."""
        frequencies = getattr(original, "inv_freq", None)
        if not isinstance(frequencies, torch.Tensor) or frequencies.dim() != 1:
            raise NotProven("expected rotary_emb.inv_freq, one frequency per pair")
        scaling = float(getattr(original, "attention_scaling", 1.0))
        return RotaryParts(frequencies.detach().float(), scaling)

    def build(self, parts: RotaryParts) -> Iterator[RotaryTables]:
        """Yield the tables."""
        yield RotaryTables(parts.frequencies.repeat(2), parts.scaling)

    def prove(self, original: nn.Module, built: RotaryTables) -> float:
        """Compare with the tables that the model passes to its layers, near and far."""
        positions = self._cut_out.position_ids[:, None, :, None]
        theirs = self._cut_out.given[0]["position_embeddings"]
        ours = built(positions, torch.float32)
        return max(
            compare(expected, actual.squeeze(1), f"rotary {name}")
            for name, expected, actual in zip(("cosines", "sines"), theirs, ours, strict=True)
        )
