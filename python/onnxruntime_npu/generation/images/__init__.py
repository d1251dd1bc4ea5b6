"""Features of images for a model of images and text: a file for each kind of images.

The kinds are those of ``exporter/images``; the metadata of an exported model names its own.
"""

from __future__ import annotations

from collections.abc import Mapping

import onnxruntime as ort

from ...errors import ArgumentError
from ...subclasses import subclasses_in
from .features import Images

__all__ = ["Images", "images_of"]


def images_of(metadata: Mapping[str, str], vision: ort.InferenceSession | None) -> Images:
    """Return what makes features of a model's images.

    metadata: of the file that takes features; vision: of the one that makes them, if there is one.
    Raises ArgumentError for a kind of images that no file of this folder is for.
    """
    kinds = {each.kind: each for each in subclasses_in(__name__, Images)}
    name = metadata.get("images")
    if name not in kinds:
        raise ArgumentError(
            f"expected a model of images that are one of {', '.join(sorted(kinds))}, got {name}: "
            f"export it again with this version"
        )
    return kinds[name](metadata, vision)
