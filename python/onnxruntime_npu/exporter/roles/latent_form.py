"""What both forms of multi-head latent attention share: attention that reads cached latents.

The original makes keys and values of every cached latent anew at each step. Here queries are
projected to the size of a latent instead, so that attention reads the cache as it is, and its
results are projected back. Which latents are read may be what an indexer has chosen.
"""

from __future__ import annotations

import abc
from typing import Any, NamedTuple

import torch
from torch import nn

from ..attention_interface import attend_latents
from ..indexed_attention import chosen_keys
from .norm import RmsNorm

Tables = torch.Tensor | tuple[torch.Tensor, torch.Tensor]


class LatentParts(NamedTuple):
    """The projections of latent attention, in floats or a checkpoint's integers, and their sizes.

    Queries have one projection, or one down to a latent of their own, its norm and one up.
    """

    query: tuple[Any, ...]  # [N * (D + R), H], or [Q, H] and [N * (D + R), Q]
    query_norm: RmsNorm | None
    latent_down: Any  # [C + R, H]
    latent_norm: RmsNorm
    latent_up: torch.Tensor  # [N, D + V, C]
    out: nn.Module
    key_size: int  # D
    value_size: int  # V
    rotated: int  # R
    scale: float
    layer_idx: int
    factors: tuple[float, float]  # of what the norms give
    indexer: nn.Module | None  # chooses keys
    passes_on: bool  # returns the chosen ones for later layers


class LatentAttention(nn.Module, abc.ABC):
    """Attention of queries [B, S, N, C + R] over latents [B, T, C] and rotated keys [B, T, R]."""

    reads_latents = True  # which its layer caches

    weight_uk: torch.Tensor  # [N, D, C]
    weight_uv: torch.Tensor  # [N, C, V]

    def __init__(self, parts: LatentParts) -> None:
        super().__init__()
        self.layer_idx = parts.layer_idx
        self.scale = parts.scale
        keys, values = parts.latent_up.split([parts.key_size, parts.value_size], dim=1)
        self.hold(weight_uk=keys, weight_uv=values.transpose(1, 2))
        self.o_proj = parts.out
        self.indexer, self._passes_on = parts.indexer, parts.passes_on

    def hold(self, **weights: torch.Tensor) -> None:
        """Register weights by their names."""
        for name, weight in weights.items():
            self.register_parameter(name, nn.Parameter(weight.contiguous(), requires_grad=False))

    @property
    @abc.abstractmethod
    def hidden_size(self) -> int:
        """H."""

    @abc.abstractmethod
    def latents_and_keys(self, x: torch.Tensor) -> torch.Tensor:
        """Return what x [B, S, H] is projected to in latents and keys, [B, S, C + R]."""

    @abc.abstractmethod
    def query_latent(self, x: torch.Tensor) -> torch.Tensor | None:
        """Return the normalised latents of queries, [B, S, Q], if an indexer may need them."""

    @abc.abstractmethod
    def cached(
        self,
        x: torch.Tensor,
        query_latent: torch.Tensor | None,
        tables: tuple[torch.Tensor, torch.Tensor],
        cache: Any,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        """Extend the cache, if there is one, by the latents and rotated keys of x [B, S, H].

        Returns queries [B, N, S, C] and [B, N, S, R], and all latents and keys.
        """

    def forward(
        self,
        hidden_states: torch.Tensor,
        position_embeddings: Tables,
        attention_mask: torch.Tensor,
        past_key_values: Any = None,
        prev_topk_indices: torch.Tensor | None = None,
        **_: Any,
    ) -> tuple[torch.Tensor | None, ...]:
        """Attend from hidden_states [B, S, H] and extend the cache; return [B, S, H] and None.

        Indices [B, S, n] of the keys that an indexer has chosen follow, where later layers may use
        them, too: ``prev_topk_indices`` are those of an earlier one.
        """
        tables = tables_of(position_embeddings, hidden_states.dtype)
        latent = self.query_latent(hidden_states)
        query, query_rope, latents, rotated = self.cached(
            hidden_states, latent, tables, past_key_values
        )
        indices = prev_topk_indices
        if self.indexer is not None:
            given = position_embeddings, attention_mask[:, 0], None
            indices = self.indexer(hidden_states, latent, *given, past_key_values=past_key_values)
        if indices is not None:
            attention_mask = chosen_keys(indices, latents.shape[2], attention_mask)
        attended = attend_latents(query, query_rope, latents, rotated, attention_mask, self.scale)
        values = torch.matmul(attended.transpose(1, 2), self.weight_uv)  # [B, N, S, V]
        results = self.o_proj(values.transpose(1, 2).flatten(2)), None
        return (*results, indices) if self._passes_on else results


def tables_of(given: Tables, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Return cosines and sines [B, S, R] of a model's tables; complex ones are [B, S, R / 2]."""
    if isinstance(given, torch.Tensor):
        cos, sin = (torch.cat([x, x], -1) for x in torch.view_as_real(given).unbind(-1))
    else:
        cos, sin = given
    return cos.to(dtype), sin.to(dtype)
