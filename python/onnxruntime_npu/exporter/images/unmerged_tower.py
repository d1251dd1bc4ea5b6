"""Vision with a feature of each patch, as VideoLLaMA 3 makes them of images."""

from __future__ import annotations

import inspect
from typing import Any

import torch

from ..replaced_functions import ReplacedFunctions
from .one_length import OneLength
from .patch_tower import PatchTower, pair

_MERGE_SIZES = "image_merge_sizes"  # of images, as the model's processor returns them


class UnmergedTower(PatchTower):
    """``model.vision_model`` and ``model.projector``; patches of images are not merged.

    Those of videos are, by an argument that has the rows and columns of blocks of each.
    """

    def __init__(self, model: Any) -> None:
        super().__init__(model, merge=1)
        embed = model.base_model.vision_model.embeddings.patch_embedding
        self.patch = (int(embed.in_channels * torch.tensor(pair(embed.kernel_size)).prod()),)
        self._functions = ReplacedFunctions()
        self._functions.add(
            model.base_model.vision_model, "pixel_unshuffle", lambda hidden, *_: hidden
        )

    @staticmethod
    def takes(model: Any) -> bool:
        """Whether the model has such a vision."""
        return _MERGE_SIZES in inspect.signature(model.forward).parameters

    def features(
        self, patches: torch.Tensor, positions: torch.Tensor, windows: torch.Tensor | None
    ) -> torch.Tensor:
        """Return features of patches."""
        owner = self.model.base_model
        with self._functions.replaced():
            encoded = owner.vision_model(
                patches,
                grid_thw=None,  # from which positions and lengths would be computed
                merge_sizes=None,
                position_ids=positions,
                cu_seqlens=OneLength(patches.shape[0]),
            )
        features: torch.Tensor = owner.projector(encoded.last_hidden_state)
        return features

    def given(self, sizes: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return sizes of images, and 1 for each."""
        return {**super().given(sizes), _MERGE_SIZES: torch.ones(len(sizes), dtype=torch.int64)}
