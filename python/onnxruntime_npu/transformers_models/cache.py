"""Keys and values of an exported causal model between calls."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING

import onnxruntime as ort
import torch

from ..errors import ArgumentError

if TYPE_CHECKING:
    from ..generation.decoding import CausalStepper, StepModel


class NPUCache:
    """The cache of one batch, on the device of the model, whatever its kind.

    ``generate`` makes one for each call. To keep a conversation, make one with ``new_cache`` of the
    model and pass it to each call as ``past_key_values``, with all tokens so far.
    """

    is_compileable = False
    is_croppable = False
    is_sliding: Sequence[bool] = ()

    def __init__(self, model: StepModel, length: int) -> None:
        """Begin without tokens.

        Args:
            model: whose cache it is.
            length: most tokens of a row, padding included.
        """
        self._model = model
        self._length = length
        self._columns = 0
        self._stepper: CausalStepper | None = None

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Return the number of tokens of a row, padding included."""
        del layer_idx  # all have as many
        return self._columns

    def get_max_cache_shape(self, layer_idx: int = 0) -> int:
        """Return the most tokens of a row."""
        del layer_idx
        return self._length

    def extend(self, rows: list[list[int]], columns: int) -> ort.OrtValue:
        """Run the model on new tokens of each row; return logits, of which the last count.

        ``columns`` is the length of the longest row with its padding. Raises ArgumentError for
        another number of rows than before, and for more tokens than the cache takes.
        """
        if self._columns + columns > self._length:
            raise ArgumentError(
                f"the cache takes {self._length} tokens, got {self._columns} and {columns} more: "
                "pass past_key_values=model.new_cache(length) with a larger length"
            )
        if self._stepper is None:
            stepper = self._model.stepper(rows, self._length)
            self._stepper, self._rows = stepper, len(rows)
            weakref.finalize(self, stepper.close)  # its buffers are used again
            logits = stepper.prefill()
        elif len(rows) != self._rows:
            raise ArgumentError(f"the cache has {self._rows} rows, got {len(rows)}")
        else:
            logits = self._stepper.extend(rows)
        self._columns += columns
        return logits

    def reorder_cache(self, beam_idx: torch.Tensor) -> None:
        """Continue each row b from row ``beam_idx[b]``."""
        rows = beam_idx.cpu().long().numpy()
        if self._stepper is None or len(rows) != self._rows:
            raise ArgumentError(f"expected indices of all rows of a cache in use, got {len(rows)}")
        if rows.min() < 0 or rows.max() >= self._rows:
            raise ArgumentError(f"expected rows from 0 to {self._rows - 1}, got {rows.tolist()}")
        if rows.tolist() != list(range(self._rows)):
            self._stepper.reorder(rows)
