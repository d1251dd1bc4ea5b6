"""Steps of an exported model: prompts in, then one token per row, logits out.

The cache stays on the device between steps: with a dynamic cache the outputs of one step are bound
as inputs of the next, with a static cache the same buffers are bound as both. With a static
cache every step uses the same addresses, so the NPU captures it once and replays it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import onnxruntime as ort
from onnxruntime.capi import onnxruntime_pybind11_state as C

from ..errors import ArgumentError
from ..session.ortvalue import (
    fill_with_zeros,
    ortvalue_from_numpy,
    ortvalue_to_numpy,
    ortvalues_in_one_block,
)
from ..session.provider_library import get_ep_name
from .adapters import NONE, Adapter
from .growing_cache import PAST, PRESENT, GrowingCache, is_state
from .kept_buffers import KeptBuffers
from .paged_cache import PagedCache
from .prompt_lookup import ScoringStepper
from .row_choice import ELEMENT_TYPES, RowChoice
from .static_rows import capacity_of

_CACHE_KEY = "onnxruntime_npu.cache"
_FLOAT, _INT64 = 1, 7
_INPUTS = ("input_ids", "sequence_lengths", "total_lengths")  # with a static cache
_GRAPHS = "enable_npu_graph"
# Capacities of static caches are multiples of this, so that calls of similar length share one.
_CAPACITY_STEP = 256


class Stepper(Protocol):
    """The state of one batch of rows."""

    def prefill(self) -> ort.OrtValue:
        """Return the logits after the prompts, [B, S, V]: only the last position is used."""

    def decode(self, tokens: np.ndarray) -> ort.OrtValue:
        """Add one token per row, [B], and return the logits after it, [B, 1, V]."""

    def close(self) -> None:
        """Release the buffers for reuse by a later batch."""


class CausalStepper(Stepper, Protocol):
    """The state of one batch of a causal language model."""

    def extend(self, rows: Sequence[Sequence[int]]) -> ort.OrtValue:
        """Add tokens to each row, at least one; return logits [B, S, V]; the last count."""

    def reorder(self, rows: np.ndarray) -> None:
        """Continue each row from the state of row ``rows[b]``, int64 [B]."""


class StepModel:
    """A session on an exported model.onnx, and the metadata for its steps."""

    def __init__(
        self, path: str, options: ort.SessionOptions, providers: Sequence[Any], *, static: bool
    ) -> None:
        """Open the model; ArgumentError for one that export_causal_lm did not write.

        ``static``: the model has a static cache, so that graphs are worth trying.
        """
        self.session, self.graphs = open_with_graphs(path, options, providers, static)
        self.device, self.device_id = device_of(providers)
        self.cache = self.session.get_modelmeta().custom_metadata_map.get(_CACHE_KEY, "")
        if self.cache not in _STEPPERS:
            raise ArgumentError(f"{path} was not made by export_causal_lm")
        if self.graphs and self.cache != "static":
            refuse_graphs_of_growing_caches()
        self.inputs = {i.name: i for i in self.session.get_inputs()}
        logits = next(o for o in self.session.get_outputs() if o.name == "logits")
        self.vocabulary = int(logits.shape[-1])
        self.past = [name for name in self.inputs if name.startswith(PAST)]
        self.keeps_states = any(map(is_state, self.past))
        self.present = [name.replace(PAST, PRESENT) for name in self.past]
        # Rows of a paged cache keep their states beside the blocks.
        paged = self.cache == "paged"
        self._caches = [name for name in self.past if not (paged and is_state(name))]
        types = [self.inputs[name].type for name in self._caches]
        self.choice = RowChoice(types, (self.device, self.device_id), providers)
        self.kept: KeptBuffers[_StaticSteps] = KeptBuffers()

    def stepper(self, rows: list[list[int]], length: int, adapter: Adapter = NONE) -> CausalStepper:
        """Return the state of a batch whose rows grow to at most ``length`` tokens."""
        return _STEPPERS[self.cache](self, rows, length, adapter)

    def scoring_stepper(
        self, rows: list[list[int]], length: int, adapter: Adapter = NONE
    ) -> ScoringStepper:
        """Return the state of such a batch whose rows may be run alone and more than once.

        Raises ArgumentError for a cache without that.
        """
        if self.cache != "paged":
            raise ArgumentError(
                "prompt_lookup_num_tokens expected a model exported with cache='paged', which has "
                f"the logits of several tokens, got cache={self.cache!r}"
            )
        if self.keeps_states:
            raise ArgumentError(
                "prompt_lookup_num_tokens expected a model that caches keys and values alone, got "
                "one with states, which wrong guesses cannot be taken out of"
            )
        return _PagedStepper(self, rows, length, adapter)

    def new_cache(self, batch: int, length: int) -> list[ort.OrtValue]:
        """Return cache buffers on the device, with undefined content, for rows of ``length``.

        Keys and values are [batch, Nkv, length, D], scales of an int8 cache [batch, Nkv, length].
        """
        return self._buffers(self._caches, {0: batch, 2: length})

    def with_new_states(self, caches: list[ort.OrtValue], batch: int) -> list[ort.OrtValue]:
        """Return caches with other buffers in the place of the states of ``batch`` rows."""
        names = [name for name in self.past if is_state(name)]
        states = iter(self._buffers(names, {0: batch}))
        return [
            next(states) if is_state(name) else cache
            for name, cache in zip(self.past, caches, strict=True)
        ]

    def new_blocks(self, count: int) -> list[ort.OrtValue]:
        """Return paged caches of ``count`` blocks on the device, with undefined content."""
        return self._buffers(self._caches, {0: count})

    @property
    def block_size(self) -> int:
        """Tokens of a block of a paged cache."""
        return int(self.inputs[self.past[0]].shape[1])

    def _buffers(self, names: Sequence[str], sizes: dict[int, int]) -> list[ort.OrtValue]:
        """Return a buffer for each input; ``sizes`` are those of the axes that are dynamic."""
        inputs = [self.inputs[name] for name in names]
        types = [ELEMENT_TYPES[each.type] for each in inputs]
        shapes = [
            [sizes[i] if isinstance(size, str) else size for i, size in enumerate(each.shape)]
            for each in inputs
        ]
        if self.device == "npu":
            return ortvalues_in_one_block(shapes, types, self.device_id)
        make = ort.OrtValue.ortvalue_from_shape_and_type
        return [make(shape, each, "cpu", 0) for shape, each in zip(shapes, types, strict=True)]

    def take_steps(self, batch: int, length: int, adapter: Adapter) -> _StaticSteps:
        """Return buffers for a batch whose rows grow to at most ``length`` tokens."""
        capacity = capacity_of(length, _CAPACITY_STEP)
        return self.kept.take(
            lambda kept: kept.adapter is adapter and kept.shape == (batch, capacity),
            lambda number: _StaticSteps(self, batch, capacity, number, adapter),
        )


def device_of(providers: Sequence[Any]) -> tuple[str, int]:
    """Return where caches stay: the NPU if it is among the providers, else the CPU.

    They stay in host memory, too, where the session works on that.
    """
    settings = dict((p, {}) if isinstance(p, str) else p for p in providers)
    if get_ep_name() not in settings or _in_host_memory(settings[get_ep_name()]):
        return "cpu", 0
    return "npu", int(settings[get_ep_name()].get("device_id", 0))


def _in_host_memory(settings: Mapping[str, Any]) -> bool:
    return str(settings.get("host_memory", 0)) == "1"


def open_with_graphs(
    path: str, options: ort.SessionOptions, providers: Sequence[Any], static: bool
) -> tuple[ort.InferenceSession, bool]:
    """Return a session and whether it captures graphs.

    ``static``: the model has a static cache, so that graphs are worth trying.
    """
    given = [(p, {}) if isinstance(p, str) else p for p in providers]
    name, settings = given[0]
    # A graph holds the launches of one thread.
    sequential = options.execution_mode == ort.ExecutionMode.ORT_SEQUENTIAL
    on_npu = name == get_ep_name() and not _in_host_memory(settings)
    default = static and sequential and on_npu and not _has_control_flow(path)
    wanted = str(settings.get(_GRAPHS, int(default))) == "1"
    if wanted and _GRAPHS not in settings:
        captured = [(name, {**settings, _GRAPHS: "1"}), *given[1:]]
        try:
            return ort.InferenceSession(path, options, providers=captured), True
        except C.Fail as error:
            # Some node runs on the CPU; run without graphs, which the caller did not request.
            if _GRAPHS not in str(error):
                raise
            wanted = False
    return ort.InferenceSession(path, options, providers=list(providers)), wanted


def without_graphs(providers: Sequence[Any]) -> list[Any]:
    """Return providers for a session whose inputs have no places of their own."""
    return [
        p if isinstance(p, str) else (p[0], {**p[1], **({_GRAPHS: "0"} if _GRAPHS in p[1] else {})})
        for p in providers
    ]


def refuse_graphs_of_growing_caches() -> None:
    """Raise ArgumentError: a graph depends on addresses."""
    raise ArgumentError(
        f"{_GRAPHS} expected a static cache, got one that grows: export with cache='static'"
    )


def _has_control_flow(path: str) -> bool:
    """Return whether a model has what onnxruntime captures no graph with, and logs an error for."""
    import onnx

    nodes = onnx.load(path, load_external_data=False).graph.node
    return any(node.op_type in ("If", "Loop", "Scan") for node in nodes)


class _DynamicStepper:
    """Prompts padded on the left; the cache grows by one token per step."""

    def __init__(
        self, model: StepModel, rows: list[list[int]], length: int, adapter: Adapter
    ) -> None:
        del length  # the cache grows dynamically
        self._rows = rows
        self._mask = np.zeros((len(rows), 0), np.int64)
        self._choice = model.choice
        device = (model.device, model.device_id)
        self._cache = GrowingCache(model.session, device, len(rows))
        self._keeps_states = model.keeps_states
        self._adapter = adapter

    def prefill(self) -> ort.OrtValue:
        return self.extend(self._rows)

    def extend(self, rows: Sequence[Sequence[int]]) -> ort.OrtValue:
        longest = max(map(len, rows))
        if self._keeps_states and self._mask.shape[1] and longest != min(map(len, rows)):
            raise ArgumentError(
                "expected as many new tokens in every row, since the model's layers keep states, "
                f"which padding would change, got {[len(row) for row in rows]}"
            )
        ids = np.zeros((len(rows), longest), np.int64)
        mask = np.zeros((len(rows), longest), np.int64)
        for i, row in enumerate(rows):
            ids[i, longest - len(row) :] = row
            mask[i, longest - len(row) :] = 1
        self._mask = np.concatenate([self._mask, mask], axis=1)
        return self._step(ids)

    def reorder(self, rows: np.ndarray) -> None:
        self._mask = self._mask[rows]
        self._cache.reorder(self._choice, rows)

    def close(self) -> None:
        self._cache.clear()

    def decode(self, tokens: np.ndarray) -> ort.OrtValue:
        self._mask = np.pad(self._mask, ((0, 0), (0, 1)), constant_values=1)
        return self._step(tokens[:, None])

    def _step(self, ids: np.ndarray) -> ort.OrtValue:
        positions = np.maximum(self._mask.cumsum(axis=1) - 1, 0)[:, -ids.shape[1] :]
        inputs = {"input_ids": ids, "attention_mask": self._mask, "position_ids": positions}
        return self._cache.step({**inputs, **self._adapter})


class _StaticSteps:
    """Buffers of a batch, bound once: each step writes tokens and lengths into them."""

    def __init__(
        self, model: StepModel, batch: int, capacity: int, graph: int, adapter: Adapter
    ) -> None:
        self._model = model
        self.adapter = adapter
        self.shape = (batch, capacity)
        # Keys and values are written in place; states are read and written in turns.
        self._caches = [model.new_cache(batch, capacity)]
        if model.keeps_states:
            self._caches.append(model.with_new_states(self._caches[0], batch))
        self._turn = 0
        self._prompt = ort.RunOptions()
        self._token = [ort.RunOptions() for _ in self._caches]
        if model.graphs:
            self._prompt.add_run_config_entry("gpu_graph_id", "-1")
            for turn, options in enumerate(self._token):
                options.add_run_config_entry("gpu_graph_id", f"{2 * graph + turn}")
        self._bindings = self._bind_all()
        if model.graphs:
            make = ort.OrtValue.ortvalue_from_shape_and_type
            device = ("npu", model.device_id)
            self._new = [make([batch, 1], _INT64, *device), make([batch], _INT64, *device)]
            # Host arrays that are copied to them, allocated once: after reading the weights the CPU
            # caches are cold, and each object that a step created would cost microseconds.
            self._host = [np.empty((batch, 1), np.int64), np.empty(batch, np.int64)]
            self._host_values = [ort.OrtValue.ortvalue_from_numpy(a) for a in self._host]
            ones = ortvalue_from_numpy(np.ones(batch, np.int64), model.device_id)
            self._logits = make([batch, 1, model.vocabulary], _FLOAT, *device)
            given = dict(zip(_INPUTS, (self._new[0], ones, self._new[1]), strict=True))
            for binding in self._bindings:
                for name, value in given.items():
                    binding.bind_ortvalue_input(name, value)
                binding.bind_ortvalue_output("logits", self._logits)

    def _bind_all(self) -> list[Any]:
        return [self._bind(turn) for turn in range(len(self._caches))]

    def _bind(self, turn: int) -> Any:
        """Return a binding of the adapter, and of the caches that a turn reads and writes."""
        model = self._model
        binding = model.session.io_binding()
        for name, value in self.adapter.items():
            binding.bind_ortvalue_input(name, value)
        for name, cache in zip(model.past, self._caches[turn], strict=True):
            binding.bind_ortvalue_input(name, cache)
        for name, cache in zip(model.present, self._caches[turn - 1], strict=True):
            binding.bind_ortvalue_output(name, cache)
        return binding

    def clear_states(self) -> None:
        """Let states be those before the first token, which keys and values do not need."""
        for name, cache in zip(self._model.past, self._caches[self._turn], strict=True):
            if is_state(name):
                fill_with_zeros(cache)

    def reorder(self, rows: np.ndarray) -> None:
        """Replace row b of each cache by row ``rows[b]``."""
        caches = self._caches[self._turn]
        chosen = self._model.choice(caches, rows)
        if self._model.graphs:  # captured graphs have the addresses of the caches
            ort.copy_tensors(chosen, caches)
            return
        self._caches, self._turn = [chosen], 0
        if self._model.keeps_states:
            self._caches.append(self._model.with_new_states(chosen, len(rows)))
        self._bindings = self._bind_all()

    def step(self, ids: np.ndarray, lengths: np.ndarray, totals: np.ndarray) -> ort.OrtValue:
        """Run on input_ids [B, S], sequence_lengths [B] and total_lengths [B]."""
        turn, self._turn = self._turn, (self._turn + 1) % len(self._caches)
        if self._model.graphs and ids.shape[1] == 1:  # then every length is 1
            self._host[0][:], self._host[1][:] = ids, totals
            ort.copy_tensors(self._host_values, self._new)
            self._model.session.run_with_iobinding(self._bindings[turn], self._token[turn])
            return self._logits
        # Binding copies an input that the first of its nodes wants elsewhere: states of a Scan.
        anew = self._model.graphs or self._model.keeps_states
        binding = self._bind(turn) if anew else self._bindings[turn]
        for name, value in zip(_INPUTS, (ids, lengths, totals), strict=True):
            binding.bind_cpu_input(name, value)
        binding.bind_output("logits", self._model.device, self._model.device_id)
        self._model.session.run_with_iobinding(binding, self._prompt)
        return binding.get_outputs()[-1]


class _StaticStepper:
    """Prompts padded on the right; the cache is written in place."""

    def __init__(
        self, model: StepModel, rows: list[list[int]], length: int, adapter: Adapter
    ) -> None:
        self._rows = rows
        self._total_lengths = np.zeros(len(rows), np.int64)
        self._model = model
        self._steps = model.take_steps(len(rows), length, adapter)
        self._steps.clear_states()

    def prefill(self) -> ort.OrtValue:
        return self.extend(self._rows)

    def extend(self, rows: Sequence[Sequence[int]]) -> ort.OrtValue:
        lengths = np.array([len(row) for row in rows], np.int64)
        ids = np.zeros((len(rows), lengths.max()), np.int64)
        for i, row in enumerate(rows):
            ids[i, : len(row)] = row
        logits = self._step(ids, lengths)
        if logits.shape()[1] == 1:
            return logits
        # Exported with the logits of all tokens: those of a shorter row end before its padding.
        last = ortvalue_to_numpy(logits)[np.arange(len(ids)), lengths - 1]
        return ort.OrtValue.ortvalue_from_numpy(np.ascontiguousarray(last[:, None]))

    def reorder(self, rows: np.ndarray) -> None:
        self._total_lengths = self._total_lengths[rows]
        self._steps.reorder(rows)

    def decode(self, tokens: np.ndarray) -> ort.OrtValue:
        return self._step(tokens[:, None], np.ones(len(tokens), np.int64))

    def close(self) -> None:
        self._model.kept.give_back(self._steps)

    def _step(self, ids: np.ndarray, lengths: np.ndarray) -> ort.OrtValue:
        self._total_lengths = self._total_lengths + lengths
        return self._steps.step(np.ascontiguousarray(ids), lengths, self._total_lengths)


class _PagedStepper:
    """Sequences side by side, each in blocks of its own; the cache is written in place."""

    def __init__(
        self, model: StepModel, rows: list[list[int]], length: int, adapter: Adapter
    ) -> None:
        self._choice = model.choice
        self._adapter = adapter
        self._rows = rows
        self._past = np.zeros(len(rows), np.int32)
        of_each = -(-length // model.block_size)
        blocks = np.arange(len(rows) * of_each, dtype=np.int32)
        self._table = blocks.reshape(len(rows), of_each)
        self._cache = PagedCache(model.session, model.new_blocks(len(blocks)))

    def prefill(self) -> ort.OrtValue:
        return self.extend(self._rows)

    def extend(self, rows: Sequence[Sequence[int]]) -> ort.OrtValue:
        return self._step([np.array(row, np.int64) for row in rows])

    def reorder(self, rows: np.ndarray) -> None:
        self._past = self._past[rows]
        self._cache.reorder(self._choice, self._table[rows].astype(np.int64))

    def decode(self, tokens: np.ndarray) -> ort.OrtValue:
        return self._step(list(tokens[:, None]))

    def score(
        self, rows: Sequence[int], past: Sequence[int], new: Sequence[Sequence[int]]
    ) -> list[np.ndarray]:
        """Run some rows after their first ``past`` tokens; logits [S, V] of each one's S new."""
        ends = np.cumsum([len(row) for row in new], dtype=np.int32)
        logits = self._cache.step(
            [np.array(row, np.int64) for row in new],
            np.array(past, np.int32),
            self._table[list(rows)],
            np.arange(ends[-1], dtype=np.int32),
            self._adapter,
        )
        return np.split(logits, ends[:-1])

    def close(self) -> None:
        self._cache.clear()

    def _step(self, new: list[np.ndarray]) -> ort.OrtValue:
        lengths = np.array([len(row) for row in new], np.int32)
        last = np.cumsum(lengths, dtype=np.int32) - 1
        logits = self._cache.step(new, self._past, self._table, last, self._adapter)
        self._past = self._past + lengths
        return ort.OrtValue.ortvalue_from_numpy(np.ascontiguousarray(logits[:, None]))


_Make = Callable[[StepModel, list[list[int]], int, Adapter], CausalStepper]
_STEPPERS: dict[str, _Make] = {
    "dynamic": _DynamicStepper,
    "static": _StaticStepper,
    "paged": _PagedStepper,
}
