"""A cache in blocks, which a session updates in place: rows of any lengths side by side."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnxruntime as ort

from .adapters import NONE, Adapter
from .growing_cache import PAST, PRESENT, is_state
from .row_choice import RowChoice
from .row_states import RowStates


class PagedCache:
    """Blocks of keys and values on the device; which block has which tokens, the caller knows.

    A model's layers may keep states beside them. Those of a row are known by its first block.
    """

    def __init__(self, session: ort.InferenceSession, blocks: list[ort.OrtValue]) -> None:
        """Take a model with inputs past_key_values.*, and blocks for each that is no state."""
        self._session = session
        past = [value for value in session.get_inputs() if value.name.startswith(PAST)]
        self._names = [
            (value.name, value.name.replace(PAST, PRESENT))
            for value in past
            if not is_state(value.name)
        ]
        self._blocks = blocks
        self._states = RowStates([value for value in past if is_state(value.name)])

    def step(
        self,
        new: Sequence[np.ndarray],
        past: np.ndarray,
        table: np.ndarray,
        wanted: np.ndarray,
        adapter: Adapter = NONE,
    ) -> np.ndarray:
        """Add tokens to each of N rows; return logits after some of them, float32 [W, V].

        Args:
            new: tokens of each row, at least one, int64 [S].
            past: number of tokens that the row has in its blocks, int32 [N].
            table: blocks of each row in their order, int32 [N, M].
            wanted: positions among all new tokens, one row after the other, int32 [W].
            adapter: inputs of every step.
        """
        inputs = {
            "input_ids": np.concatenate(new),
            "cumulative_sequence_lengths": np.cumsum([0, *map(len, new)]).astype(np.int32),
            "past_sequence_lengths": past,
            "block_table": table,
            "logits_indices": wanted,
        }
        binding = self._session.io_binding()
        for name, value in inputs.items():
            binding.bind_cpu_input(name, np.ascontiguousarray(value))
        for name, matrix in adapter.items():
            binding.bind_ortvalue_input(name, matrix)
        for (before, after), blocks in zip(self._names, self._blocks, strict=True):
            binding.bind_ortvalue_input(before, blocks)
            binding.bind_ortvalue_output(after, blocks)
        self._states.bind(binding, table[:, 0], past)
        binding.bind_output("logits", "cpu")
        self._session.run_with_iobinding(binding)
        *states, logits = binding.get_outputs()[len(self._names) :]
        self._states.keep(states, table[:, 0], past + [len(row) for row in new])
        return logits.numpy()

    def reorder(self, choice: RowChoice, table: np.ndarray) -> None:
        """Replace the blocks of all rows, 0, 1 and so on, by those of a table [N, M]."""
        self._blocks = choice(self._blocks, table.ravel())
        self._states.reorder(range(0, table.size, table.shape[1]), table[:, 0].tolist())

    def forget(self, block: int) -> None:
        """Release the states of the row whose first block this is."""
        self._states.forget(block)

    def clear(self) -> None:
        """Release the blocks."""
        self._blocks = []
        self._states.clear()
