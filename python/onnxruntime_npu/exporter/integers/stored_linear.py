"""A projection whose weight is a checkpoint's integers, in place of torch.nn.Linear."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from ...converters.quantized_linear import GroupedIntegerLinear, IntegerLinear, WeightOnlyLinear
from ..weights.lazy_weight import LazyWeight, value_of
from .integer_weight import DYNAMIC, FLOAT, IntegerWeight, joined


class StoredLinear(nn.Module):
    """Computes in floats, which every call restores from the integers; for proofs."""

    def __init__(self, stored: IntegerWeight, bias: torch.Tensor | None) -> None:
        super().__init__()
        self.stored = stored
        self.in_features, self.out_features = stored.in_features, stored.out_features
        self.bias = None if bias is None else nn.Parameter(bias, requires_grad=False)

    @property
    def weight(self) -> torch.Tensor:
        """The weight as floats, float32 [out, in]."""
        return self.stored.floats()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Project x [.., in] to [.., out]."""
        return nn.functional.linear(x, self.weight.to(x.dtype), self.bias)

    @property
    def _multiplies_words(self) -> bool:
        """Whether the operator of int4 weights and int8 activations takes the weight."""
        stored = self.stored
        divides = stored.in_features % stored.group_size == 0
        return (
            stored.bits == 4 and stored.activation == DYNAMIC and stored.offset is None and divides
        )

    @property
    def unrounded(self) -> str | None:
        """Which integers no operator multiplies with the int8 activations of config.json.

        None if one does, or if activations are floats.
        """
        stored = self.stored
        one_scale = stored.scale.shape[0] == 1
        if stored.activation == FLOAT or one_scale or self._multiplies_words:
            return None
        if stored.offset is not None:
            return f"asymmetric {stored.layout}"
        return f"{stored.layout} of {stored.in_features} input features"

    def leave_activations(self) -> None:
        """Let activations be floats."""
        self.stored = self.stored.with_float_activations()

    def as_operator(self, dtype: torch.dtype, inner_precise: int = 0) -> nn.Module:
        """Return the layer that multiplies the integers by fused operators, in dtype.

        Weights of float activations need float16 or bfloat16, and these only take
        ``inner_precise``. Raises ValueError if no operator multiplies integers that are stored so.
        """
        stored, bias = self.stored, self.bias
        rows = stored.in_features
        layer: nn.Module
        if stored.activation == FLOAT:
            grouped = stored.scale.shape[0] > 1
            layer = WeightOnlyLinear(
                stored.integers,
                stored.scale.to(dtype),
                bias,
                offset=None if stored.offset is None else stored.offset.to(dtype),
                group_size=stored.group_size if grouped else 0,
                in_features=rows,
                inner_precise=inner_precise,
            )
        elif self.unrounded is not None:
            raise ValueError(f"no operator multiplies {self.unrounded}")
        elif self._multiplies_words:
            layer = GroupedIntegerLinear(stored.values(), stored.scale, bias, stored.group_size)
        else:
            # One scale for all activations is taken with int8 alone, which holds int4, too.
            step = stored.input_scale
            layer = IntegerLinear(
                stored.values(),
                stored.scale[0] if step is None else stored.scale[0] * step,
                bias,
                static=step is not None,
                input_scale=step,
                offset=None if stored.offset is None else value_of(stored.offset)[0],
            )
        return layer if stored.order is None else Reordered(stored.order, layer)


def float_linear(weight: torch.Tensor, bias: torch.Tensor | None) -> nn.Linear:
    """Return torch's layer of a weight [out, in], which may be lazy."""
    columns, rows = weight.shape
    layer = nn.Linear(rows, columns, bias is not None, device="meta")
    layer.weight = nn.Parameter(weight, requires_grad=False)
    if bias is not None:
        layer.bias = nn.Parameter(bias, requires_grad=False)
    return layer


def restore_linear(model: nn.Module) -> None:
    """Put linear layers of floats, which are made when they are used, where there are integers."""
    for name, module in list(model.named_modules()):
        if isinstance(module, StoredLinear):
            shape = module.out_features, module.in_features
            floats = LazyWeight.computed(module.stored.floats, shape, torch.float32)
            bias = None if module.bias is None else module.bias.detach()
            model.set_submodule(name, float_linear(floats, bias))


class Concatenated(nn.Module):
    """Projections of one input whose weights are stored differently, side by side."""

    def __init__(self, layers: Sequence[nn.Module]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)

    @property
    def in_features(self) -> int:
        """Size of the input's last axis."""
        first: Any = self.layers[0]
        return int(first.in_features)

    @property
    def out_features(self) -> int:
        """Size of the output's last axis."""
        layers: list[Any] = list(self.layers)
        return sum(layer.out_features for layer in layers)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Project x [.., in] to [.., out]."""
        return torch.cat([layer(x) for layer in self.layers], -1)


class Reordered(nn.Module):
    """A layer that takes its input features in another order."""

    order: torch.Tensor

    def __init__(self, order: torch.Tensor, layer: nn.Module) -> None:
        super().__init__()
        self.register_buffer("order", order)
        self.layer = layer

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Project x [.., in] to [.., out]."""
        return self.layer(x.index_select(-1, self.order))


def joined_stored(layers: Sequence[StoredLinear]) -> StoredLinear | None:
    """Return one projection that computes all, or None if their weights are stored differently."""
    stored = joined([layer.stored for layer in layers])
    if stored is None:
        return None
    if all(layer.bias is None for layer in layers):
        return StoredLinear(stored, None)
    biases = [
        torch.zeros(layer.out_features) if layer.bias is None else layer.bias.detach()
        for layer in layers
    ]
    return StoredLinear(stored, torch.cat(biases))
