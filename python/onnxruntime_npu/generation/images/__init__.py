"""Features of images for a model of images and text: a file for each kind of images.

The kinds are those of ``exporter/images``; the metadata of an exported model names its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from pkgutil import iter_modules

import onnxruntime as ort

from ...errors import ArgumentError
from .features import Images

__all__ = ["Images", "images_of"]


def images_of(metadata: Mapping[str, str], vision: ort.InferenceSession | None) -> Images:
    """Return what makes features of a model's images.

    metadata: of the file that takes features; vision: of the one that makes them, if there is one.
    """
    for module in iter_modules([*import_module(__name__).__path__]):
        import_module(f"{__name__}.{module.name}")
    kinds = {each.kind: each for each in Images.__subclasses__()}
    name = metadata.get("images")
    if name not in kinds:
        raise ArgumentError(
            f"expected a model of images that are one of {', '.join(sorted(kinds))}, got {name}: "
            f"export it again with this version"
        )
    return kinds[name](metadata, vision)
