"""A cache of blocks that sequences share, for continuous batching.

The interface of onnxruntime-genai's engine: the new tokens of all sequences lie side by side, and a
table names the blocks of each sequence. One graph serves prefill, chunks of it and decode, in
any mixture. Shape symbols: T new tokens of all sequences, B sequences, M blocks of the longest.
"""

from __future__ import annotations

from typing import Any

import torch

from .. import traced_ops
from . import scaled_rows
from .interface import Interface
from .sequences import PackedSequences
from .step import CacheSizes, LayerCache, Rounded, Step, Visibility, with_sinks

BLOCK_SIZE = 32  # tokens; the engine takes powers of two from 16
_CAUSAL, _BAND = 3, 4
_SCALES_OF_BLOCKS_AND_HEADS = 5  # npu_fused_infer_attention_score: [blocks, Nkv, BLOCK_SIZE]


class PagedStep(Step):
    """Blocks [blocks, BLOCK_SIZE, Nkv, D], updated in place where new tokens belong.

    Those of int8 have D + 4 bytes for each head, the last of them its scale: onnxruntime-genai's
    engine caches one tensor for keys and one for values.
    """

    heads_axis = 2

    def __init__(
        self,
        slots: torch.Tensor,
        ends: torch.Tensor,
        kv_lengths: torch.Tensor,
        block_table: torch.Tensor,
        causal_mask: torch.Tensor,
    ) -> None:
        super().__init__()
        self._slots = slots  # [T, 2]: block, and place in it
        self.block_slots = (slots[:, 0] * BLOCK_SIZE + slots[:, 1])[None]
        self._ends = ends
        self._kv_lengths = kv_lengths
        self._block_table = block_table
        self._causal_mask = causal_mask

    def _write(self, past: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
        """Write new [1, T, Nkv, D] into their slots."""
        return torch.ops.npu.npu_scatter_nd_update(past, self._slots, new.flatten(0, 1))

    def _write_rounded(self, past: LayerCache, kind: str, new: Rounded) -> dict[str, torch.Tensor]:
        return {kind: self._write(getattr(past, kind), scaled_rows.join(*new))}

    def numbers(self, capacity: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return those of the keys in the blocks of a row of the table, however many it has."""
        blocks = torch.arange(self._block_table.shape[1])[:, None]
        numbers = blocks * BLOCK_SIZE + torch.arange(BLOCK_SIZE)
        return numbers.flatten()[None], self._kv_lengths[:, None] - 1

    def visibility(self, capacity: int, window: int | None) -> Visibility:
        """Return a causal pattern, aligned to the right end of each sequence's tokens."""
        mode = _CAUSAL if window is None else _BAND
        return Visibility(self._causal_mask, mode, self._ends, self._kv_lengths)

    def attend(
        self,
        query: torch.Tensor,
        cache: LayerCache,
        *,
        num_heads: int,
        num_key_value_heads: int,
        scale: float,
        window: int | None,
        query_rope: torch.Tensor | None = None,
        key_bias: torch.Tensor | None = None,
        sinks: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Attend from query [1, T, Nq, D] over the blocks of a cache; return [1, T, Nq, D]."""
        seen = self.visibility(0, window)
        key, value, key_rope = cache.parts(query_rope is not None)
        scales: dict[str, Any] = {}
        if cache.rounded:
            both = [scaled_rows.divide(rows) for rows in (key, value)]
            (key, value), found = zip(*both, strict=True)
            scales["key_scale"], scales["value_scale"] = (each.transpose(1, 2) for each in found)
            scales["antiquant_mode"] = _SCALES_OF_BLOCKS_AND_HEADS
        attended, log_sums = traced_ops.fused_infer_attention(
            query.flatten(0, 1),
            key.flatten(2),
            value.flatten(2),
            seen.mask,
            seen.query_lengths,
            seen.kv_lengths,
            self._block_table,
            num_heads=num_heads,
            num_key_value_heads=num_key_value_heads,
            scale=scale,
            sparse_mode=seen.sparse_mode,
            input_layout="TND",
            block_size=BLOCK_SIZE,
            pse_shift=None if key_bias is None else key_bias.to(query.dtype),
            softmax_lse_flag=sinks is not None,
            query_rope=None if query_rope is None else query_rope.flatten(0, 1),
            key_rope=None if key_rope is None else key_rope.flatten(2),
            **({} if window is None else {"pre_tokens": window - 1, "next_tokens": 0}),
            **scales,
        )
        return (attended if sinks is None else with_sinks(attended, log_sums, sinks))[None]


class PagedInterface(Interface):
    """Sequence b has tokens input_ids[c[b] : c[b + 1]], after past_sequence_lengths[b] others.

    c is cumulative_sequence_lengths [B + 1]. Token i of sequence b lies in block
    block_table[b, i // BLOCK_SIZE]. logits_indices [n] are the tokens of input_ids to score.
    """

    cache = "paged"
    scales_beside = False
    leading_inputs = (
        "input_ids",
        "cumulative_sequence_lengths",
        "past_sequence_lengths",
        "block_table",
        "logits_indices",
    )
    takes_lengths = True

    def forward(
        self,
        input_ids: torch.Tensor,
        cumulative_sequence_lengths: torch.Tensor,
        past_sequence_lengths: torch.Tensor,
        block_table: torch.Tensor,
        logits_indices: torch.Tensor,
        past: list[torch.Tensor],
    ) -> tuple[torch.Tensor, ...]:
        """Decode input_ids [T] into blocks [blocks, BLOCK_SIZE, Nkv, D]; return logits [n, V]."""
        borders, lengths = cumulative_sequence_lengths.long(), past_sequence_lengths.long()
        starts, ends = borders[:-1], borders[1:]
        token = torch.arange(input_ids.shape[0])
        # Written so that few nodes compute it: index_select instead of indices, and a quotient that
        # truncates, since no position is negative.
        sequence = (token[:, None] >= ends).sum(1)
        offsets = lengths - starts  # from tokens to positions
        position = token + offsets.index_select(0, sequence)
        # Of the sequence's own blocks: a position beyond them is an error, not a neighbour's.
        own = block_table.long().index_select(0, sequence)
        quotient = torch.div(position, BLOCK_SIZE, rounding_mode="trunc")
        block = own.gather(1, quotient[:, None])
        slots = torch.cat([block, (position % BLOCK_SIZE)[:, None]], 1)
        totals = offsets + ends
        step = PagedStep(slots, ends, totals, block_table, self.causal_mask)
        step.states = self._states(past)
        step.sequences = PackedSequences(cumulative_sequence_lengths, sequence)

        def scored(hidden: torch.Tensor) -> torch.Tensor:
            return hidden[0].index_select(0, logits_indices)

        logits, present = self.decoder.decode(
            input_ids[None],
            position.view(1, 1, -1, 1),
            totals.index_select(0, sequence).view(1, 1, -1, 1),
            step,
            self._layers(past),
            scored,
        )
        return (logits, *self._tensors(present), *step.states)

    def empty_caches(self, batch: int, length: int) -> list[torch.Tensor]:
        """Return zeroed blocks of every layer, enough for ``batch`` sequences of ``length``.

        States follow, a row for each sequence.
        """
        blocks = batch * -(-length // BLOCK_SIZE)
        return [*self._zeros(blocks, BLOCK_SIZE), *self._zero_states(batch, length)]

    def _shapes_of_layer(
        self, sizes: CacheSizes, rows: Any, tokens: Any
    ) -> dict[str, tuple[Any, ...]]:
        return super()._shapes_of_layer(self.stored(sizes), rows, tokens)

    def stored(self, sizes: CacheSizes) -> CacheSizes:
        """Return the elements that a cache has for the keys and values of these sizes."""
        if not self.int8:
            return sizes
        stored = {kind: size + scaled_rows.SCALE_BYTES for kind, size in sizes.rounded.items()}
        return CacheSizes(**{**sizes._asdict(), **stored})

    def _vectors(self, rows: Any, heads: int, tokens: Any, size: int) -> tuple[Any, ...]:
        return rows, tokens, heads, size

    def arguments(
        self,
        rows: list[torch.Tensor],
        past_lengths: list[int],
        block_table: torch.Tensor,
        past: list[torch.Tensor],
    ) -> tuple[Any, ...]:
        """Return the arguments for new tokens of each sequence, all of them scored."""
        ids = torch.cat(rows)
        ends = torch.tensor([len(row) for row in rows]).cumsum(0)
        borders = torch.nn.functional.pad(ends, (1, 0)).int()
        lengths = torch.tensor(past_lengths, dtype=torch.int32)
        return ids, borders, lengths, block_table, torch.arange(len(ids), dtype=torch.int32), past

    def example(self) -> tuple[Any, ...]:
        """Return arguments to trace with."""
        rows = [torch.zeros(n, dtype=torch.int64) for n in (2, 3, 2)]
        table = torch.arange(3 * 5, dtype=torch.int32).view(3, 5)
        *given, indices, past = self.arguments(
            rows, [3, 1, 4], table, self.empty_caches(3, 6 * BLOCK_SIZE)
        )
        return *given, indices[:6], past

    def prompt(self, input_ids: torch.Tensor) -> tuple[Any, ...]:
        """Return the arguments for input_ids [1, S] without a past."""
        length = input_ids.shape[1]
        table = torch.arange(-(-length // BLOCK_SIZE), dtype=torch.int32)[None]
        return self.arguments([input_ids[0]], [0], table, self.empty_caches(1, length))

    def dimensions(self) -> dict[str, tuple[str | int, ...]]:
        """Return the shape of every input and output, with names for dynamic sizes."""
        shapes: dict[str, tuple[str | int, ...]] = {
            "input_ids": ("tokens",),
            "cumulative_sequence_lengths": ("sequences_plus_one",),
            "past_sequence_lengths": ("sequences",),
            "block_table": ("sequences", "blocks_of_longest"),
            "logits_indices": ("scored",),
            "logits": ("scored", self.decoder.vocabulary),
        }
        for prefix in ("past_key_values", "present"):
            shapes |= self._cache_shapes(prefix, "blocks", BLOCK_SIZE)
            shapes |= self._state_shapes(prefix, "sequences")
        return shapes
