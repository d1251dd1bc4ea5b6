"""A cache of fixed capacity that a session writes in place; all rows have as many tokens."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnxruntime as ort

from ..session.ortvalue import ortvalues_in_one_block
from .growing_cache import PAST, PRESENT
from .row_choice import ELEMENT_TYPES, RowChoice
from .static_rows import capacity_of

POSITION = "cache_position"  # the input that says where a step writes


class PreallocatedCache:
    """Keys and values of one batch in buffers that stay where they are on the device."""

    def __init__(
        self,
        session: ort.InferenceSession,
        device: tuple[str, int],
        batch: int,
        length: int,
        part: str = "",
    ) -> None:
        """Allocate buffers, with undefined content.

        Args:
            session: a model with inputs cache_position and past_key_values.*, outputs logits and
                present.*.
            device: where the buffers are, as ``bind_output`` takes it.
            batch: number of rows.
            length: most tokens of a row.
            part: what the names of the inputs that are written contain.
        """
        self._session = session
        self._device = device
        self._tokens = 0
        past = [v for v in session.get_inputs() if v.name.startswith(PAST) and part in v.name]
        self._past = [value.name for value in past]
        capacity = capacity_of(length)
        shapes = [[batch, v.shape[1], capacity, *v.shape[3:]] for v in past]
        types = [ELEMENT_TYPES[v.type] for v in past]
        if device[0] == "npu":
            self._tensors = ortvalues_in_one_block(shapes, types, device[1])
        else:
            make = ort.OrtValue.ortvalue_from_shape_and_type
            self._tensors = [make(s, t, "cpu", 0) for s, t in zip(shapes, types, strict=True)]

    def step(self, inputs: Mapping[str, np.ndarray | ort.OrtValue]) -> ort.OrtValue:
        """Run with the inputs, by name, after the cached tokens; return the logits.

        One of them is input_ids [batch, tokens]; the caller counts that they fit.
        """
        ids = inputs["input_ids"]
        columns = ids.shape[1] if isinstance(ids, np.ndarray) else ids.shape()[1]
        end = self._tokens + columns
        binding = self._session.io_binding()
        given = {**inputs, POSITION: np.arange(self._tokens, end, dtype=np.int64)}
        for name, value in given.items():
            if isinstance(value, np.ndarray):
                binding.bind_cpu_input(name, np.ascontiguousarray(value))
            else:
                binding.bind_ortvalue_input(name, value)
        binding.bind_output("logits", *self._device)
        for name, value in zip(self._past, self._tensors, strict=True):
            binding.bind_ortvalue_input(name, value)
            binding.bind_ortvalue_output(name.replace(PAST, PRESENT), value)
        self._session.run_with_iobinding(binding)
        self._tokens = end
        return binding.get_outputs()[0]

    def reorder(self, choice: RowChoice, rows: np.ndarray) -> None:
        """Replace row b by row ``rows[b]``."""
        self._tensors = choice(self._tensors, rows)

    def clear(self) -> None:
        """Release the buffers."""
        self._tensors = []
