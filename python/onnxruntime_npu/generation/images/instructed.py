"""Images of one size, each with the tokens of an instruction, as in InstructBLIP."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ...errors import ArgumentError
from .features import Prompt
from .whole_images import WholeImages

_TOKENS, _MASK = "qformer_input_ids", "qformer_attention_mask"


class Instructed(WholeImages):
    """pixel_values [images, C, height, width] float32 and qformer_input_ids [images, tokens].

    The latter are an instruction for each image; qformer_attention_mask is 0 for padding.
    """

    kind = "instructed"
    names = ("pixel_values", _TOKENS, _MASK)

    def features(self, prompt: Prompt, given: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        """Return the features of each image."""
        images = self._images(prompt, given)
        tokens = np.asarray(given.get(_TOKENS, np.zeros((0, 1), np.int64)))
        shown = np.asarray(given.get(_MASK, np.ones_like(tokens))) != 0
        if tokens.dtype.kind not in "iu" or tokens.ndim != 2 or len(tokens) != len(images):
            raise ArgumentError(
                f"expected {_TOKENS} as integers [{len(images)}, tokens], an instruction for each "
                f"image, got {tokens.dtype} {list(tokens.shape)}"
            )
        if shown.shape != tokens.shape or not shown.any(1).all():
            raise ArgumentError(
                f"expected {_MASK} {list(tokens.shape)} with a token in each row, got "
                f"{list(shown.shape)}"
            )
        return [
            self._run(
                pixel_values=image[None],
                **{_TOKENS: np.ascontiguousarray(row[own][None], np.int64)},
            )
            for image, row, own in zip(images, tokens, shown, strict=True)
        ]
