"""Attention to blocks of keys that an indexer chooses for each head, as in MiniMax-M3.

Transformers counts blocks by slots, so that the blocks of a padded row lie elsewhere than its own
do, and gives attention the numbers of the chosen ones. Here blocks are those of positions, and
attention gets a mask. Shapes: B batch, S new tokens, T past and new slots, G groups of heads.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch

from .indexed_attention import largest, replace_indexers
from .proof import compare
from .replaced_functions import ReplacedFunctions

_PARTS = ("q_proj", "k_proj", "q_norm", "k_norm", "topk_blocks", "local_blocks", "block_size")


def choose_blocks_in_graph(model: Any, functions: ReplacedFunctions) -> None:
    """Add the forward passes of indexers of blocks to ``functions``, each proven."""
    replace_indexers(model, functions, _PARTS, _forward, _prove)


def _forward(indexer: Any) -> Callable[..., torch.Tensor]:
    # Looked up at each call: it may be replaced by a fused operator.
    of_module = sys.modules[type(indexer).__module__]

    def forward(
        hidden_states: torch.Tensor,
        position_embeddings: tuple[torch.Tensor, torch.Tensor],
        past_key_values: Any,
        position_ids: torch.Tensor,
    ) -> torch.Tensor:
        """Return the mask [B, G, S, T] of the keys in blocks that are chosen."""
        count = indexer.block_size
        shape = (*hidden_states.shape[:2], -1, indexer.head_dim)
        query = indexer.q_norm(indexer.q_proj(hidden_states).view(shape)).transpose(1, 2)
        key = indexer.k_norm(indexer.k_proj(hidden_states).view(shape)).transpose(1, 2)
        tables = (table[..., : indexer.head_dim] for table in position_embeddings)
        query, key = of_module.apply_rotary_pos_emb(query, key, *tables)
        layer = None if past_key_values is None else past_key_values.layers[indexer.layer_idx]
        if layer is not None:
            key = layer.update_index(key)
        slots = torch.arange(key.shape[2])
        positions = slots[None]
        if not getattr(layer, "slots_are_positions", False):  # rows have padding before them
            positions = slots - (slots[-1:] - position_ids[:, -1:])
        scores = torch.matmul(query.float(), key.float().transpose(2, 3))
        own = positions[:, None, None]
        seen = (own >= 0) & (own <= position_ids[:, None, :, None])
        scores = torch.where(seen, scores, -torch.inf)
        # Of blocks, in the first of T columns: no arithmetic of sizes, since graphs are captured.
        block = (own.clamp(min=0) // count).expand_as(scores)
        best = torch.full_like(scores, -torch.inf).scatter_reduce(3, block, scores, "amax")
        behind = (position_ids // count)[:, None, :, None] - slots
        best = best.masked_fill((behind >= 0) & (behind < indexer.local_blocks), torch.inf)
        return largest(best, indexer.topk_blocks).gather(3, block)

    return forward


def _prove(rotary: Any, indexer: Any, forward: Callable[..., torch.Tensor]) -> float:
    """Compare the keys that are seen by more tokens than there are in the chosen blocks."""
    count = (indexer.topk_blocks + 2) * indexer.block_size + 3
    x = torch.randn(1, count, indexer.q_proj.in_features)
    positions = torch.arange(count)[None]
    given = x, rotary(x, positions), None, positions
    chosen = indexer(*given)
    mask = indexer.build_block_mask(chosen, None, count, x.dtype, x.device, positions)
    actual = forward(*given) & (positions[:, None, None] <= positions[:, None, :, None])
    heads = mask.shape[1] // actual.shape[1]
    seen = actual.repeat_interleave(heads, 1)
    return compare((mask == 0).float(), seen.float(), "keys of chosen blocks")
