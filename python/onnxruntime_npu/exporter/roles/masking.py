"""The role of a layer's attention mask: causal, or causal within a sliding window."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch

from ..caches.dynamic import DynamicStep
from ..proof import NotProven
from .probes import PROBE_WINDOW, CutOut
from .role import Role


class Masking(NamedTuple):
    """The past tokens that a token attends to: all, or those of a window."""

    window: int | None


class MaskingRole(Role[torch.Tensor, Masking]):
    """The mask that the model creates for one layer, exported as the layer's window."""

    def __init__(self, cut_out: CutOut) -> None:
        self._cut_out = cut_out

    def match(self, original: dict[str, Any]) -> torch.Tensor:
        """Find the mask among the layer's arguments."""
        mask = original["attention_mask"]
        if mask is None:
            raise NotProven("attention mask: expected a 4-D mask for a padded batch, got none")
        return mask

    def build(self, parts: torch.Tensor) -> Iterator[Masking]:
        """Yield both forms; the mask was created with the probe's window size."""
        yield Masking(None)
        yield Masking(self._cut_out.window)

    def prove(self, original: dict[str, Any], built: Masking) -> float:
        """Compare the masks of the rows that are not padding."""
        theirs = original["attention_mask"]
        hidden = ~theirs if theirs.dtype == torch.bool else theirs < 0
        attention_mask = self._cut_out.attention_mask
        step = DynamicStep(attention_mask, attention_mask.shape[1])
        real = attention_mask.bool()[:, None, :, None]
        ours = step.mask(None if built.window is None else PROBE_WINDOW)
        if not torch.equal(hidden & real, ours & real):
            raise NotProven("attention mask: expected causal or sliding-window masking")
        return 0.0
