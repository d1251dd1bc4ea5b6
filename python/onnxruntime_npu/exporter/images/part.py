"""The part of a model that makes features of one image."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import nn

KIND = "images"  # of the file's metadata: the kind of images
_METHOD = "get_image_features"


def own_features(model: Any) -> Any:
    """Return the model's method that makes features of images, or None."""
    owner = model if hasattr(model, _METHOD) else model.base_model
    return getattr(owner, _METHOD, None)


def features_in(model: Any, result: Any) -> Any:
    """Return the features in what that method returns: a tensor, or one of each image."""
    if result.pooler_output is not None:
        return result.pooler_output
    # As in Llama 4, whose forward pass projects the states; those of Fuyu are projected patches.
    projector = getattr(model, "multi_modal_projector", None)
    states = result.last_hidden_state
    return states if projector is None else projector(states)


class ImagePart(nn.Module):
    """One image to the features [F, H] that take the place of its tokens."""

    kind: ClassVar[str]
    input_names: Sequence[str]
    output_names = ("image_features",)
    obstacle: str | None = None  # why a model's own features are not exported
    attends = True  # whether a patch or a pixel sees others
    stacked = 0  # layers of the text that take features, too
    axes: Sequence[int] = ()  # leading sizes of the positions of tokens

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    @staticmethod
    @abstractmethod
    def takes(model: Any) -> bool:
        """Whether the model takes images of this kind."""

    @abstractmethod
    def as_given(self, images: Sequence[tuple[torch.Tensor, ...]]) -> dict[str, torch.Tensor]:
        """Return images, each as ``forward`` takes it, as the model takes them."""

    @abstractmethod
    def example(self) -> tuple[torch.Tensor, ...]:
        """Return arguments to trace with."""

    def examples(self) -> list[tuple[torch.Tensor, ...]]:
        """Return images to prove features of, which the model takes together."""
        return [self.example()]

    @abstractmethod
    def dimensions(self) -> dict[str, tuple[str | int, ...]]:
        """Return the shape of inputs and output, with names for dynamic sizes."""

    def metadata(self) -> dict[str, str]:
        """Return what a runner has to know of the model."""
        return {KIND: self.kind}

    def positions(
        self, input_ids: torch.Tensor, mask: torch.Tensor, given: dict[str, torch.Tensor]
    ) -> torch.Tensor:
        """Return the positions [*axes, B, S] of tokens, among which ``given`` images are."""
        return (mask.cumsum(1) - 1).clamp(min=0).repeat(*self.axes, 1, 1)

    @property
    def _dtype(self) -> torch.dtype:
        return next(p.dtype for p in self.model.parameters() if p.is_floating_point())
