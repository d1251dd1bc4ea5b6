"""A cache of fixed capacity whose rows have different lengths, written in place by a session."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnxruntime as ort

from ..session.ortvalue import fill_with_zeros, ortvalue_from_numpy, ortvalues_in_one_block
from .growing_cache import PAST, PRESENT, is_state
from .row_choice import ELEMENT_TYPES

LENGTHS, TOTALS = "sequence_lengths", "total_lengths"
EMBEDS, POSITIONS = "inputs_embeds", "position_ids"
# Capacities are multiples of this, so that batches of similar length have the same buffers.
_CAPACITY_STEP = 64
_OUTSIDE_GRAPHS = "-1"
_FLOAT, _INT64 = 1, 7


def capacity_of(length: int, step: int = _CAPACITY_STEP) -> int:
    """Return the capacity of rows of at most ``length`` tokens, a multiple of ``step``."""
    return -(-length // step) * step


class StaticRows:
    """Keys and values, and states, of one batch in buffers that stay on the device.

    Where the session captures graphs, a step of one token for each row has its inputs and logits in
    buffers, too, so that it is captured once and replayed.

    Attributes:
        shape: the number of rows, and the capacity of each.
        embeds: where the embeddings [B, 1, H] of a step of one token are expected; None without
            graphs.
    """

    def __init__(
        self,
        session: ort.InferenceSession,
        device: tuple[str, int],
        batch: int,
        capacity: int,
        graph: int | None = None,
    ) -> None:
        """Allocate buffers, with undefined content.

        Args:
            session: a model with inputs inputs_embeds, sequence_lengths, total_lengths and
                past_key_values.*, outputs logits and present.*.
            device: where the buffers are, as ``bind_output`` takes it.
            batch: number of rows.
            capacity: most tokens of a row, padding of its prompt included.
            graph: a number of its own, from 1, for what the session captures; None if it captures
                nothing.
        """
        self.shape = (batch, capacity)
        self._session = session
        self._device = device
        self._totals = np.zeros(batch, np.int64)
        past = [v for v in session.get_inputs() if v.name.startswith(PAST)]
        self._past = [value.name for value in past]
        sizes = {0: batch, 2: capacity}
        shapes = [
            [sizes[i] if isinstance(size, str) else size for i, size in enumerate(value.shape)]
            for value in past
        ]
        types = [ELEMENT_TYPES[value.type] for value in past]
        tensors = self._buffers(shapes, types)
        # Keys and values are written in place; states are read and written in turns.
        self._states = [i for i, name in enumerate(self._past) if is_state(name)]
        others = list(tensors)
        made = self._buffers([shapes[i] for i in self._states], [types[i] for i in self._states])
        for place, other in zip(self._states, made, strict=True):
            others[place] = other
        self._turns = [tensors, others] if self._states else [tensors]
        self._turn = 0
        self._prompt = ort.RunOptions()
        self.embeds: ort.OrtValue | None = None
        if graph is not None:
            self._prompt.add_run_config_entry("gpu_graph_id", _OUTSIDE_GRAPHS)
            self._prepare_graphs(graph)

    def _prepare_graphs(self, graph: int) -> None:
        """Allocate and bind what a step of one token for each row reads and writes."""
        batch = self.shape[0]
        taken = {value.name: value for value in self._session.get_inputs()}
        vocabulary = next(o.shape[-1] for o in self._session.get_outputs() if o.name == "logits")
        self.embeds = self._buffer([batch, 1, taken[EMBEDS].shape[-1]], _FLOAT)
        # Host arrays that are copied to the device's: see decoding.py.
        self._host = {TOTALS: np.zeros(batch, np.int64)}
        if POSITIONS in taken:
            self._host[POSITIONS] = np.zeros([*taken[POSITIONS].shape[:-2], batch, 1], np.int64)
        self._host_values = [ort.OrtValue.ortvalue_from_numpy(x) for x in self._host.values()]
        self._new = [self._buffer([*x.shape], _INT64) for x in self._host.values()]
        self._logits = self._buffer([batch, 1, int(vocabulary)], _FLOAT)
        given = {
            EMBEDS: self.embeds,
            LENGTHS: ortvalue_from_numpy(np.ones(batch, np.int64), self._device[1]),
            **dict(zip(self._host, self._new, strict=True)),
        }
        self._bindings, self._options = [], []
        for turn in range(len(self._turns)):
            binding = self._bind(turn)
            for key, value in given.items():
                binding.bind_ortvalue_input(key, value)
            binding.bind_ortvalue_output("logits", self._logits)
            options = ort.RunOptions()
            options.add_run_config_entry("gpu_graph_id", f"{2 * graph + turn}")
            self._bindings.append(binding)
            self._options.append(options)

    def _buffer(self, shape: list[int], element_type: int) -> ort.OrtValue:
        return ort.OrtValue.ortvalue_from_shape_and_type(shape, element_type, *self._device)

    def _buffers(self, shapes: list[list[int]], types: list[int]) -> list[ort.OrtValue]:
        if self._device[0] == "npu":
            return ortvalues_in_one_block(shapes, types, self._device[1]) if shapes else []
        make = ort.OrtValue.ortvalue_from_shape_and_type
        return [make(shape, each, "cpu", 0) for shape, each in zip(shapes, types, strict=True)]

    def restart(self) -> None:
        """Begin another batch: of no tokens, with the states before the first."""
        self._totals = np.zeros_like(self._totals)
        for place in self._states:
            fill_with_zeros(self._turns[self._turn][place])

    def _bind(self, turn: int) -> Any:
        """Return a binding of the buffers that a turn reads and writes."""
        binding = self._session.io_binding()
        written = self._turns[turn - 1]
        for name, before, after in zip(self._past, self._turns[turn], written, strict=True):
            binding.bind_ortvalue_input(name, before)
            binding.bind_ortvalue_output(name.replace(PAST, PRESENT), after)
        return binding

    def _next_turn(self) -> int:
        turn, self._turn = self._turn, (self._turn + 1) % len(self._turns)
        return turn

    def step(
        self, inputs: Mapping[str, np.ndarray | ort.OrtValue], lengths: np.ndarray
    ) -> ort.OrtValue:
        """Run with the inputs, by name, ``lengths[b]`` tokens of row b; return the logits."""
        self._totals = self._totals + lengths
        binding = self._bind(self._next_turn())
        for name, value in {**inputs, LENGTHS: lengths, TOTALS: self._totals}.items():
            if isinstance(value, np.ndarray):
                binding.bind_cpu_input(name, np.ascontiguousarray(value))
            else:
                binding.bind_ortvalue_input(name, value)
        binding.bind_output("logits", *self._device)
        self._session.run_with_iobinding(binding, self._prompt)
        return binding.get_outputs()[-1]

    def replay(self, positions: np.ndarray | None) -> ort.OrtValue:
        """Run on a token of each row, whose embeddings are in ``embeds``; return the logits.

        Captures the step first, or replays it. positions: [3, B, 1], where the model takes them.
        """
        self._totals = self._totals + 1
        self._host[TOTALS][:] = self._totals
        if positions is not None:
            self._host[POSITIONS][:] = positions
        ort.copy_tensors(self._host_values, self._new)
        turn = self._next_turn()
        self._session.run_with_iobinding(self._bindings[turn], self._options[turn])
        return self._logits
