"""What transformers' ``generate`` expects of a cache, for those of exported models."""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np
import torch

from ..errors import ArgumentError


class BatchCache(ABC):
    """Base of caches of one batch; what adds tokens to one counts ``_rows`` and ``_columns``."""

    is_compileable = False
    is_croppable = False

    def __init__(self, length: int) -> None:
        """Begin without tokens; ``length`` is the most tokens of a row, padding included."""
        self._length = length
        self._columns = 0
        self._rows = 0  # as the first tokens have

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Return the number of tokens of a row, padding included."""
        del layer_idx  # all have as many
        return self._columns

    def get_max_cache_shape(self, layer_idx: int = 0) -> int:
        """Return the most tokens of a row."""
        del layer_idx
        return self._length

    def reorder_cache(self, beam_idx: torch.Tensor) -> None:
        """Continue each row b from row ``beam_idx[b]``, of int64 [B].

        Raises ArgumentError for rows that the cache does not have, and for more or fewer than all.
        """
        rows = beam_idx.cpu().long().numpy()
        if not self._columns or len(rows) != self._rows:
            raise ArgumentError(f"expected indices of all rows of a cache in use, got {len(rows)}")
        if rows.min() < 0 or rows.max() >= self._rows:
            raise ArgumentError(f"expected rows from 0 to {self._rows - 1}, got {rows.tolist()}")
        if rows.tolist() != list(range(self._rows)):
            self._reorder(rows)

    def _check_new(self, rows: int, columns: int) -> None:
        """Raise ArgumentError unless the cache takes ``columns`` more tokens of as many rows."""
        if self._columns + columns > self._length:
            raise ArgumentError(
                f"the cache takes {self._length} tokens, got {self._columns} and {columns} more: "
                "pass past_key_values=model.new_cache(length) with a larger length"
            )
        if self._columns and rows != self._rows:
            raise ArgumentError(f"the cache has {self._rows} rows, got {rows}")

    @abstractmethod
    def _reorder(self, rows: np.ndarray) -> None:
        """Continue each row b from row ``rows[b]``, which exists, int64 [B]."""
