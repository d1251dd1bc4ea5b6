"""A cache whose tensors a session takes and returns: longer by a step's tokens, or states."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnxruntime as ort

from ..session.ortvalue import fill_with_zeros
from .row_choice import ELEMENT_TYPES, RowChoice

PAST, PRESENT = "past_key_values.", "present."


def is_state(name: str) -> bool:
    """Return whether a cache is a state, as large for any number of tokens."""
    return "_state" in name


class GrowingCache:
    """Keys and values, and states, of one batch, which stay on the device between steps."""

    def __init__(
        self,
        session: ort.InferenceSession,
        device: tuple[str, int],
        batch: int,
        part: str = "",
        but: str | None = None,
    ) -> None:
        """Begin with no tokens.

        Args:
            session: a model with inputs past_key_values.* and outputs logits and present.*.
            device: where its outputs stay, as ``bind_output`` takes it.
            batch: number of rows.
            part: what the names of the inputs that grow contain.
            but: what they do not contain.
        """
        self._session = session
        self._device = device
        past = [
            v
            for v in session.get_inputs()
            if v.name.startswith(PAST) and part in v.name and (but is None or but not in v.name)
        ]
        self._past = [value.name for value in past]
        self._outputs = ["logits", *(name.replace(PAST, PRESENT) for name in self._past)]
        # Keys and values have no elements yet; a state is zeros, of a fixed size for a row.
        self._tensors = [
            zeros([batch, *(0 if isinstance(d, str) else d for d in v.shape[1:])], v.type)
            for v in past
        ]

    def step(self, inputs: Mapping[str, np.ndarray | ort.OrtValue]) -> ort.OrtValue:
        """Run with the inputs, by name, after the cached tokens; return the logits."""
        binding = self._session.io_binding()
        for name, value in inputs.items():
            if isinstance(value, np.ndarray):
                binding.bind_cpu_input(name, np.ascontiguousarray(value))
            else:
                binding.bind_ortvalue_input(name, value)
        for name, value in zip(self._past, self._tensors, strict=True):
            binding.bind_ortvalue_input(name, value)
        for name in self._outputs:
            binding.bind_output(name, *self._device)
        self._session.run_with_iobinding(binding)
        logits, *self._tensors = binding.get_outputs()
        return logits

    def reorder(self, choice: RowChoice, rows: np.ndarray) -> None:
        """Replace row b by row ``rows[b]``."""
        self._tensors = choice(self._tensors, rows)

    def clear(self) -> None:
        """Release the tensors."""
        self._tensors = []


def zeros(shape: list[int], kind: str) -> ort.OrtValue:
    """Return zeros of a type that a session names."""
    value = ort.OrtValue.ortvalue_from_shape_and_type(shape, ELEMENT_TYPES[kind], "cpu", 0)
    fill_with_zeros(value)
    return value
