"""Where the new tokens of each sequence lie in a step: what states of a fixed size are updated by.

Shape symbols: B sequences, S places of the longest, [rows, places] the model's input.

Sizes are not multiplied: they are host values, whose products every run would compute on the CPU.
"""

from __future__ import annotations

import abc
import functools
from typing import Any

import torch


class Sequences(abc.ABC):
    """Sequence b has ``counts[b]`` tokens from place ``starts[b]`` of the model's input on.

    What is computed from these is computed once for all layers.
    """

    spans: torch.Tensor  # places of each sequence, [B], those of padding included
    numbers: torch.Tensor  # the sequence of each place, [rows, places]
    _places: torch.Tensor  # the number of each place, [rows, places]

    def __init__(self, starts: torch.Tensor, counts: torch.Tensor) -> None:
        self._starts, self._counts = starts, counts
        self._order = torch.arange(counts.shape[0])
        self._seen: dict[tuple[int, int], torch.Tensor] = {}
        self._kept: dict[int, torch.Tensor] = {}

    @functools.cached_property
    def _offsets(self) -> torch.Tensor:
        """The place of each token in its sequence, [rows, places]."""
        return (
            self._places
            - torch.nn.functional.embedding(self.numbers, self._starts[:, None])[..., 0]
        )

    def seen(self, kept: int, taps: int) -> torch.Tensor:
        """Return the columns that a convolution's taps see from each place: [taps, rows, places].

        Columns are those of all states, ``kept`` of each, and then those of the places.
        """
        if (kept, taps) not in self._seen:
            back = torch.arange(1 - taps, 1).view(-1, 1, 1)
            self._seen[kept, taps] = self._columns(
                self._offsets + back, self.numbers, self._places + back, kept
            )
        return self._seen[kept, taps]

    def kept(self, kept: int) -> torch.Tensor:
        """Return the columns that are the states after the step, [B, kept]."""
        if kept not in self._kept:
            offsets = self._counts[:, None] + torch.arange(-kept, 0)
            places = self._starts[:, None] + offsets
            self._kept[kept] = self._columns(offsets, self._order[:, None], places, kept)
        return self._kept[kept]

    def _columns(
        self, offsets: torch.Tensor, numbers: torch.Tensor, places: torch.Tensor, kept: int
    ) -> torch.Tensor:
        """Return the columns of tokens at offsets of sequences: negative ones are of states."""
        all_kept = (self._order[-1:] + 1) * kept
        return torch.where(offsets >= 0, all_kept + places, (numbers + 1) * kept + offsets)

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

    def __init__(self, starts: torch.Tensor, counts: torch.Tensor, numbers: torch.Tensor) -> None:
        """Take ``numbers`` as [places]."""
        super().__init__(starts, counts)
        self.spans = counts
        self.numbers = numbers[None]
        self._places = torch.arange(numbers.shape[0])[None]

    @functools.cached_property
    def _of_rows(self) -> tuple[torch.Tensor, torch.Tensor]:
        """The place of every token of the rows, [B, S], and whether there is one."""
        longest: Any = self._counts.max().item()  # not known when a model is traced
        torch._check(longest >= 1)
        within = torch.arange(longest)
        places = (self._starts[:, None] + within).clamp(max=self.numbers.shape[1] - 1)
        return places, within < self._counts[:, None]

    def rows(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Gather them."""
        return tuple(x[0][self._of_rows[0]] for x in tensors)

    def is_token(self) -> torch.Tensor:
        """Compare with the lengths."""
        return self._of_rows[1]

    def unpadded(self, rows: torch.Tensor) -> torch.Tensor:
        """Gather the tokens."""
        places = self.numbers[0] * rows.shape[1] + self._offsets[0]
        return rows.flatten(0, 1).index_select(0, places)[None]

    def cleared(self, tensor: torch.Tensor) -> torch.Tensor:
        """There is no padding."""
        return tensor


class PaddedSequences(Sequences):
    """Sequences in rows of their own, padded on the right: the model's input is [B, S]."""

    def __init__(self, counts: torch.Tensor, places: int) -> None:
        """Take the lengths [B] and S."""
        order, self._within = torch.arange(counts.shape[0]), torch.arange(places)
        self.spans = self._within[-1:] + 1 + 0 * order
        super().__init__(order * self.spans, counts)
        self.numbers = order[:, None] + 0 * self._within
        self._places = self._starts[:, None] + self._within

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
