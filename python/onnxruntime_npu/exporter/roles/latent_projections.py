"""Latent attention whose projections stay layers of their own: what ``npu_mla_prolog`` is not for.

They may have biases, integers or adapters, and queries need not be projected down. Only the
projection from latents to keys and values becomes weights of floats, by heads.
"""

from __future__ import annotations

from typing import Any

import torch

from .attention import rotate
from .latent_form import LatentAttention, LatentParts
from .latent_prolog import obstacle_of
from .norm import RmsNorm


class LatentProjections(LatentAttention):
    """Projections, ``npu_rms_norm`` and ``npu_rotary_mul`` before attention over latents."""

    def __init__(self, parts: LatentParts, *, in_pairs: bool) -> None:
        """Take the parts; ``in_pairs``: neighbouring columns are rotated together, else halves."""
        super().__init__(parts)
        *down, self.q_proj = parts.query
        self.q_a_proj = down[0] if down else None
        self.q_norm = _scaled(parts.query_norm, parts.factors[0])
        self.kv_a_proj_with_mqa = parts.latent_down
        self.kv_norm = _scaled(parts.latent_norm, parts.factors[1])
        self._in_pairs = in_pairs
        self.obstacle = obstacle_of(parts)
        self.norms = 1 if self.q_norm is None else 2

    @property
    def hidden_size(self) -> int:
        """The inputs of a projection."""
        return int(self.kv_a_proj_with_mqa.in_features)

    def latents_and_keys(self, x: torch.Tensor) -> torch.Tensor:
        """Project it."""
        projected: torch.Tensor = self.kv_a_proj_with_mqa(x)
        return projected

    def query_latent(self, x: torch.Tensor) -> torch.Tensor | None:
        """Project queries down, and normalise them."""
        return None if self.q_a_proj is None else self.q_norm(self.q_a_proj(x))

    def cached(
        self,
        x: torch.Tensor,
        query_latent: torch.Tensor | None,
        tables: tuple[torch.Tensor, torch.Tensor],
        cache: Any,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        """Write latents and rotated keys as any other keys and values."""
        heads, key_size, latent_size = self.weight_uk.shape
        rotated_size = tables[0].shape[-1]
        query = self.q_proj(x if query_latent is None else query_latent)
        query, query_rope = query.unflatten(-1, (heads, -1)).split([key_size, rotated_size], -1)
        latents, rotated = self.latents_and_keys(x)[:, :, None].split(
            [latent_size, rotated_size], -1
        )
        query = torch.matmul(query.transpose(1, 2), self.weight_uk)
        query_rope, rotated = (self._rotated(each, tables) for each in (query_rope, rotated))
        latents = self.kv_norm(latents).transpose(1, 2)
        if cache is not None:
            latents, rotated = cache.update(latents, rotated, self.layer_idx)
        return query, query_rope, latents, rotated

    def _rotated(self, x: torch.Tensor, tables: tuple[torch.Tensor, ...]) -> torch.Tensor:
        """Rotate x [B, S, N, R]; return [B, N, S, R]."""
        cos, sin = (table[:, None] for table in tables)
        if self._in_pairs:
            cos, sin = (t[..., : t.shape[-1] // 2].repeat_interleave(2, -1) for t in (cos, sin))
        mode = "interleave" if self._in_pairs else "half"
        return rotate(x.transpose(1, 2), cos, sin, mode)


def _scaled(norm: Any, factor: float) -> Any:
    """Return a norm whose results are multiplied by a factor."""
    return None if norm is None else RmsNorm(norm.gamma.detach() * factor, norm.epsilon)
