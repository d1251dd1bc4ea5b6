"""What takes the place of the lengths of images where there is one image, of any length."""

from __future__ import annotations

from typing import Any

import torch

from ..replaced_functions import ReplacedFunctions


class Whole(list[Any]):
    """The length of all there is, as a list of lengths."""


class OneLength:
    """In the place of cumulative lengths of images, of which there is one, of any length."""

    def __init__(self, length: Any) -> None:
        self._length = length

    def __getitem__(self, _: slice) -> OneLength:
        return self

    def __sub__(self, _: OneLength) -> OneLength:
        return self

    def tolist(self) -> Whole:
        """Return the differences of what is cumulated."""
        return Whole([self._length])


def without_splits() -> ReplacedFunctions:
    """Return the split of a tensor, by which one part is the tensor itself.

    A graph would have a sequence of one part instead, which runs on the host.
    """
    own = torch.Tensor.split

    def split(x: torch.Tensor, lengths: Any, dim: int = 0) -> Any:
        return [x] if isinstance(lengths, Whole) else own(x, lengths, dim)

    functions = ReplacedFunctions()
    functions.add(torch.Tensor, "split", split)
    return functions
