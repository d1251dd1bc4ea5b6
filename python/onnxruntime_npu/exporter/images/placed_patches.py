"""Images of any size as patches with their places, which a processor pads, as in Gemma 4.

The graph takes the patches of one image without padding, in blocks of ``merge`` times ``merge``
whose mean becomes a feature; ``merge`` is 1 where a model has no tower of layers that see others.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Sequence
from typing import Any

import torch

from ..replaced_functions import ReplacedFunctions
from .part import own_features
from .patch_grid import PatchGridPart, by_rows

PLACES = "positions_of_patches"  # of the file's metadata: an image has at most as many rows
_BLOCKS = (2, 3)  # rows and columns of blocks to trace with: all numbers differ, and none is 1
_MASK = "create_bidirectional_mask"  # a function of the tower: hides padding


class PlacedPatchPart(PatchGridPart):
    """The patches of one image to features."""

    kind = "placed_patches"

    def __init__(self, model: Any) -> None:
        super().__init__(model)
        owner = model.base_model
        self._tower: Any = getattr(owner, "vision_tower", None)
        self._embed = owner.embed_vision
        self._functions = ReplacedFunctions()
        self.attends = self._tower is not None
        if self._tower is None:
            self.merge = 1
            self.patch = (int(self._embed.patch_dense.in_features),)
            self.places = int(self._embed.pos_embedding.shape[0])
        else:
            self.merge = int(self._tower.config.pooling_kernel_size)
            self.patch = (int(self._tower.patch_embedder.input_proj.in_features),)
            self.places = int(self._tower.patch_embedder.position_embedding_size)
            module = sys.modules[type(self._tower).__module__]
            self._functions.add(module, _MASK, lambda **_: None)  # of one image, nothing is hidden
        rows, columns = (blocks * self.merge for blocks in _BLOCKS)
        self.grid = rows, columns

    @staticmethod
    def takes(model: Any) -> bool:
        """Whether features need the place of each patch."""
        taken = inspect.signature(own_features(model)).parameters
        return {"pixel_values", "image_position_ids"} <= set(taken)

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        """Return features [F, H] in float32 of pixel_values [P, values] of P patches.

        ``inputs``: also patch_positions [P, 2], the row and the column of each patch.
        """
        pixel_values, places = inputs[0][None], inputs[1].flip(1)[None]  # columns come first here
        if self._tower is None:
            found: torch.Tensor = self._embed(pixel_values, places).pooler_output
        else:
            found = self._embed(inputs_embeds=self._means(pixel_values, places)[None])
        return found[0].float()

    def _means(self, pixel_values: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        """Return the mean [F, H] of what the tower makes of the patches of each block."""
        tower = self._tower
        hidden = tower.patch_embedder(pixel_values, places, places[..., 0] < 0)
        with self._functions.replaced():
            encoded = tower.encoder(
                inputs_embeds=hidden, attention_mask=None, pixel_position_ids=places
            ).last_hidden_state
        means = encoded[0].float().unflatten(0, (-1, self.merge**2)).mean(1)
        means = means * tower.pooler.root_hidden_size
        if tower.config.standardize:
            means = (means - tower.std_bias.float()) * tower.std_scale.float()
        return means.to(hidden.dtype)

    def as_given(self, images: Sequence[tuple[torch.Tensor, ...]]) -> dict[str, torch.Tensor]:
        """Return images of one size as the model takes them: row by row, and padded by a block."""
        padding = (0, 0, 0, self.merge**2)
        pixels = torch.stack([by_rows(*image) for image in images])
        found = torch.stack([by_rows(places, places).flip(1) for _, places in images])
        return {
            "pixel_values": torch.nn.functional.pad(pixels, padding),
            "image_position_ids": torch.nn.functional.pad(found, padding, value=-1),
        }

    def metadata(self) -> dict[str, str]:
        """Return what a runner has to know of the model."""
        return {**super().metadata(), PLACES: str(self.places)}
