"""Static, paged and int8 caches of models that are exported by their own forward pass.

The model gets a cache of transformers whose layers write into that of a step. What a token sees
follows from its position: the model's mask function is recognised as causal or as a sliding window,
and fused attention gets lengths, or blocks and their table, instead of a mask [B, 1, S, T].
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from transformers.cache_utils import CacheLayerMixin, DummyLayer

from .attention_interface import AttentionCall
from .caches.static import StaticStep
from .caches.step import LayerCache, State, Step
from .model_cache import LayerKind, read_cache, state_tensors, take_state
from .positioned_layer import PositionedLayer
from .proof import NotProven
from .roles.masking import Masking
from .state_layers import StateLayer

_MOST_POSITIONS = 2**20  # that a mask function is compared on

Maskings = dict[int, Masking | None]


class StepLayer(PositionedLayer, CacheLayerMixin):
    """A layer of transformers' cache that lies in the cache of a step."""

    slots_are_positions = True

    def __init__(self, step: Step, cache: LayerCache) -> None:
        CacheLayerMixin.__init__(self)
        self._step = step
        self.cache = cache

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """Do nothing: the cache is given."""

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *_: Any, **__: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Write new keys and values [B, Nkv, S, D]; return those of the whole cache."""
        past = self.cache

        def new(rows: torch.Tensor, cached: torch.Tensor) -> torch.Tensor:
            rows = rows.to(cached.dtype) if cached.is_floating_point() else rows
            return self._step.laid_out(rows)

        written = new(key_states, past.key), new(value_states, past.value)
        return self.take(self._step.update(past, *written))

    def update_indexer(self, indexer_key_states: torch.Tensor) -> torch.Tensor:
        """Write an indexer's new keys [B, S, D]; return those of the whole cache [B, C, D]."""
        keys = self._step.laid_out(indexer_key_states[:, None])
        self.cache = self._step.update_index(self.cache, keys)
        assert self.cache.index_key is not None
        return self.cache.index_key.squeeze(self._step.heads_axis)

    def update_index(self, keys: torch.Tensor) -> torch.Tensor:
        """Write an indexer's new keys [B, 1, S, D]; return those of the whole cache."""
        return self.update_indexer(keys.squeeze(1))[:, None]

    def take(self, cache: LayerCache) -> tuple[torch.Tensor, torch.Tensor]:
        """Hold what the cache has become; return its keys and values."""
        self.cache = cache
        self.keys, self.values = cache.key, cache.value
        return self.keys, self.values

    @property
    def block_slots(self) -> torch.Tensor | None:
        """The slot of each new token [B, S] in a cache of blocks; None for other caches."""
        return self._step.block_slots


class StatefulStepLayer(StateLayer, StepLayer):
    """A layer with states beside keys and values."""

    is_croppable = False

    def __init__(self, count: int, convolved: bool, step: Step, cache: LayerCache) -> None:
        StepLayer.__init__(self, step, cache)
        StateLayer.__init__(self, count, convolved)


class SharedStep:
    """A step that a model shares with its attention and masks (attention_interface.py)."""

    def __init__(
        self,
        step: Step,
        kinds: Sequence[LayerKind],
        past: list[LayerCache],
        states: Sequence[State],
        maskings: Maskings,
        positions: int,
        convolved: bool,
    ) -> None:
        """Take the caches of the layers that attend, and the step's tensors as the states.

        ``convolved``: as of ``StateLayer``.
        ``maskings``: what the model's masks are, in the order in which it makes them. The first
        run, which is not traced, fills it by comparing each on ``positions``.
        """
        self._step = step
        self._maskings = maskings
        self._positions = positions
        self._made: list[torch.Tensor] = []
        self._states, self._convolved = states, convolved
        given = iter(past)
        layers = [self._layer(kind, given) for kind in kinds]
        self.layers = [layer for layer in layers if isinstance(layer, StepLayer)]
        self.state_layers = [layer for layer in layers if isinstance(layer, StateLayer)]
        self.cache = read_cache(layers)
        for state, tensor in zip(states, step.states, strict=True):
            take_state(layers[state.layer], state, tensor)
        # Attention that is not fused, or not by this operator, reads a mask, floats and rows.
        self._reads_masks = isinstance(step, StaticStep) and not any(
            cache.rounded for cache in past
        )

    def _layer(self, kind: LayerKind, past: Iterator[LayerCache]) -> Any:
        if kind.states and kind.attends:
            return StatefulStepLayer(kind.states, self._convolved, self._step, next(past))
        if kind.states:
            return StateLayer(kind.states, self._convolved)
        return StepLayer(self._step, next(past)) if kind.attends else DummyLayer()

    def states(self) -> list[torch.Tensor]:
        """Return the states after the step."""
        return state_tensors(self.cache, self._states)

    def mask(
        self, mask_function: Callable[..., torch.Tensor], local_size: int | None
    ) -> torch.Tensor:
        """Return the mask of visible keys, [B, 1, S, C], or a token that stands for it."""
        number = len(self._made)
        if number not in self._maskings:
            self._maskings[number] = masking_of(mask_function, local_size, self._positions)
        if self._reads_masks:
            assert isinstance(self._step, StaticStep)
            positions = self._step.positions
            rows = torch.arange(positions.shape[0]).view(-1, 1, 1, 1)
            slots = torch.arange(self.layers[0].cache.key.shape[2]).view(1, 1, 1, -1)
            head = torch.zeros(1, 1, 1, 1, dtype=torch.int64)
            mask = mask_function(rows, head, positions, slots)
        else:
            mask = torch.zeros(1, 1, 1, 1, dtype=torch.bool)
        self._made.append(mask)
        return mask

    def attend(self, call: AttentionCall) -> torch.Tensor | None:
        """Attend over the cache; return [B, S, Nq, D].

        Returns None for attention that has to read its mask; raises NotProven if there is none.
        """
        key, value = call.key, call.value
        layer = next((x for x in self.layers if x.keys is key and x.values is value), None)
        masking = self._masking(call)
        cache = LayerCache(key, value) if layer is None else layer.cache
        obstacle = call.obstacle
        if masking is None:
            obstacle = obstacle or "its mask is neither causal nor a sliding window"
        if layer is None and not self._reads_masks:
            obstacle = obstacle or "attention reads other keys than those that are cached"
        if obstacle is not None and not self._reads_masks:
            raise NotProven(f"attention over such a cache needs the fused operator: {obstacle}")
        if obstacle is not None:
            return None
        assert masking is not None
        rope = call.query_rope
        return self._step.attend(
            self._step.laid_out(call.query),
            cache,
            num_heads=call.query.shape[1],
            num_key_value_heads=key.shape[self._step.heads_axis],
            scale=call.scale,
            window=masking.window,
            query_rope=None if rope is None else self._step.laid_out(rope),
            key_bias=call.key_bias,
            sinks=call.sinks,
        )

    def _masking(self, call: AttentionCall) -> Masking | None:
        """Return what the mask of a call is, with the call's own window."""
        number = next((i for i, made in enumerate(self._made) if made is call.mask), None)
        if call.mask is None and call.key_bias is not None and len(self._made) == 1:
            number = 0  # that a model has added its bias to
        masking = None if number is None else self._maskings[number]
        if masking is None or call.window is None:
            return masking
        return Masking(min(call.window, masking.window or call.window))

    def cleared(self, cached: torch.Tensor) -> torch.Tensor:
        """Return keys or values [B, N, C, D] with zeros where nothing was written.

        For attention that multiplies what is masked by 0: undefined memory may hold NaN.
        """
        assert isinstance(self._step, StaticStep)
        slot = torch.arange(cached.shape[2]).view(1, 1, -1, 1)
        return torch.where(slot <= self._step.positions[:, :, -1:], cached, 0)


def masking_of(
    visible: Callable[..., torch.Tensor], size: int | None, positions: int
) -> Masking | None:
    """Return what a mask function of transformers is; None for neither causal nor a window.

    ``size``: that of its window, if it has one.
    """
    positions = min(max(positions, 4 if size is None else 2 * size + 2), _MOST_POSITIONS)
    chosen = {0, 1, 2, positions // 2, positions - 1}
    if size is not None:
        chosen |= {size - 1, size, size + 1, 2 * size}
    query = torch.tensor(sorted(q for q in chosen if q < positions)).view(1, 1, -1, 1)
    key = torch.arange(positions).view(1, 1, 1, -1)
    zero = torch.zeros(1, 1, 1, 1, dtype=torch.int64)
    actual = visible(zero, zero, query, key)
    for window in (None,) if size is None else (size, None):
        expected = key <= query
        if window is not None:
            expected = expected & (key > query - window)
        if torch.equal(actual.expand_as(expected), expected):
            return Masking(window)
    return None
