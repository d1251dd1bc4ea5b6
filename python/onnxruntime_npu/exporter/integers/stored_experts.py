"""Experts whose weights are a checkpoint's integers, beside the floats that they stand for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import nn

from ...converters.quantized_experts import GroupedLinear, QuantizedExperts, bias_of, first_name
from .integer_weight import DYNAMIC, FLOAT, IntegerWeight, all_offsets


@dataclass(frozen=True)
class StoredExperts:
    """The weights before and after the activation, with an axis of experts first.

    A block of experts has them as ``stored``.
    """

    up: IntegerWeight
    down: IntegerWeight

    @property
    def unrounded(self) -> str | None:
        """Which integers no operator multiplies with the int8 activations of config.json.

        None if one does, or if activations are floats.
        """
        found = [each for each in (self.up, self.down) if not _is_rounded(each)]
        return found[0].layout if found else None

    def with_float_activations(self) -> StoredExperts:
        """Return the same weights for activations of floats."""
        return StoredExperts(self.up.with_float_activations(), self.down.with_float_activations())

    def as_operators(self, experts: nn.Module, dtype: torch.dtype) -> QuantizedExperts:
        """Return the block that multiplies the integers by grouped matmuls, in dtype.

        Raises ValueError if the operator does not take their groups.
        """
        layers = (
            _layer(weight, bias_of(experts, name), dtype)
            for name, weight in ((first_name(experts), self.up), ("down_proj", self.down))
        )
        return QuantizedExperts(experts, *layers)


def _layer(stored: IntegerWeight, bias: torch.Tensor | None, dtype: torch.dtype) -> GroupedLinear:
    rows, groups = stored.in_features, stored.scale.shape[-2]
    if groups * stored.group_size != rows or stored.order is not None:
        kind = stored.layout if stored.order is None else f"reordered {stored.layout}"
        raise ValueError(f"no operator multiplies experts of {kind} of {rows} inputs")
    if stored.activation == FLOAT:
        offset = None if stored.offset is None else stored.offset.to(dtype)
        return GroupedLinear(stored.integers, stored.scale.to(dtype), bias, offset=offset)
    if not _is_rounded(stored):
        raise ValueError(f"no operator multiplies experts of {stored.layout}")
    return GroupedLinear(stored.integers, stored.scale[:, 0], bias, of_floats=False)


def _is_rounded(stored: IntegerWeight) -> bool:
    """Whether an operator takes the weight with its activations, int8 or floats."""
    of_columns = stored.bits == 8 and stored.scale.shape[-2] == 1 and stored.offset is None
    return stored.activation == FLOAT or (stored.activation == DYNAMIC and of_columns)


def stacked(weights: Sequence[IntegerWeight]) -> IntegerWeight:
    """Return the weights of all experts, which are stored alike, as one."""
    first = weights[0]
    offsets = all_offsets(weights, 0)
    order = None
    if any(weight.order is not None for weight in weights):
        plain = torch.arange(first.in_features)
        order = torch.stack([plain if w.order is None else w.order for w in weights])
    return IntegerWeight(
        torch.stack([weight.integers for weight in weights]),
        torch.stack([weight.scale for weight in weights]),
        None if offsets is None else offsets.reshape(len(weights), *first.scale.shape),
        first.group_size,
        order,
        first.activation,
        first.input_scale,
    )


def floats_of_experts(stored: IntegerWeight) -> torch.Tensor:
    """Return the weights of all experts as transformers has them: float32 [experts, out, in]."""
    return torch.stack([_of_expert(stored, e).floats() for e in range(len(stored.integers))])


def _of_expert(stored: IntegerWeight, expert: int) -> IntegerWeight:
    return replace(
        stored,
        integers=stored.integers[expert],
        scale=stored.scale[expert],
        offset=None if stored.offset is None else stored.offset[expert],
        order=None if stored.order is None else stored.order[expert],
    )
