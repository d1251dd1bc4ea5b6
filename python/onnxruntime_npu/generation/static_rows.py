"""A cache of fixed capacity whose rows have different lengths, written in place by a session."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnxruntime as ort

from ..session.ortvalue import fill_with_zeros, ortvalues_in_one_block
from .growing_cache import PAST, PRESENT, is_state
from .row_choice import ELEMENT_TYPES

LENGTHS, TOTALS = "sequence_lengths", "total_lengths"
# Capacities are multiples of this, so that calls of similar length need memory of the same sizes.
_CAPACITY_STEP = 64


class StaticRows:
    """Keys and values, and states, of one batch in buffers that stay on the device."""

    def __init__(
        self, session: ort.InferenceSession, device: tuple[str, int], batch: int, length: int
    ) -> None:
        """Allocate buffers, with undefined content but for states.

        Args:
            session: a model with inputs sequence_lengths, total_lengths and past_key_values.*,
                outputs logits and present.*.
            device: where the buffers are, as ``bind_output`` takes it.
            batch: number of rows.
            length: most tokens of a row, padding of its prompt included.
        """
        self._session = session
        self._device = device
        self._totals = np.zeros(batch, np.int64)
        past = [v for v in session.get_inputs() if v.name.startswith(PAST)]
        self._past = [value.name for value in past]
        capacity = -(-length // _CAPACITY_STEP) * _CAPACITY_STEP
        sizes = {0: batch, 2: capacity}
        shapes = [
            [sizes[i] if isinstance(size, str) else size for i, size in enumerate(value.shape)]
            for value in past
        ]
        types = [ELEMENT_TYPES[value.type] for value in past]
        self._tensors = self._buffers(shapes, types)
        # Keys and values are written in place; states are read and written in turns.
        places = [i for i, name in enumerate(self._past) if is_state(name)]
        others = self._buffers([shapes[i] for i in places], [types[i] for i in places])
        self._others = dict(zip(places, others, strict=True))
        for place in places:
            fill_with_zeros(self._tensors[place])

    def _buffers(self, shapes: list[list[int]], types: list[int]) -> list[ort.OrtValue]:
        if self._device[0] == "npu":
            return ortvalues_in_one_block(shapes, types, self._device[1]) if shapes else []
        make = ort.OrtValue.ortvalue_from_shape_and_type
        return [make(shape, each, "cpu", 0) for shape, each in zip(shapes, types, strict=True)]

    def step(
        self, inputs: Mapping[str, np.ndarray | ort.OrtValue], lengths: np.ndarray
    ) -> ort.OrtValue:
        """Run with the inputs, by name, ``lengths[b]`` tokens of row b; return the logits."""
        self._totals = self._totals + lengths
        binding = self._session.io_binding()
        for name, value in {**inputs, LENGTHS: lengths, TOTALS: self._totals}.items():
            if isinstance(value, np.ndarray):
                binding.bind_cpu_input(name, np.ascontiguousarray(value))
            else:
                binding.bind_ortvalue_input(name, value)
        binding.bind_output("logits", *self._device)
        written = [self._others.get(i, tensor) for i, tensor in enumerate(self._tensors)]
        for name, before, after in zip(self._past, self._tensors, written, strict=True):
            binding.bind_ortvalue_input(name, before)
            binding.bind_ortvalue_output(name.replace(PAST, PRESENT), after)
        self._session.run_with_iobinding(binding)
        self._others = {place: self._tensors[place] for place in self._others}
        self._tensors = written
        return binding.get_outputs()[0]

    def clear(self) -> None:
        """Release the buffers."""
        self._tensors, self._others = [], {}
