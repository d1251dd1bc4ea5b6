"""Padding of a growing cache that a convolution would read as tokens.

A model's code sets activations of padding to zeros before it projects them, which a projection with
a bias makes something else. What a layer's convolution reads of them is zeros again here, where a
run of the model has shown that it is not.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


class ConvolvedPadding:
    """Which columns are padding, and whether a run has left anything in these."""

    def __init__(self) -> None:
        self._mask: torch.Tensor | None = None
        self._found = False

    @contextmanager
    def reading(self, mask: torch.Tensor) -> Iterator[None]:
        """Take the mask [B, T] of a run inside, 0 for padding, whose last columns are new."""
        self._mask = mask
        try:
            yield
        finally:
            self._mask = None

    def cleared(self, columns: torch.Tensor) -> torch.Tensor:
        """Return new columns [B, C, S] with zeros for padding.

        The proof, which is not traced, runs a row with padding: it decides for what is traced.
        """
        if self._mask is None:
            return columns
        new = self._mask.shape[1] - columns.shape[2]
        token = self._mask[:, None, new:] != 0
        if not torch.compiler.is_exporting():
            self._found |= bool(torch.where(token, 0.0, columns).any())
        return torch.where(token, columns, 0.0) if self._found else columns
