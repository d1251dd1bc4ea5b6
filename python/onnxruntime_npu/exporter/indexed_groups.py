"""Attention to groups of keys that an indexer chooses by their means, as in Qwen4-Exp.

Transformers looks at the queries one after the other. Here all of them are looked at together:
groups are those of the positions of a row, which are the same for every query. Shapes: B batch,
S new tokens, T past and new slots of a growing cache, D size of an indexer's head.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch

from .indexed_attention import largest, replace_indexers
from .proof import NotProven, compare
from .replaced_functions import ReplacedFunctions

_PARTS = ("index_qk_proj", "q_layernorm", "k_layernorm", "block_topk", "compress_ratio")


def choose_groups_in_graph(model: Any, functions: ReplacedFunctions) -> None:
    """Add the forward passes of indexers of groups to ``functions``, each proven."""
    replace_indexers(model, functions, _PARTS, _forward, _prove)


def _forward(indexer: Any) -> Callable[..., torch.Tensor]:
    # Looked up at each call: it may be replaced by a fused operator.
    of_module = sys.modules[type(indexer).__module__]
    size, heads, count = indexer.index_head_dim, indexer.index_n_heads, indexer.compress_ratio

    def forward(
        hidden_states: torch.Tensor,
        position_embeddings: tuple[torch.Tensor, torch.Tensor],
        attention_mask: torch.Tensor,
        past_key_values: Any,
    ) -> torch.Tensor:
        """Return the mask [B, 1, S, T] of the keys in chosen groups, and in the last, begun one.

        Tables of the rotation and the mask [B, 1, S, T] are of all slots.
        """
        batch, new = hidden_states.shape[:2]
        query, key = indexer.index_qk_proj(hidden_states).split([heads * size, size], dim=-1)
        query = indexer.q_layernorm(query.reshape(batch, new, heads, size))
        own_tables = (table[:, table.shape[1] - new :] for table in position_embeddings)
        query = _rotated(of_module, query, own_tables)
        if past_key_values is not None:
            if getattr(past_key_values.layers[indexer.layer_idx], "slots_are_positions", False):
                raise NotProven("its indexer rotates groups of keys by the tables of all slots")
            key = past_key_values.update_indexer(key, indexer.layer_idx)
        slots = torch.arange(key.shape[1])
        visible = attention_mask if attention_mask.dtype == torch.bool else attention_mask == 0
        padding = slots[-1:] + 1 - visible[:, 0, -1].sum(-1, keepdim=True)  # before a row's tokens
        positions = slots - padding
        is_token = positions >= 0
        # Of groups, in the first of T columns: no arithmetic of sizes, since graphs are captured.
        group = positions.clamp(min=0) // count
        parts = torch.where(is_token[..., None], key.float(), 0.0) / count
        means = torch.zeros_like(parts).scatter_add(1, group[..., None].expand_as(parts), parts)
        first = (padding + slots * count).minimum(slots[-1:])[..., None]
        tables = (
            table.gather(1, first.expand(-1, -1, table.shape[2])) for table in position_embeddings
        )
        means = indexer.k_layernorm(means.to(key.dtype))[:, :, None]
        means = _rotated(of_module, means, tables)[:, :, 0]
        scores = torch.einsum("bshd,btd->bsht", query.float(), means.float())
        scores = scores.relu().sum(2) * size**-0.5
        whole = ((positions[:, positions.shape[1] - new :] + 1).clamp(min=0) // count)[..., None]
        scores = torch.where(slots < whole, scores, -torch.inf)
        chosen = largest(scores, indexer.block_topk)
        group = group[:, None].expand_as(scores)
        return ((chosen.gather(2, group) | (group >= whole)) & is_token[:, None])[:, None]

    return forward


def _rotated(of_module: Any, heads: torch.Tensor, tables: Any) -> torch.Tensor:
    """Rotate heads [B, n, N, D] by tables [B, n, D]."""
    cos, sin = tables
    rotated: torch.Tensor = of_module.apply_rotary_pos_emb(heads, cos=cos, sin=sin, unsqueeze_dim=2)
    return rotated


def _prove(rotary: Any, indexer: Any, forward: Callable[..., torch.Tensor]) -> float:
    """Compare the keys that are seen by more tokens than there are in the chosen groups."""
    count = (indexer.block_topk + 2) * indexer.compress_ratio + 1
    x = torch.randn(2, count, indexer.index_qk_proj.in_features)
    positions = torch.arange(count).expand(3, 2, -1)
    visible = torch.ones(2, 1, count, count, dtype=torch.bool).tril()
    visible[1, ..., :2] = False  # padding
    given = x, rotary(x, positions), visible, None
    actual = forward(*given) & visible
    return compare((indexer(*given) & visible).float(), actual.float(), "keys of chosen groups")
