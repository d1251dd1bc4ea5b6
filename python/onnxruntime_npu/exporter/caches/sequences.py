"""Where the new tokens of each sequence lie in a step: what states of a fixed size are updated by.

Shape symbols: B sequences, S places of the longest, [rows, places] the model's input.

Sizes are not multiplied: they are host values, whose products every run would compute on the CPU.
"""

from __future__ import annotations

import abc
import functools
from typing import Any, NamedTuple

import torch


class Ranges(NamedTuple):
    """Ranges of places, side by side, with the row of states that each has; -1 for padding."""

    borders: torch.Tensor  # int32 [ranges + 1]
    rows: torch.Tensor | None  # int32 [ranges]; None for 0, 1 and so on


class Sequences(abc.ABC):
    """How the tokens of sequences lie in the model's input.

    What is computed from that is computed once for all layers.
    """

    spans: torch.Tensor  # places of each sequence, [B], those of padding included
    numbers: torch.Tensor  # the sequence of each place, [rows, places]

    @property
    @abc.abstractmethod
    def ranges(self) -> Ranges:
        """Those of tokens, and of padding."""

    @abc.abstractmethod
    def rows(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Return tensors that lie as the model's input as [B, S, ..]; padding is arbitrary."""

    @abc.abstractmethod
    def is_token(self) -> torch.Tensor:
        """Return which places of these rows hold tokens, bool [B, S]."""

    @abc.abstractmethod
    def unpadded(self, rows: torch.Tensor) -> torch.Tensor:
        """Return rows [B, S, ..] as the model's input lies."""

    @abc.abstractmethod
    def cleared(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return a tensor that lies as the model's input with zeros in the place of padding."""


class PackedSequences(Sequences):
    """Sequences side by side, as one row of the model's input, without padding."""

    def __init__(self, borders: torch.Tensor, numbers: torch.Tensor) -> None:
        """Take where each begins and the last one ends, int32 [B + 1], and numbers [places]."""
        self._starts, ends = borders[:-1].long(), borders[1:].long()
        self.spans = ends - self._starts
        self.numbers = numbers[None]
        self._borders = borders

    @property
    def ranges(self) -> Ranges:
        """The sequences."""
        return Ranges(self._borders, None)

    @functools.cached_property
    def _of_rows(self) -> tuple[torch.Tensor, torch.Tensor]:
        """The place of every token of the rows, [B, S], and whether there is one."""
        # Not known when a model is traced; wrong borders must not ask for more than all places.
        longest: Any = self.spans.max().clamp(1, self.numbers.shape[1]).item()
        torch._check(longest >= 1)
        within = torch.arange(longest)
        places = (self._starts[:, None] + within).clamp(max=self.numbers.shape[1] - 1)
        return places, within < self.spans[:, None]

    def rows(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Gather them."""
        return tuple(x[0][self._of_rows[0]] for x in tensors)

    def is_token(self) -> torch.Tensor:
        """Compare with the lengths."""
        return self._of_rows[1]

    def unpadded(self, rows: torch.Tensor) -> torch.Tensor:
        """Gather the tokens."""
        numbers = self.numbers[0]
        offsets = torch.arange(numbers.shape[0]) - self._starts.index_select(0, numbers)
        return rows.flatten(0, 1).index_select(0, numbers * rows.shape[1] + offsets)[None]

    def cleared(self, tensor: torch.Tensor) -> torch.Tensor:
        """There is no padding."""
        return tensor


class PaddedSequences(Sequences):
    """Sequences in rows of their own, padded on the right: the model's input is [B, S]."""

    def __init__(self, counts: torch.Tensor, places: int) -> None:
        """Take the lengths [B] and S."""
        self._counts = counts
        self._order, self._within = torch.arange(counts.shape[0]), torch.arange(places)
        self.spans = self._within[-1:] + 1 + 0 * self._order
        self.numbers = self._order[:, None] + 0 * self._within

    @functools.cached_property
    def ranges(self) -> Ranges:
        """Those of tokens and of padding in turns."""
        starts = self._order * self.spans
        inner = torch.stack([starts, starts + self._counts], 1).flatten()
        borders = torch.cat([inner, starts[-1:] + self.spans[-1:]])
        rows = torch.stack([self._order, 0 * self._order - 1], 1).flatten()
        return Ranges(borders.int(), rows.int())

    def rows(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """They are."""
        return tensors

    def is_token(self) -> torch.Tensor:
        """Compare with the lengths."""
        return self._within < self._counts[:, None]

    def unpadded(self, rows: torch.Tensor) -> torch.Tensor:
        """The model's input is padded alike."""
        return rows

    def cleared(self, tensor: torch.Tensor) -> torch.Tensor:
        """Replace padding by zeros."""
        mask = self.is_token()
        return torch.where(mask[(..., *[None] * (tensor.dim() - 2))], tensor, 0)
