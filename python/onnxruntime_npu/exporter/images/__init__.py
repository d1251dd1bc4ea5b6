"""How models take images: as images of one size, of any size, as tiles or as patches.

A kind of images is one file here, with the part of a model that makes features of them, and one of
the same name in ``generation/images``, which gives that part its inputs. The file's metadata names
the kind.
"""

from __future__ import annotations

from typing import Any

import torch

from ...subclasses import subclasses_in
from ..proof import NotProven, attempt, compare
from .given import GivenFeatures
from .part import ImagePart, features_in, own_features

__all__ = ["GivenFeatures", "ImagePart", "image_part_of", "own_features"]


def image_part_of(model: Any) -> ImagePart:
    """Return the part of a model that makes features of an image, which equal the model's own.

    Where there is none that could be proven, features are given instead, and ``obstacle`` of what
    is returned says why.
    """
    kinds = [each for each in subclasses_in(__name__, ImagePart) if each.takes(model)]
    try:
        if len(kinds) != 1:
            raise NotProven("expected images of one size, of any size, tiles or patches")
        return attempt(_proven, kinds[0], model)
    except NotProven as error:
        return GivenFeatures(model, str(error))


def _proven(kind: type[ImagePart], model: Any) -> ImagePart:
    part = kind(model)
    examples = part.examples()
    own = features_in(model, own_features(model)(**part.as_given(examples)))
    if isinstance(own, (list, tuple)):  # of each image
        own = torch.cat([*own])
    features = torch.cat([part(*example) for example in examples])[:, : own.shape[-1]]
    compare(own.flatten(0, -2).float(), features, "features of an image")
    return part
