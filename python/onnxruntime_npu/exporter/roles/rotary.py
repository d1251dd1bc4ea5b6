"""The role of the rotary embedding: cosines and sines of each position."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import nn

from ..proof import NotProven, compare
from .frequencies import DynamicFrequencies, FixedFrequencies, Frequencies, LongFrequencies
from .probes import CutOut
from .role import Role


class RotaryTables(nn.Module):
    """Cosine and sine of the rotary angles of each position, computed in float32.

    Computed rather than looked up: a table for 131072 positions would be larger than a small model.
    """

    def __init__(self, frequencies: Frequencies, scaling: float) -> None:
        super().__init__()
        self.frequencies = frequencies
        self.scaling = scaling

    def forward(
        self, positions: torch.Tensor, lengths: torch.Tensor, dtype: torch.dtype
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return cos and sin [B, 1, S, D] for positions [B, 1, S, 1].

        lengths: [B, 1, 1 or S, 1], the number of tokens, past and new, of each row or token.
        """
        angles = positions.to(torch.float32) * self.frequencies(lengths)
        cos, sin = angles.cos(), angles.sin()
        if self.scaling != 1.0:
            cos, sin = cos * self.scaling, sin * self.scaling
        return cos.to(dtype), sin.to(dtype)


class RotaryParts(NamedTuple):
    """The rotary embedding, and its frequencies, one per pair of columns."""

    original: Any
    frequencies: torch.Tensor


class RotaryRole(Role[RotaryParts, RotaryTables]):
    """Frequencies that are the same for every length, or depend on it in a known way."""

    def __init__(self, cut_out: CutOut) -> None:
        self._cut_out = cut_out

    def match(self, original: nn.Module) -> RotaryParts:
        """Find the frequencies."""
        fresh = fresh_rotary(original)
        frequencies = getattr(fresh, "inv_freq", None)
        if not isinstance(frequencies, torch.Tensor) or frequencies.dim() != 1:
            raise NotProven("expected rotary_emb.inv_freq, one frequency per pair")
        return RotaryParts(fresh, frequencies.detach().float())

    def build(self, parts: RotaryParts) -> Iterator[RotaryTables]:
        """Yield the tables of fixed frequencies, and those that the rotary embedding names."""
        tables = self._cut_out.given[0].get("position_embeddings")
        if not isinstance(tables, tuple):
            raise NotProven("expected cosines and sines for every layer")
        # The tables' factor is what the cosines of position 0 are: some embeddings have another
        # than their attention_scaling.
        scaling = float(tables[0][0, 0, 0])
        yield RotaryTables(FixedFrequencies(parts.frequencies), scaling)
        for kind in (DynamicFrequencies, LongFrequencies):
            if getattr(parts.original, "rope_type", None) == kind.rope_type:
                settings = parts.original.config.rope_parameters
                frequencies = kind.of(parts.original, settings, parts.frequencies)
                yield RotaryTables(frequencies, scaling)

    def prove(self, original: nn.Module, built: RotaryTables) -> float:
        """Compare with the tables that the model passes to its layers, near and far."""
        positions = self._cut_out.position_ids
        theirs = self._cut_out.given[0]["position_embeddings"]
        if isinstance(built.frequencies, FixedFrequencies):
            return _compare(theirs, _tables(built, positions))
        # The model takes the longest row's length for all. Here it is each row's own, so that
        # the result is that of a prompt alone: rows are compared one by one.
        worst = _compare(theirs, fresh_rotary(original)(torch.zeros(1), positions))
        for row in rows_around(built.frequencies.limit):
            expected = fresh_rotary(original)(torch.zeros(1), row)
            worst = max(worst, _compare(expected, _tables(built, row)))
        return worst


def fresh_rotary(original: nn.Module) -> Any:
    """Return a copy with the frequencies of few tokens: those that depend on the length change."""
    fresh: Any = copy.deepcopy(original)
    if hasattr(fresh, "original_max_seq_len"):
        for name, values in list(fresh.named_buffers()):
            if name.endswith("original_inv_freq"):  # after the name of a kind of layer, if any
                prefix = name.removesuffix("original_inv_freq")
                setattr(fresh, f"{prefix}inv_freq", values.clone())
                setattr(fresh, f"{prefix}max_seq_len_cached", fresh.original_max_seq_len)
    return fresh


def rows_around(limit: int) -> Iterator[torch.Tensor]:
    """Yield the last positions [1, S] of rows of few tokens and of more than ``limit``."""
    for length in (1, limit - 1, limit, limit + 1, 2 * limit, 7 * limit):
        yield torch.arange(max(0, length - 9), length)[None]


def _tables(built: RotaryTables, positions: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Return cos and sin [B, S, D] for positions [B, S]."""
    lengths = positions.amax(1).view(-1, 1, 1, 1) + 1
    return tuple(t.squeeze(1) for t in built(positions[:, None, :, None], lengths, torch.float32))


def _compare(expected: Any, actual: Any) -> float:
    return max(
        compare(theirs, ours, f"rotary {name}")
        for name, theirs, ours in zip(("cosines", "sines"), expected, actual, strict=True)
    )
