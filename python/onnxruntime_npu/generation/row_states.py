"""States of a fixed size of the rows of a paged cache, in host memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnxruntime as ort

from ..session.ortvalue import carrier_of, carrier_type
from .growing_cache import PAST, PRESENT
from .row_choice import ELEMENT_TYPES


class RowStates:
    """The states of each row by a number that only it has."""

    def __init__(self, inputs: Sequence[Any]) -> None:
        """Serve inputs [B, ..] of a session; there may be none."""
        self._names = [value.name for value in inputs]
        self._types = [ELEMENT_TYPES[value.type] for value in inputs]
        self._zeros = [
            np.zeros(value.shape[1:], carrier_type(kind))
            for value, kind in zip(inputs, self._types, strict=True)
        ]
        self._given: list[np.ndarray] = []  # what the last binding reads
        # With the number of tokens that a row's states are of.
        self._rows: dict[int, tuple[int, list[np.ndarray]]] = {}

    @property
    def rows(self) -> int:
        """Number of rows that have states."""
        return len(self._rows)

    def bind(self, binding: Any, rows: np.ndarray, past: np.ndarray) -> None:
        """Bind the states of rows [N] after ``past`` tokens [N], and their outputs.

        Rows without tokens begin with zeros.
        """
        if not self._names:
            return
        found = [self._of(row, count) for row, count in zip(rows.tolist(), past, strict=True)]
        self._given = [np.stack(tensors) for tensors in zip(*found, strict=True)]
        for name, kind, array in zip(self._names, self._types, self._given, strict=True):
            value = ort.OrtValue.ortvalue_from_numpy_with_onnx_type(array, kind)
            binding.bind_ortvalue_input(name, value)
            binding.bind_output(name.replace(PAST, PRESENT), "cpu")

    def _of(self, row: int, past: int) -> list[np.ndarray]:
        if not past:
            return self._zeros
        tokens, tensors = self._rows[row]
        assert tokens == past, "a row goes on after the tokens that it has"
        return tensors

    def keep(self, states: Sequence[ort.OrtValue], rows: np.ndarray, totals: np.ndarray) -> None:
        """Keep outputs [N, ..] as the states of rows after ``totals`` tokens."""
        if not self._names:
            return
        arrays = [carrier_of(value) for value in states]
        for i, (row, total) in enumerate(zip(rows.tolist(), totals.tolist(), strict=True)):
            self._rows[row] = total, [array[i].copy() for array in arrays]

    def reorder(self, old: Sequence[int], new: Sequence[int]) -> None:
        """Give rows ``old`` the states that rows ``new`` have."""
        if self._names:
            self._rows.update(zip(old, [self._rows[row] for row in new], strict=True))

    def forget(self, row: int) -> None:
        """Release the states of a row, which may have none."""
        self._rows.pop(row, None)

    def clear(self) -> None:
        """Release the states."""
        self._rows.clear()
