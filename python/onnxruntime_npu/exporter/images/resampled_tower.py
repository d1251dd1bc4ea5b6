"""Vision whose patches a resampler merges in rows, columns and time, as in ERNIE 4.5 VL."""

from __future__ import annotations

from typing import Any

import torch

from .one_length import OneLength
from .patch_tower import PatchTower


class ResampledTower(PatchTower):
    """``model.vision_tower`` and ``model.resampler_model``; an image is twice in time."""

    def __init__(self, model: Any) -> None:
        super().__init__(model)
        self.patch = (int(model.base_model.vision_tower.patch_embed.proj.in_features),)

    @staticmethod
    def takes(model: Any) -> bool:
        """Whether the model has such a vision."""
        return hasattr(model.base_model, "resampler_model")

    def features(
        self, patches: torch.Tensor, positions: torch.Tensor, windows: torch.Tensor | None
    ) -> torch.Tensor:
        """Return features of blocks."""
        owner = self.model.base_model
        encoded = owner.vision_tower(
            patches,
            grid_thw=None,  # from which positions and lengths would be computed
            position_ids=positions,
            cu_seqlens=OneLength(patches.shape[0]),
        ).last_hidden_state
        resampler = owner.resampler_model
        merged = resampler.spatial_linear(encoded.reshape(-1, resampler.spatial_dim))
        merged = resampler.temporal_linear(torch.cat([merged, merged], -1))
        features: torch.Tensor = resampler.after_norm(resampler.mlp(merged))
        return features
