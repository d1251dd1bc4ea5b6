"""Inputs of proofs for the original and its replacement."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from ..caches.dynamic import DynamicStep
from ..caches.step import LayerCache, Step

BATCH, PAST, NEW, PADDING = 2, 3, 4, 2
PROBE_WINDOW = 3  # replaces the real window while masks are compared
_FAR = 1 << 24  # a position beyond every trained length


def left_padded(length: int) -> torch.Tensor:
    """Return an attention mask [B, length] whose first row starts with padding."""
    mask = torch.ones(BATCH, length, dtype=torch.int64)
    mask[0, :PADDING] = 0
    return mask


class CutOut:
    """A run of a model without its layers: the arguments of each, and the logits of ``hidden``.

    Every layer returns ``hidden`` [B, S, H], so that the logits depend only on the final norm and
    the head. The model runs at the first use in a proof, after its parts have been read: a rotary
    embedding with dynamic frequencies changes them during a run.
    """

    def __init__(self, model: Any, layers: nn.ModuleList, embedding: torch.Tensor) -> None:
        self._model = model
        self._layers = layers
        self._config = getattr(model, "config", None)
        vocabulary, hidden_size = embedding.shape
        length = 3 * PROBE_WINDOW
        self.window: int | None = getattr(self._config, "sliding_window", None)
        self.input_ids = torch.randint(0, vocabulary, (BATCH, length))
        self.attention_mask = left_padded(length)
        # Positions beyond the trained ones reveal frequencies that depend on the length.
        far = 2 * int(getattr(self._config, "max_position_embeddings", None) or length)
        self.position_ids = torch.stack([torch.arange(length), torch.arange(far, far + length)])
        self.hidden = torch.randn(BATCH, length, hidden_size)

    @property
    def given(self) -> list[dict[str, Any]]:
        """The arguments of every layer."""
        return self._run[0]

    @property
    def logits(self) -> torch.Tensor:
        """The logits [B, S, V] of ``hidden``."""
        return self._run[1]

    @functools.cached_property
    def _run(self) -> tuple[list[dict[str, Any]], torch.Tensor]:
        window = _probe_window(self._config, self.window)
        with torch.no_grad(), window, _stand_ins(self._layers, self.hidden) as given:
            logits = self._model(
                input_ids=self.input_ids,
                attention_mask=self.attention_mask,
                position_ids=self.position_ids,
                use_cache=False,
            ).logits
        return given, logits


@contextmanager
def _probe_window(config: Any, window: int | None) -> Iterator[None]:
    """Shrink the sliding window: a mask of the real one may be gigabytes."""
    if window is None:
        yield
        return
    config.sliding_window = PROBE_WINDOW
    try:
        yield
    finally:
        config.sliding_window = window


@contextmanager
def _stand_ins(layers: nn.ModuleList, result: torch.Tensor) -> Iterator[list[dict[str, Any]]]:
    """Make every layer return ``result``; yields the arguments of each."""
    given: list[dict[str, Any]] = []

    def stand_in(hidden_states: torch.Tensor, *_: Any, **kwargs: Any) -> torch.Tensor:
        given.append({"hidden_states": hidden_states, **kwargs})
        return result

    for layer in layers:
        layer.forward = stand_in
    try:
        yield given
    finally:
        for layer in layers:
            del layer.forward


class StepProbe:
    """A step over a filled cache with a padded row, for an original and its replacement."""

    def __init__(
        self, rotary: nn.Module | None, window: int | None, heads: int, head_size: int
    ) -> None:
        """Take the original's rotary embedding, if it has one, and the shape of a cache."""
        total = PAST + NEW
        self._mask = left_padded(total)
        self._position_ids = torch.arange(PAST, total)[None].expand(BATCH, -1)
        # The rotary module uses only device and dtype of its first argument.
        self._tables = None if rotary is None else rotary(torch.zeros(1), self._position_ids)
        step = DynamicStep(self._mask, NEW)
        if self._tables is not None:
            step.cos, step.sin = (table[:, None] for table in self._tables)
        self.step: Step = step
        self._hidden = step.mask(window)
        shape = (BATCH, heads, PAST, head_size)
        self.past = LayerCache(torch.randn(shape), torch.randn(shape))

    def run(self, original: nn.Module, index: int, x: torch.Tensor) -> tuple[torch.Tensor, Any]:
        """Call the original's attention or layer ``index``; return its output and its cache."""
        from transformers import DynamicCache

        cache = DynamicCache()
        cache.update(self.past.key, self.past.value, index)
        result = original(
            hidden_states=x,
            attention_mask=torch.zeros(self._hidden.shape).masked_fill(
                self._hidden, torch.finfo(torch.float32).min
            ),
            # Rotation is that of the tables: what else depends on positions shows at far ones,
            # as queries that Ministral 3 scales beyond the trained length.
            position_ids=self._position_ids + _FAR,
            past_key_values=cache,
            use_cache=True,
            position_embeddings=self._tables,
        )
        layer: Any = cache.layers[index]
        return result[0] if isinstance(result, tuple) else result, (layer.keys, layer.values)

    def real(self, y: torch.Tensor) -> torch.Tensor:
        """Return the rows of y [B, S, ..] that are not padding, whose results do not matter."""
        return y[self._mask[:, -NEW:].bool()]
