"""What all kinds of images have in common: arguments of a processor to features of all images."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import ClassVar, NamedTuple

import numpy as np
import onnxruntime as ort

from ...errors import ArgumentError


class Prompt(NamedTuple):
    """The tokens of a prompt."""

    ids: np.ndarray  # [B, S]
    mask: np.ndarray  # [B, S]
    image_token: int

    @property
    def image_tokens(self) -> int:
        """How many there are in all rows."""
        return int((self.ids == self.image_token).sum())


class Images(ABC):
    """Images of a model, whose features [F, H] are put in the places of image tokens."""

    kind: ClassVar[str]
    names: tuple[str, ...]  # of arguments, as the model's processor returns them

    def __init__(self, metadata: Mapping[str, str], vision: ort.InferenceSession | None) -> None:
        """Take the metadata of the export and the session that makes features, if there is one."""
        self._vision = vision

    @property
    def tokens_per_image(self) -> int | None:
        """How many tokens each image has, if all have the same number."""
        return None

    def shown(self, prompt: Prompt, given: Mapping[str, np.ndarray]) -> np.ndarray:
        """Return the tokens [B, S] of a prompt, with image tokens wherever there are features."""
        return prompt.ids

    @abstractmethod
    def features(self, prompt: Prompt, given: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        """Return the features [F, H] of images in the order of their tokens.

        given: by their names. Raises ArgumentError for images that do not go with the prompt.
        """

    def positions(
        self, prompt: Prompt, given: Mapping[str, np.ndarray]
    ) -> tuple[np.ndarray, np.ndarray] | None:
        """Return positions of the prompt and the next one of each row, if tokens are not counted.

        That is, [3, B, S] and [B], where images are grids.
        """
        return None

    def _run(self, **inputs: np.ndarray) -> np.ndarray:
        assert self._vision is not None
        found: np.ndarray = self._vision.run(None, inputs)[0]
        return found

    def _shape(self, name: str) -> list[int | str]:
        """Return the shape of an input of the session."""
        assert self._vision is not None
        return next(list(x.shape) for x in self._vision.get_inputs() if x.name == name)


def checked_floats(
    given: Mapping[str, np.ndarray], name: str, shape: Sequence[int | str], note: str = ""
) -> np.ndarray:
    """Return an argument as float32 of a shape; any size fits a name, and no argument has none.

    Raises ArgumentError for anything else.
    """
    expected = ", ".join(map(str, shape))
    none = [0, *(0 if isinstance(size, str) else size for size in shape[1:])]
    found = np.asarray(given.get(name, np.zeros(none, np.float32)))
    fits = found.ndim == len(shape) and all(
        isinstance(wanted, str) or size == wanted
        for size, wanted in zip(found.shape, shape, strict=True)
    )
    if found.dtype.kind != "f" or not fits:
        raise ArgumentError(
            f"expected {name} of float32 and shape [{expected}]{note}, got {found.dtype} "
            f"{list(found.shape)}"
        )
    return found


def checked_integers(
    given: Mapping[str, np.ndarray], name: str, columns: int, meaning: str
) -> np.ndarray:
    """Return an argument as int64 [images, columns], of which no argument has none.

    Raises ArgumentError for anything else.
    """
    found = np.asarray(given.get(name, np.zeros((0, columns), np.int64)))
    if found.ndim != 2 or found.shape[1] != columns or found.dtype.kind not in "iu":
        raise ArgumentError(
            f"expected {name} as integers [images, {columns}], {meaning}, got {found.dtype} "
            f"{list(found.shape)}"
        )
    return found.astype(np.int64)
