"""Keys and values of an exported causal model between calls."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import onnxruntime as ort

from .batch_cache import BatchCache

if TYPE_CHECKING:
    from ..generation.decoding import CausalStepper, StepModel


class NPUCache(BatchCache):
    """The cache of one batch, on the device of the model, whatever its kind.

    ``generate`` makes one for each call. To keep a conversation, make one with ``new_cache`` of the
    model and pass it to each call as ``past_key_values``, with all tokens so far.
    """

    is_sliding: Sequence[bool] = ()

    def __init__(self, model: StepModel, length: int) -> None:
        """Begin without tokens.

        Args:
            model: whose cache it is.
            length: most tokens of a row, padding included.
        """
        super().__init__(length)
        self._model = model
        self._stepper: CausalStepper  # from the first tokens on

    def extend(self, rows: list[list[int]], columns: int) -> ort.OrtValue:
        """Run the model on new tokens of each row; return logits, of which the last count.

        ``columns`` is the length of the longest row with its padding. Raises ArgumentError for
        another number of rows than before, and for more tokens than the cache takes.
        """
        self._check_new(len(rows), columns)
        if self._columns:
            logits = self._stepper.extend(rows)
        else:
            stepper = self._model.stepper(rows, self._length)
            self._stepper, self._rows = stepper, len(rows)
            weakref.finalize(self, stepper.close)  # its buffers are used again
            logits = stepper.prefill()
        self._columns += columns
        return logits

    def _reorder(self, rows: np.ndarray) -> None:
        self._stepper.reorder(rows)
