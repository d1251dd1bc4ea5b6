"""Latent attention whose projections are one operator, ``npu_mla_prolog``, of float weights."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from .latent_form import LatentAttention, LatentParts


class LatentProlog(LatentAttention):
    """Projections, norms and rotation in one operator, which writes blocks of a cache, too."""

    weight_dq: torch.Tensor  # [H, Q]
    weight_uq_qr: torch.Tensor  # [Q, N * (D + R)]
    weight_dkv_kr: torch.Tensor  # [H, C + R]
    gamma_cq: torch.Tensor  # [Q]
    gamma_ckv: torch.Tensor  # [C]

    def __init__(self, parts: LatentParts, *, in_pairs: bool) -> None:
        """Take parts without an obstacle; ``in_pairs``: neighbouring columns are rotated together.

        Else halves are.
        """
        super().__init__(parts)
        assert parts.query_norm is not None
        self.epsilons = parts.query_norm.epsilon, parts.latent_norm.epsilon
        layers = (*parts.query, parts.latent_down)
        query_down, query_up, latent_down = (layer.weight.detach() for layer in layers)
        heads = self.weight_uk.shape[0]
        up, down = query_up.unflatten(0, (heads, -1)), latent_down[None]
        if not in_pairs:  # which is how the operator reads them
            up, down = _as_pairs(up, parts.rotated), _as_pairs(down, parts.rotated)
        self.hold(
            weight_dq=query_down.t(),
            weight_uq_qr=up.flatten(0, 1).t(),
            weight_dkv_kr=down.flatten(0, 1).t(),
            gamma_cq=parts.query_norm.gamma.detach() * parts.factors[0],
            gamma_ckv=parts.latent_norm.gamma.detach() * parts.factors[1],
        )

    @property
    def hidden_size(self) -> int:
        """The inputs of a weight."""
        return self.weight_dq.shape[0]

    def latents_and_keys(self, x: torch.Tensor) -> torch.Tensor:
        """Multiply by the weight."""
        return torch.matmul(x, self.weight_dkv_kr)

    def query_latent(self, x: torch.Tensor) -> torch.Tensor | None:
        """Compute them for an indexer: the operator does not return its own."""
        if self.indexer is None:
            return None
        projected = torch.matmul(x, self.weight_dq)
        normed: torch.Tensor = torch.ops.npu.npu_rms_norm(
            projected, self.gamma_cq, self.epsilons[0]
        )[0]
        return normed

    def cached(
        self,
        x: torch.Tensor,
        query_latent: torch.Tensor | None,
        tables: tuple[torch.Tensor, torch.Tensor],
        cache: Any,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        """Let the operator write to blocks of floats; other caches get the new tokens' as any."""
        layer = None if cache is None else cache.layers[self.layer_idx]
        slots = getattr(layer, "block_slots", None)
        if layer is not None and slots is not None and not layer.cache.rounded:
            query, query_rope, *written = self._prolog(x, tables, layer.cache, slots)
            latents, rotated = layer.take(layer.cache._replace(key=written[0], value=written[1]))
        else:
            batch, sequence = x.shape[:2]
            sizes = self.weight_uk.shape[2], tables[0].shape[-1]
            new = [x.new_zeros(batch, sequence, 1, size) for size in sizes]
            slots = torch.arange(batch * sequence).view(batch, sequence)
            query, query_rope, *written = self._prolog(x, tables, new, slots)
            latents, rotated = (each.transpose(1, 2) for each in written)
            if cache is not None:
                latents, rotated = cache.update(latents, rotated, self.layer_idx)
        return query.transpose(1, 2), query_rope.transpose(1, 2), latents, rotated

    def _prolog(self, x: torch.Tensor, tables: Any, caches: Any, slots: torch.Tensor) -> Any:
        cos, sin = tables
        return torch.ops.npu.npu_mla_prolog.functional(
            x,
            self.weight_dq,
            self.weight_uq_qr,
            self.weight_uk,
            self.weight_dkv_kr,
            self.gamma_cq,
            self.gamma_ckv,
            sin,
            cos,
            slots,
            caches[0],
            caches[1],
            rmsnorm_epsilon_cq=self.epsilons[0],
            rmsnorm_epsilon_ckv=self.epsilons[1],
        )


def obstacle_of(parts: LatentParts) -> str | None:
    """Return why the operator does not take these projections; None if it does."""
    if parts.query_norm is None:
        return "queries are not projected down"
    layers = (*parts.query, parts.latent_down)
    if not all(isinstance(layer, nn.Linear) for layer in layers):
        return "they are integers"
    if any(layer.bias is not None for layer in layers):
        return "they have biases"
    return "adapters change them" if any(map(is_marked, layers)) else None


def is_marked(layer: nn.Module) -> bool:
    """Whether a layer has a name by which adapters find it."""
    return getattr(layer, "_mark", None) is not None


def _as_pairs(weight: torch.Tensor, rotated: int) -> torch.Tensor:
    """Put the halves of the last ``rotated`` of [N, rows, in] side by side, row by row."""
    others, halves = weight.split([weight.shape[1] - rotated, rotated], dim=1)
    pairs = halves.unflatten(1, (2, -1)).transpose(1, 2).flatten(1, 2)
    return torch.cat([others, pairs], dim=1)
