"""Vision that merges blocks of patches itself, as in Qwen2-VL, Qwen3-VL and GLM-4V."""

from __future__ import annotations

from typing import Any

import torch

from .learned_positions import LearnedPositions, learned_points
from .one_length import OneLength
from .patch_tower import PatchTower, pair
from .patch_windows import WindowAttention, Windows


class MergingTower(PatchTower):
    """``model.visual``, which returns features of blocks."""

    def __init__(self, model: Any) -> None:
        super().__init__(model)
        visual = model.base_model.visual
        embed = visual.patch_embed
        kernel = [embed.temporal_patch_size, *pair(embed.patch_size)]
        self.patch = (int(embed.in_channels * torch.tensor(kernel).prod()),)
        if (pixels := getattr(visual, "window_size", None)) is not None:
            self.window = int(pixels) // self.merge // int(visual.patch_size) * self.merge
            for block in visual.blocks:
                block.attn = WindowAttention(block.attn)
        self.stacked = len(getattr(visual, "deepstack_visual_indexes", ()))
        self.gathers = hasattr(visual, "num_grid_per_side")  # learned positions
        if self.gathers:
            self.learned = int(visual.num_grid_per_side)
        elif hasattr(getattr(visual, "embeddings", None), "position_embedding"):
            visual.embeddings = LearnedPositions(visual.embeddings)
            self.learned = visual.embeddings.side

    @staticmethod
    def takes(model: Any) -> bool:
        """Whether the model has such a vision."""
        return hasattr(getattr(model.base_model, "visual", None), "patch_embed")

    def features(
        self, patches: torch.Tensor, positions: torch.Tensor, windows: torch.Tensor | None
    ) -> torch.Tensor:
        """Return features of blocks; those for layers of the text follow those for tokens."""
        count = patches.shape[0]
        options: dict[str, Any] = {}
        if windows is not None:
            # Patches stay in their order, in which nothing but attention depends on others.
            options["window_index"] = torch.arange(count // self.merge**2)
            options["cu_window_seqlens"] = Windows(windows, count)
        visual = self.model.base_model.visual
        if self.gathers:
            options |= learned_points(visual, positions)
        result = visual(
            patches.to(visual.dtype),
            grid_thw=None,  # from which positions and lengths would be computed
            position_ids=positions,
            cu_seqlens=OneLength(count),
            **options,
        )
        stacked = result.deepstack_features if self.stacked else []
        return torch.cat([result.pooler_output, *stacked], -1)
