"""Images as patches of any number, and positions in three dimensions, as in Qwen2-VL.

An image is a grid of patches, in blocks of ``merge`` times ``merge`` that become one feature each.
The host computes where patches and tokens are (generation/images/patch_positions.py); the graphs
take it.
"""

from __future__ import annotations

from typing import Any

import torch

from ...generation.images.patch_positions import patch_positions, patch_windows
from ..proof import NotProven
from .part import ImagePart
from .patch_windows import OneLength, WindowAttention, Windows

_BLOCKS = (2, 3)  # rows and columns of blocks to trace with: all numbers differ, and none is 1


# Of the file's metadata: patches of an image that become one feature, and rows and columns of a
# window that attention stays within.
MERGE, WINDOW = "spatial_merge_size", "patches_of_window"


class PatchPart(ImagePart):
    """The patches of one image to features.

    Where layers attend within windows, ``window`` is the rows and columns of patches of one, and
    the model's attention is replaced by one that can. Where layers of the text take features, too,
    as in Qwen3-VL, ``stacked`` is their number, and their features follow those of the tokens.
    """

    kind = "patches"
    axes = (3,)  # time, row and column

    def __init__(self, model: Any) -> None:
        super().__init__(model)
        visual = model.base_model.visual
        self.merge = int(model.config.vision_config.spatial_merge_size)
        embed = visual.patch_embed
        self.window: int | None = None
        if (pixels := getattr(visual, "window_size", None)) is not None:
            self.window = int(pixels) // self.merge // int(visual.patch_size) * self.merge
            for block in visual.blocks:
                block.attn = WindowAttention(block.attn)
        self.stacked = len(getattr(visual, "deepstack_visual_indexes", ()))
        self.side: int | None = getattr(visual, "num_grid_per_side", None)  # of learned positions
        if self.side is not None and visual.interpolation_mode != "bilinear":
            raise NotProven(
                f"expected positions of patches between four learned ones (bilinear), got "
                f"interpolation_mode {visual.interpolation_mode}"
            )
        # More than a window, and no whole number of them.
        least = (self.window or 0) // self.merge
        self.grid = tuple((least + blocks) * self.merge for blocks in _BLOCKS)
        kernel = [embed.temporal_patch_size, *_pair(embed.patch_size)]
        self.values = int(embed.in_channels * torch.tensor(kernel).prod())

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        """Return features [F, H] in float32 of pixel_values [P, values] of P patches.

        ``inputs``: also patch_positions [P, 2], the row and the column of each patch, and with
        windows patch_windows [W, L], the patches of each, P where it reaches beyond the image.
        """
        pixel_values, positions, *windows = inputs
        count = pixel_values.shape[0]
        options: dict[str, Any] = {}
        if windows:  # patches stay in their order, in which nothing but attention depends on others
            options["window_index"] = torch.arange(count // self.merge**2)
            options["cu_window_seqlens"] = Windows(windows[0], count)
        visual = self.model.base_model.visual
        if self.side is not None:
            learned = _learned_positions(positions, self.side, visual.interpolation_align_corners)
            options["interp_indices"], options["interp_weights"] = learned
        result = visual(
            pixel_values.to(visual.dtype),
            grid_thw=None,  # from which positions and lengths would be computed
            position_ids=positions,
            cu_seqlens=OneLength(count),
            **options,
        )
        stacked = result.deepstack_features if self.stacked else []
        return torch.cat([result.pooler_output, *stacked], -1).float()

    @property
    def input_names(self) -> tuple[str, ...]:  # type: ignore[override]
        """Names of the graph inputs, in order."""
        names = ("pixel_values", "patch_positions")
        return names if self.window is None else (*names, "patch_windows")

    @staticmethod
    def takes(model: Any) -> bool:
        """Whether the model takes patches and a grid instead of images of one size."""
        visual = getattr(model.base_model, "visual", None)
        return hasattr(visual, "patch_embed") and hasattr(model.base_model, "get_rope_index")

    def metadata(self) -> dict[str, str]:
        """Return what a runner has to know of the model."""
        window = {} if self.window is None else {WINDOW: str(self.window)}
        return {**super().metadata(), MERGE: str(self.merge), **window}

    def positions(
        self, input_ids: torch.Tensor, mask: torch.Tensor, given: dict[str, torch.Tensor]
    ) -> torch.Tensor:
        """Return the model's own positions [3, B, S] of tokens."""
        kinds = (input_ids == self.model.config.image_token_id).long()
        found: torch.Tensor
        found, _ = self.model.base_model.get_rope_index(
            input_ids,
            mm_token_type_ids=kinds,
            image_grid_thw=given["image_grid_thw"],
            attention_mask=mask,
        )
        return found

    def as_given(self, pixel_values: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return an image as the model takes it."""
        return {"pixel_values": pixel_values, "image_grid_thw": torch.tensor([[1, *self.grid]])}

    def example(self) -> tuple[torch.Tensor, ...]:
        """Return arguments to trace with."""
        rows, columns = self.grid
        generator = torch.Generator().manual_seed(3)
        pixels = torch.randn(rows * columns, self.values, generator=generator)
        places = patch_positions(rows, columns, self.merge)
        given = [places] if self.window is None else [places, patch_windows(places, self.window)]
        return pixels, *map(torch.from_numpy, given)

    def dimensions(self) -> dict[str, tuple[str | int, ...]]:
        """Return the shape of inputs and output, with names for dynamic sizes."""
        with torch.no_grad():
            features = self(*self.example())
        shapes: dict[str, tuple[str | int, ...]] = {
            "pixel_values": ("patches", self.values),
            "patch_positions": ("patches", 2),
            "image_features": ("features", features.shape[1]),
        }
        if self.window is not None:
            shapes["patch_windows"] = ("windows", self.window**2)
        return shapes


def _learned_positions(
    places: torch.Tensor, side: int, align_corners: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the learned positions [P, 4] around places [P, 2] of a grid, and their weights.

    ``side``: of the square of learned ones, over which the grid is spread as F.interpolate does.
    """
    counts = places.amax(0) + 1
    if align_corners:
        spread = places.float() * (side - 1) / (counts - 1).clamp(min=1)
    else:
        spread = (places.float() + 0.5) * side / counts - 0.5
    around = spread.floor().long()[..., None] + torch.arange(2)
    weights = 1 - (spread[..., None] - around).abs()
    (rows, columns), (of_rows, of_columns) = around.clamp(0, side - 1).unbind(1), weights.unbind(1)
    indices = rows[:, :, None] * side + columns[:, None, :]
    return indices.flatten(1), (of_rows[:, :, None] * of_columns[:, None, :]).flatten(1)


def _pair(size: Any) -> list[int]:
    return list(size) if isinstance(size, (list, tuple)) else [size, size]
