"""The text of a model of images over a preallocated cache, by its own forward pass.

Embeddings take the place of tokens. Rows may have different lengths; prompts are padded on the
right, as in caches/static.py, whose shapes are those here.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from .caches.interface import BATCH, NEW
from .caches.static import StaticInterface
from .embeddings import Embeddings
from .image_text_parts import TextPart
from .original import OriginalDecoder, context_of
from .position_tables import follow_positions
from .proof import NotProven


class _TextDecoder(OriginalDecoder):
    """Embeddings to logits over the cache of a step."""

    def __init__(self, text: TextPart) -> None:
        tables = follow_positions(text.model, text.functions)
        super().__init__(text.model, text.cached, text.functions, text.recurrences, tables)
        self._embeddings = text.embeddings
        self._context = context_of(text.model.config.get_text_config())
        self._positions: torch.Tensor | None = None  # of tokens, where they are not counted

    @contextmanager
    def at(self, positions: torch.Tensor | None) -> Iterator[None]:
        """Take other positions [.., B, S] inside than those of the cache."""
        self._positions = positions
        try:
            yield
        finally:
            self._positions = None

    def _logits(
        self,
        input_ids: torch.Tensor,
        positions: torch.Tensor,
        cache: Any,
        attention_mask: torch.Tensor | None,
    ) -> torch.Tensor:
        counted = positions.flatten(1)
        with (
            self._tables.read_at(counted),
            self._embeddings.given(self.model, input_ids) as options,
        ):
            logits: torch.Tensor = self.model(
                attention_mask=attention_mask,
                position_ids=counted if self._positions is None else self._positions,
                past_key_values=cache,
                use_cache=True,
                **options,
            ).logits
        return logits.float()


class StaticTextPart(StaticInterface):
    """Embeddings to logits; keys and values are written into a cache [B, N, C, D].

    Row b takes the first ``sequence_lengths[b]`` of inputs_embeds[b], after which its cache holds
    ``total_lengths[b]`` tokens.
    """

    def __init__(self, text: TextPart) -> None:
        """Take the proven text with a cache that grows. Raises NotProven for kinds of tokens."""
        if text.kinds:
            raise NotProven(
                "expected text whose tokens see those before them alone, with a static cache, got "
                "one that tells tokens of images or of prompts apart: pass cache='dynamic'"
            )
        super().__init__(_TextDecoder(text), "last")
        self.kinds: list[str] = []
        self._embeddings: Embeddings = text.embeddings
        self._axes = tuple(text.axes)
        first, *lengths = StaticInterface.leading_inputs
        del first
        others = ("position_ids",) if self._axes else ()
        self.leading_inputs = ("inputs_embeds", *lengths, *others)

    def forward(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:  # type: ignore[override]
        """Return logits [B, 1, V] of each row's last token in float32, and the cache.

        ``inputs``: inputs_embeds [B, S, H] in float32, sequence_lengths and total_lengths [B],
        position_ids [3, B, S] of a model that takes patches, then keys and values [B, N, C, D] of
        every layer that attends, and states.
        """
        embeds, lengths, totals, *past = inputs
        positions = past.pop(0) if self._axes else None
        with self.decoder.at(positions):
            return super().forward(embeds, lengths, totals, past)

    def first_cache(self, batch: int, tokens: int) -> list[torch.Tensor]:
        """Return what a cache may hold before it is written, anything, and states."""
        caches = self.empty_caches(batch, tokens)
        for cache in caches[: len(caches) - len(self.decoder.states)]:
            cache.fill_(torch.nan)
        return caches

    def step(
        self,
        embeds: torch.Tensor,
        mask: torch.Tensor,
        positions: torch.Tensor,
        kinds: list[torch.Tensor],
        past: list[torch.Tensor],
    ) -> tuple[torch.Tensor, ...]:
        """Return what ``forward`` does of rows that are padded on the left, [B, S, H]."""
        del kinds
        count = embeds.shape[1]
        lengths, totals = mask[:, -count:].sum(1), mask.sum(1)
        # Padding goes behind the tokens.
        order = (torch.arange(count) - lengths[:, None]) % count
        embeds = embeds.gather(1, order[..., None].expand_as(embeds))
        given = [positions.gather(-1, order.expand_as(positions))] if self._axes else []
        result: tuple[torch.Tensor, ...] = self(embeds, lengths, totals, *given, *past)
        return result

    def example(self) -> tuple[Any, ...]:
        """Return arguments to trace with."""
        ids, lengths, totals, past = super().example()
        embeds = torch.zeros(*ids.shape, self._embeddings.size)
        positions = [torch.arange(NEW).repeat(*self._axes, BATCH, 1)] if self._axes else []
        return embeds, lengths, totals, *positions, *past

    def dimensions(self) -> dict[str, tuple[str | int, ...]]:
        """Return the shape of every input and output, with names for dynamic sizes."""
        shapes = super().dimensions()
        del shapes["input_ids"]
        shapes["inputs_embeds"] = ("batch", "sequence", self._embeddings.size)
        if self._axes:
            shapes["position_ids"] = (*self._axes, "batch", "sequence")
        return shapes
