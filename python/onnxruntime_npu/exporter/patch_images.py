"""Images as patches of any number, and positions in three dimensions, as in Qwen2-VL.

An image is a grid of patches, in blocks of ``merge`` times ``merge`` that become one feature each.
The host computes where patches and tokens are (generation/patch_positions.py); the graphs take it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from .proof import NotProven

_BLOCKS = (2, 3)  # rows and columns of blocks to trace with: all numbers differ, and none is 1


class PatchVisionPart(nn.Module):
    """The patches of one image to the features that take the place of its tokens."""

    input_names = ("pixel_values", "patch_positions")
    output_names = ("image_features",)

    def __init__(self, model: Any) -> None:
        super().__init__()
        if getattr(model.config.vision_config, "window_size", None) is not None:
            raise NotProven("expected attention over all patches of an image, got windows")
        self.model = model
        self.merge = int(model.config.vision_config.spatial_merge_size)
        self.grid = tuple(blocks * self.merge for blocks in _BLOCKS)
        embed = model.base_model.visual.patch_embed
        kernel = [embed.temporal_patch_size, *_pair(embed.patch_size)]
        self.values = int(embed.in_channels * torch.tensor(kernel).prod())

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        """Return features [F, H] in float32 of pixel_values [P, values] of P patches.

        ``inputs``: also patch_positions [P, 2], the row and the column of each patch.
        """
        pixel_values, positions = inputs
        visual = self.model.base_model.visual
        return visual(
            pixel_values.to(visual.get_dtype()),
            grid_thw=None,  # from which positions and lengths would be computed
            position_ids=positions,
            cu_seqlens=_OneImage(pixel_values.shape[0]),
        ).pooler_output.float()

    def as_given(self, pixel_values: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return an image as the model takes it."""
        return {"pixel_values": pixel_values, "image_grid_thw": torch.tensor([[1, *self.grid]])}

    def example(self) -> tuple[torch.Tensor, ...]:
        """Return arguments to trace with."""
        rows, columns = self.grid
        generator = torch.Generator().manual_seed(3)
        pixels = torch.randn(rows * columns, self.values, generator=generator)
        places = torch.cartesian_prod(torch.arange(rows), torch.arange(columns))
        blocks = places.view(_BLOCKS[0], self.merge, _BLOCKS[1], self.merge, 2)
        return pixels, blocks.transpose(1, 2).reshape(-1, 2)

    def dimensions(self) -> dict[str, tuple[str | int, ...]]:
        """Return the shape of inputs and output, with names for dynamic sizes."""
        with torch.no_grad():
            features = self(*self.example())
        return {
            "pixel_values": ("patches", self.values),
            "patch_positions": ("patches", 2),
            "image_features": ("features", features.shape[1]),
        }


class _OneImage:
    """In the place of cumulative lengths of images, of which there is one, of any length."""

    def __init__(self, length: int) -> None:
        self._length = length

    def __getitem__(self, _: slice) -> _OneImage:
        return self

    def __sub__(self, _: _OneImage) -> _OneImage:
        return self

    def tolist(self) -> list[int]:
        """Return the differences of what is cumulated."""
        return [self._length]


def takes_patches(model: Any) -> bool:
    """Whether the model takes patches and a grid instead of images of one size."""
    visual = getattr(model.base_model, "visual", None)
    return hasattr(visual, "patch_embed") and hasattr(model.base_model, "get_rope_index")


def token_positions(
    model: Any, input_ids: torch.Tensor, mask: torch.Tensor, grids: torch.Tensor
) -> torch.Tensor:
    """Return the model's own positions [3, B, S] of tokens."""
    kinds = (input_ids == model.config.image_token_id).long()
    positions, _ = model.base_model.get_rope_index(
        input_ids, mm_token_type_ids=kinds, image_grid_thw=grids, attention_mask=mask
    )
    return positions


def _pair(size: Any) -> list[int]:
    return list(size) if isinstance(size, (list, tuple)) else [size, size]
