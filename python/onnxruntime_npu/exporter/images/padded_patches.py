"""Images of any size as patches that a processor pads, as in LFM2-VL with the tower of SigLIP 2.

The graph takes the patches of one image without padding, in blocks of ``merge`` times ``merge``
that become one feature each. What depends on the image's size is computed from their places.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import torch

from ..replaced_functions import ReplacedFunctions
from .part import own_features
from .patch_grid import PatchGridPart, by_rows

_ROWS = 2  # of blocks to trace with
_PADDING = 3  # patches after the proof's image, which the model has to hide


class PaddedPatchPart(PatchGridPart):
    """The patches of one image to features."""

    kind = "padded_patches"

    def __init__(self, model: Any) -> None:
        super().__init__(model)
        owner = model.base_model
        self._tower = owner.vision_tower
        self._projector = owner.multi_modal_projector
        self._side = int(self._tower.embeddings.position_embedding_size)
        self.patch = (int(self._tower.embeddings.patch_embedding.in_features),)
        self.merge = int(model.config.downsample_factor)
        # More columns than there are learned positions, and with most models fewer rows: positions
        # are between learned ones in one direction, and the mean of several in the other.
        columns = max(self._side // self.merge, _ROWS) + 1
        self.grid = _ROWS * self.merge, columns * self.merge
        self._functions = ReplacedFunctions()
        self._functions.add(self._projector, "pixel_unshuffle", self._joined)

    @staticmethod
    def takes(model: Any) -> bool:
        """Whether features need rows and columns of patches, and which patches are no padding."""
        taken = inspect.signature(own_features(model)).parameters
        return {"pixel_values", "spatial_shapes", "pixel_attention_mask"} <= set(taken)

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        """Return features [F, H] in float32 of pixel_values [P, values] of P patches.

        ``inputs``: also patch_positions [P, 2], the row and the column of each patch.
        """
        pixel_values, places = inputs
        embeddings = self._tower.embeddings
        learned = _shares(places, self._side) @ embeddings.position_embedding.weight.float()
        hidden = embeddings.patch_embedding(pixel_values.to(self._dtype)) + learned.to(self._dtype)
        encoded = self._tower.encoder(inputs_embeds=hidden[None], attention_mask=None)
        hidden = self._tower.post_layernorm(encoded.last_hidden_state)
        with self._functions.replaced():
            features: torch.Tensor = self._projector(hidden)
        return features.float()

    def _joined(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return the patches [1, P, H] of each block next to each other: [F, merge * merge * H]."""
        return hidden[0].reshape(-1, self.merge**2 * hidden.shape[-1])

    def as_given(self, images: Sequence[tuple[torch.Tensor, ...]]) -> dict[str, torch.Tensor]:
        """Return images of one size as the model takes them: row by row, and padded."""
        pixels = torch.stack([by_rows(*image) for image in images])
        padded = torch.nn.functional.pad(pixels, (0, 0, 0, _PADDING))
        shown = (torch.arange(padded.shape[1]) < pixels.shape[1]).int()
        return {
            "pixel_values": padded,
            "spatial_shapes": torch.tensor([self.grid] * len(images)),
            "pixel_attention_mask": shown.expand(len(images), -1),
        }


def _shares(places: torch.Tensor, side: int) -> torch.Tensor:
    """Return the shares [P, side * side] that learned positions have in those of places [P, 2].

    As F.interpolate does from a square of learned ones, bilinear and antialiased: in a direction
    in which the image has fewer patches, a position is a mean of all that it covers.
    """
    apart = side / (places.amax(0) + 1).float()  # distances of two patches, in learned positions
    centers = (places.float() + 0.5) * apart
    distances = (torch.arange(side) + 0.5 - centers[..., None]).abs()
    weights = (1 - distances / apart.clamp(min=1)[:, None]).clamp(min=0)
    rows, columns = (weights / weights.sum(-1, keepdim=True)).unbind(1)
    return (rows[:, :, None] * columns[:, None, :]).flatten(1)
