"""Keys and values of an exported encoder-decoder between calls."""

from __future__ import annotations

import numpy as np
import onnxruntime as ort

from ..errors import ArgumentError
from ..generation.growing_cache import PAST
from ..generation.row_choice import RowChoice
from ..generation.seq2seq import MASK, OWN, Seq2SeqLM
from .batch_cache import BatchCache


class Seq2SeqCache(BatchCache):
    """The cache of one batch of decoder rows, and the keys and values of their sources.

    All are on the device of the model. ``generate`` makes one for each call.
    """

    def __init__(self, model: Seq2SeqLM, length: int) -> None:
        """Begin without tokens; ``length`` is the most tokens of a row."""
        super().__init__(length)
        self._model = model
        self._group = 1  # rows of each source, next to each other
        self._source: dict[str, ort.OrtValue] = {}
        types = {value.name: value.type for value in model.decoder.get_inputs()}
        own = [name for name in types if name.startswith(PAST) and OWN in name]
        self._choose_own = self._choice([types[name] for name in own])
        self._choose_source = self._choice([types[name] for name in model.source_inputs])

    def step(
        self, ids: np.ndarray, mask: np.ndarray | None, source: dict[str, ort.OrtValue]
    ) -> ort.OrtValue:
        """Run the decoder on new tokens [B, S]; return logits [B, S, V].

        Args:
            ids: int64.
            mask: of the source's tokens, int64 [B, source], for models that take one.
            source: keys and values of the encoded batch, of which each row may serve several rows
                of ids; read in the first step.

        Raises ArgumentError for another number of rows than fits, and too many tokens.
        """
        rows, columns = ids.shape
        self._check_new(rows, columns)
        if not self._columns:
            self._begin(rows, source)
        inputs: dict[str, np.ndarray | ort.OrtValue] = {"input_ids": ids, **self._source}
        if self._model.masked:
            inputs[MASK] = np.ones((rows, self._source_length), np.int64) if mask is None else mask
        logits = self._cache.step(inputs)
        self._columns += columns
        return logits

    def _reorder(self, rows: np.ndarray) -> None:
        if (rows // self._group != np.arange(self._rows) // self._group).any():
            raise ArgumentError("expected beams that continue beams of the same source")
        self._cache.reorder(self._choose_own, rows)

    def _begin(self, rows: int, source: dict[str, ort.OrtValue]) -> None:
        first = next(iter(source.values()))
        sources, self._source_length = first.shape()[0], first.shape()[2]
        if rows % sources:
            raise ArgumentError(
                f"expected a multiple of {sources} rows, of the sources, got {rows}"
            )
        self._rows, self._group = rows, rows // sources
        self._cache = self._model.new_cache(rows, self._length)
        self._source = source
        if self._group > 1:
            chosen = np.arange(rows) // self._group
            values = self._choose_source(list(source.values()), chosen)
            self._source = dict(zip(source, values, strict=True))

    def _choice(self, types: list[str]) -> RowChoice:
        return RowChoice(types, self._model.device, self._model.providers)
