"""Attention to a window of keys, and to compressed ones of all tokens, as in DeepSeek-V4.

Of so many tokens in succession, the rate of a layer, a compressed key is the sum, weighted for each
column by a softmax over these tokens. An indexer may choose those that a token sees. Transformers
keeps what a step needs of earlier tokens in caches that grow at some steps and not at others, in
all rows alike. Here a layer keeps the last tokens of its window and of the compression, as many at
every step, and compressed keys at the places that follow from positions, so that rows may differ
in length. Shapes: B batch, S new tokens, T past and new slots, R rate, L = T // R compressed keys.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch

from .attention_interface import attend_with_sinks
from .compressed_cache import (
    ENTRIES,
    INDEX_ENTRIES,
    INDEX_PENDING,
    PENDING,
    WINDOW,
    CompressedLayer,
    is_compressed_attention,
    new_layer,
    series_of,
)
from .indexed_attention import largest
from .proof import Findings, compare
from .replaced_functions import ReplacedFunctions

_Tables = dict[str, tuple[torch.Tensor, torch.Tensor]]


def fuse_compressed_attention(model: Any, functions: ReplacedFunctions, findings: Findings) -> bool:
    """Replace the forward passes of a model's attention; return False if it has none such.

    Each compressor is proven, over windows of its own rate; the rest with the whole model.
    """
    found = [module for module in model.modules() if is_compressed_attention(module)]
    for module in found:
        attention = CompressedAttention(module)
        difference = 0.0 if module.compressor is None else _prove(attention)
        functions.add(module, "forward", attention.forward)
        findings.replaced("npu_fusion_attention", difference)
    return bool(found)


class CompressedAttention:
    """The forward pass of a module of attention over a CompressedLayer."""

    def __init__(self, module: Any) -> None:
        self._module = module
        self._original: Callable[..., Any] = module.forward
        # Looked up at each call: it may be replaced by a fused operator.
        self._functions = sys.modules[type(module).__module__]

    def forward(
        self,
        hidden_states: torch.Tensor,
        position_embeddings: _Tables,
        position_ids: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        past_key_values: Any = None,
        **options: Any,
    ) -> tuple[torch.Tensor, None]:
        """Attend from hidden_states [B, S, H] at position_ids [B, S]; return [B, S, H]."""
        module = self._module
        layer = None if past_key_values is None else past_key_values.layers[module.layer_idx]
        if not isinstance(layer, CompressedLayer):
            return self._original(
                hidden_states=hidden_states,
                position_embeddings=position_embeddings,
                position_ids=position_ids,
                attention_mask=attention_mask,
                past_key_values=past_key_values,
                **options,
            )
        count = hidden_states.shape[1]
        heads = (*hidden_states.shape[:2], -1, module.head_dim)
        cos, sin = position_embeddings[module.rope_layer_type]
        residual = module.q_a_norm(module.q_a_proj(hidden_states))
        query = module.q_b_norm(module.q_b_proj(residual).view(heads).transpose(1, 2))
        query = self._rotate(query, cos, sin)
        key = module.kv_norm(module.kv_proj(hidden_states)).view(heads).transpose(1, 2)
        key = self._rotate(key, cos, sin)
        # Of the first new slot; that of a row with padding is negative, unlike position_ids.
        start = position_ids[:, -1:] - (count - 1)
        positions = start + torch.arange(count)
        window = layer.kept[WINDOW]
        keys = torch.cat([window[:, None].to(key.dtype), key], 2)
        layer.kept[WINDOW] = keys[:, 0, count:]
        near = start - window.shape[1] + torch.arange(keys.shape[2])
        behind = positions[:, :, None] - near[:, None]
        seen = (behind >= 0) & (behind < module.sliding_window) & (near >= 0)[:, None]
        if module.compressor is not None:
            given = hidden_states, residual, positions, layer
            compressed, visible = self.compress(*given)
            keys = torch.cat([keys, compressed[:, None]], 2)
            seen = torch.cat([seen, visible], -1)
        attended = attend_with_sinks(query, keys, keys, module.scaling, seen[:, None], module.sinks)
        attended = self._rotate(attended.transpose(1, 2), cos, -sin).transpose(1, 2)
        groups = attended.reshape(*hidden_states.shape[:2], module.config.o_groups, -1)
        return module.o_b_proj(module.o_a_proj(groups).flatten(2)), None

    def compress(
        self,
        x: torch.Tensor,
        residual: torch.Tensor,
        positions: torch.Tensor,
        layer: CompressedLayer,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return compressed keys [B, L, D], and which a token sees, [B, S, L].

        x [B, S, H], and residual [B, S, Q], at positions [B, S].
        """
        compressor = self._module.compressor
        kept = layer.kept
        start = positions[:, :1]
        keys = self._entries(compressor, x, start, kept, (PENDING, ENTRIES), layer.slots)
        # A window of tokens is seen from its last one on.
        closed = (positions[:, :, None] + 1) // compressor.compress_rate
        visible = torch.arange(keys.shape[1]) < closed
        indexer = getattr(compressor, "indexer", None)
        if indexer is None:
            return keys, visible
        names = INDEX_PENDING, INDEX_ENTRIES
        index_keys = self._entries(indexer, x, start, kept, names, layer.slots)
        cos, sin = self._tables(indexer, x, positions.clamp(min=0))
        query = indexer.q_b_proj(residual).unflatten(-1, (-1, indexer.head_dim)).transpose(1, 2)
        query = self._rotate(query, cos, sin).transpose(1, 2)
        scores = indexer.scorer(query, index_keys, x).masked_fill(~visible, -torch.inf)
        return keys, largest(scores, indexer.index_topk)

    def _entries(
        self,
        compressor: Any,
        x: torch.Tensor,
        start: torch.Tensor,
        kept: dict[str, torch.Tensor],
        names: tuple[str, str],
        slots: Any,
    ) -> torch.Tensor:
        """Compress x [B, S, H], whose first token has the position start [B, 1], if it is one.

        Returns [B, L, D]: those before, and those of windows that end among the new tokens. What
        others hold is not to be read, and is written anew when their window ends.
        """
        pending, entries = names
        rate, count = compressor.compress_rate, x.shape[1]
        joint = torch.cat([compressor.kv_proj(x), compressor.gate_proj(x)], -1)
        past = kept[pending].shape[1]
        joint = torch.cat([kept[pending].to(joint.dtype), joint], 1)
        kept[pending] = joint[:, count:]
        first = start.clamp(min=0) // rate  # window of the first new token
        windows = first + torch.arange((count + rate - 1) // rate)  # [B, E]
        # Columns of joint: those of a window, after those of the one before where both count.
        back = rate * (series_of(compressor) - 1)
        columns = windows[:, :, None] * rate - back - start[:, :, None] + past
        columns = (columns + torch.arange(back + rate)).clamp(0, past + count - 1)
        row = torch.arange(x.shape[0])[:, None, None]
        new = self._of_windows(compressor, joint[row, columns], windows)
        earlier = kept[entries]
        joined = torch.cat([earlier.to(new.dtype), new], 1)
        place = torch.arange(slots // rate)
        place = torch.where(place < first, place, place - first + earlier.shape[1])
        place = place.clamp(max=joined.shape[1] - 1)
        kept[entries] = joined[row[:, 0], place]
        return kept[entries]

    def _of_windows(
        self, compressor: Any, tokens: torch.Tensor, windows: torch.Tensor
    ) -> torch.Tensor:
        """Return what windows [B, E] are compressed to, [B, E, D].

        Tokens [B, E, series * R, 2 * series * D] are keys and gates. Of two series, the first ones
        of the tokens before a window and the second ones of its own count.
        """
        rate, series = compressor.compress_rate, series_of(compressor)
        keys, gates = tokens.chunk(2, -1)
        bias = compressor.position_bias
        parts = []
        for place in range(series):
            of = slice(place * rate, (place + 1) * rate)
            columns = slice(place * compressor.head_dim, (place + 1) * compressor.head_dim)
            gate = gates[:, :, of, columns] + bias[:, columns]
            if place < series - 1:  # the first window has none before it
                gate = gate.masked_fill(windows[:, :, None, None] == 0, -torch.inf)
            parts.append((keys[:, :, of, columns], gate))
        keys, gates = (torch.cat(each, 2) for each in zip(*parts, strict=True))
        weights = gates.softmax(2, dtype=torch.float32).to(keys.dtype)
        compressed = compressor.kv_norm((keys * weights).sum(2))
        cos, sin = self._tables(compressor, compressed, windows * rate)
        return self._rotate(compressed[:, None], cos, sin)[:, 0]

    @staticmethod
    def _tables(owner: Any, x: torch.Tensor, positions: torch.Tensor) -> Any:
        return owner.rotary_emb(x, position_ids=positions, layer_type=owner.rope_layer_type)

    def _rotate(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        return self._functions.apply_rotary_pos_emb(x, cos, sin)


def _prove(attention: CompressedAttention) -> float:
    """Compare a compressor with the original's: a prompt, a step that ends windows, and a token."""
    module = attention._module
    compressor = module.compressor
    rate = compressor.compress_rate
    ends = (2 * rate + 1, 4 * rate + 2, 4 * rate + 3)
    hidden, latent = compressor.kv_proj.in_features, module.q_b_proj.in_features
    x, residual = torch.randn(1, ends[-1], hidden), torch.randn(1, ends[-1], latent)
    layer = new_layer(module, 1, 0)
    worst, begin = 0.0, 0
    for end in ends:
        new = slice(begin, end)
        layer.slots = end
        positions = torch.arange(end)[None]
        keys, bias = compressor(x[:, :end], residual[:, :end], positions, None, module.layer_idx)
        actual, visible = attention.compress(x[:, new], residual[:, new], positions[:, new], layer)
        worst = max(worst, compare(keys[:, 0], actual, "compressed keys"))
        expected = bias[0, 0, new] == 0
        compare(expected.float(), visible[0].float(), "visible compressed keys")
        begin = end
    return worst
