"""Images that layers of the text attend to, as in Llama 3.2 Vision: no token has features."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import onnxruntime as ort

from ...errors import ArgumentError
from .features import Images, Prompt, checked_floats

_PIXELS, _RATIOS, _TILES = "pixel_values", "aspect_ratio_ids", "aspect_ratio_mask"
_SHOWN = "cross_attention_mask"


class Seen(NamedTuple):
    """What the text takes of images.

    kept: keys and values of its layers, by the names of outputs of vision; none without images.
    shown: [B, S, images, tiles] int64, 1 where a token of the prompt sees a tile.
    """

    kept: dict[str, ort.OrtValue]
    shown: np.ndarray


class States(Images):
    """pixel_values, aspect_ratio_ids, aspect_ratio_mask and cross_attention_mask of a processor."""

    kind = "states"
    names = (_PIXELS, _RATIOS, _TILES, _SHOWN)

    def __init__(self, metadata: Mapping[str, str], vision: ort.InferenceSession | None) -> None:
        super().__init__(metadata, vision)
        self.places = int(metadata["image_places"])  # of an image, all tiles together

    def features(self, prompt: Prompt, given: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        """Return nothing: tokens have none."""
        return []

    def seen(
        self, prompt: Prompt, given: Mapping[str, np.ndarray], device: tuple[str, int]
    ) -> Seen:
        """Return what the text takes; keys and values are on the device.

        Raises ArgumentError for images that do not go with the prompt.
        """
        batch, tokens = prompt.ids.shape
        shape = self._shape(_PIXELS)
        if _PIXELS not in given:
            if other := sorted(given):
                raise ArgumentError(f"expected pixel_values beside {', '.join(other)}, got none")
            return Seen({}, np.zeros((batch, tokens, 1, int(shape[2])), np.int64))
        pixels = checked_floats(given, _PIXELS, [batch, *shape[1:]], "a row for each of the prompt")
        of_tiles = batch, *pixels.shape[1:3]
        inputs = {
            _PIXELS: pixels,
            _RATIOS: _whole_numbers(given, _RATIOS, of_tiles[:2]),
            _TILES: _whole_numbers(given, _TILES, of_tiles),
        }
        shown = _whole_numbers(given, _SHOWN, (batch, tokens, *of_tiles[1:]))
        assert self._vision is not None
        binding = self._vision.io_binding()
        for name, value in inputs.items():
            binding.bind_cpu_input(name, np.ascontiguousarray(value))
        outputs = [each.name for each in self._vision.get_outputs()]
        for name in outputs:
            binding.bind_output(name, *device)
        self._vision.run_with_iobinding(binding)
        return Seen(dict(zip(outputs, binding.get_outputs(), strict=True)), shown)


def _whole_numbers(
    given: Mapping[str, np.ndarray], name: str, shape: tuple[int, ...]
) -> np.ndarray:
    """Return an argument as int64 of a shape, or raise ArgumentError."""
    found = np.asarray(given.get(name, np.zeros(0)))
    if found.dtype.kind not in "iub" or found.shape != shape:
        raise ArgumentError(
            f"expected {name} as integers {list(shape)}, got {found.dtype} {list(found.shape)}"
        )
    return np.ascontiguousarray(found, np.int64)
