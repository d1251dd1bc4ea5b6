"""The exported form of a projection, which several roles use."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import nn
from transformers.pytorch_utils import Conv1D

from ..integers.stored_linear import Concatenated, StoredLinear, float_linear, joined_stored


class Source(NamedTuple):
    """A layer of the original model whose outputs a projection has: its mark, and how many."""

    mark: str | None  # see ``mark_layers``
    out_features: int


def mark_layers(layers: Mapping[str, nn.Module]) -> None:
    """Name layers, so that they are found again in what is built from them or from copies."""
    for name, layer in layers.items():
        layer._mark = name  # type: ignore[assignment]  # a string, in no registry of modules


def sizes_of(layer: Any) -> tuple[int, int]:
    """Return the sizes of the last axis of a layer's input and output.

    The weight is [out, in] in torch's layers, [in, out] in Linear and in Conv1D of transformers.
    """
    rows, columns = layer.weight.shape
    return (columns, rows) if isinstance(layer, nn.Linear) else (rows, columns)


def sources_of(module: nn.Module) -> tuple[Source, ...]:
    """Return the layers that a module, joined or still the original, computes side by side."""
    if isinstance(module, Linear):
        return module.sources
    mark: Any = getattr(module, "_mark", None)
    return () if mark is None else (Source(mark, sizes_of(module)[1]),)


class Linear(nn.Module):
    """``x @ weight + bias`` with the weight as [in, out]."""

    def __init__(
        self,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        sources: tuple[Source, ...] = (),
    ) -> None:
        super().__init__()
        self.sources = sources
        self.weight = nn.Parameter(weight, requires_grad=False)
        self.bias = None if bias is None else nn.Parameter(bias, requires_grad=False)

    @property
    def in_features(self) -> int:
        """Size of the input's last axis."""
        return self.weight.shape[0]

    @property
    def out_features(self) -> int:
        """Size of the output's last axis."""
        return self.weight.shape[1]

    @staticmethod
    def joined(*layers: nn.Linear | StoredLinear) -> Projection:
        """Return one projection that computes those of ``layers``, concatenated.

        Integers of a checkpoint stay what they are; the layers with integers that do not share
        their groups stay several.
        """
        floats = [layer for layer in layers if isinstance(layer, nn.Linear)]
        if len(floats) == len(layers):
            return Linear._joined(floats)
        stored = [layer for layer in layers if isinstance(layer, StoredLinear)]
        together = None if floats else joined_stored(stored)
        if together is not None:
            return together
        return Concatenated(
            [each if isinstance(each, StoredLinear) else Linear._joined([each]) for each in layers]
        )

    @staticmethod
    def _joined(layers: Sequence[nn.Linear]) -> Linear:
        weights = [layer.weight.detach() for layer in layers]
        # A copy for the sake of the other layers alone would take memory.
        weight = (weights[0] if len(weights) == 1 else torch.cat(weights)).t().contiguous()
        sources = tuple(
            Source(getattr(layer, "_mark", None), layer.out_features) for layer in layers
        )
        if all(layer.bias is None for layer in layers):
            return Linear(weight, None, sources)
        biases = [
            weight.new_zeros(layer.out_features) if layer.bias is None else layer.bias.detach()
            for layer in layers
        ]
        return Linear(weight, torch.cat(biases), sources)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Project x [.., in] to [.., out]."""
        y = torch.matmul(x, self.weight)
        return y if self.bias is None else y + self.bias


def replace_by_torch(owner: nn.Module) -> None:
    """Replace projections whose weight is [in, out] by those of torch, in place."""
    for name, module in list(owner.named_modules()):
        if isinstance(module, (Linear, Conv1D)):
            owner.set_submodule(name, _as_torch(module))


def _as_torch(module: Linear | Conv1D) -> nn.Linear:
    bias = None if module.bias is None else module.bias.detach()
    return float_linear(module.weight.detach().t(), bias)


# What joins projections: floats, integers of a checkpoint, or several of these.
Projection = Linear | StoredLinear | Concatenated
