"""Images of any size as patches that are projected to features one by one, as in Fuyu."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ...errors import ArgumentError
from .features import Images, Prompt, checked_floats

_PIXELS, _FORMER = "pixel_values", "image_patches"


class ProjectedPatches(Images):
    """pixel_values [patches, values] float32 of all images, in the order of their tokens.

    Up to transformers 5.23 the processor calls it image_patches, which is taken, too.
    """

    kind = "projected_patches"
    names = (_PIXELS, _FORMER)

    def features(self, prompt: Prompt, given: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        """Return the features of all patches."""
        if len(given) > 1:
            raise ArgumentError(
                f"expected one of {_PIXELS} and {_FORMER}, the same patches, got both"
            )
        name = next(iter(given), _PIXELS)
        patches = checked_floats(given, name, self._shape(_PIXELS))
        if len(patches) != prompt.image_tokens:
            raise ArgumentError(
                f"expected {len(patches)} image tokens, one for each patch of {name}, got "
                f"{prompt.image_tokens}"
            )
        if not len(patches):
            return []
        return [self._run(pixel_values=np.ascontiguousarray(patches, np.float32))]
