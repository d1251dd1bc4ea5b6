"""Images of one size, each with as many features."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from .features import Prompt
from .whole_images import MASK, WholeImages


class OneSize(WholeImages):
    """pixel_values, and pixel_attention_mask where images are padding."""

    kind = "one_size"
    names = ("pixel_values", MASK)

    def features(self, prompt: Prompt, given: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        """Return the features of each image."""
        return [self._run(pixel_values=image[None]) for image in self._images(prompt, given)]
