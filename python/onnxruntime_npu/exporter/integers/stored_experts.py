"""Experts whose weights are a checkpoint's integers, beside the floats that they stand for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn

from ...converters.quantized_experts import GroupedLinear, QuantizedExperts, bias_of, first_name
from .integer_weight import IntegerWeight, all_offsets


@dataclass(frozen=True)
class StoredExperts:
    """The weights before and after the activation, with an axis of experts first.

    A block of experts has them as ``stored``.
    """

    up: IntegerWeight
    down: IntegerWeight

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
    if groups * stored.group_size != rows:
        raise ValueError(f"no operator multiplies experts of {stored.layout} of {rows} inputs")
    offset = None if stored.offset is None else stored.offset.to(dtype)
    return GroupedLinear(stored.integers, stored.scale.to(dtype), bias, offset=offset)


def stacked(weights: Sequence[IntegerWeight]) -> IntegerWeight:
    """Return the weights of all experts, which are stored alike, as one."""
    first = weights[0]
    offsets = all_offsets(weights, 0)
    return IntegerWeight(
        torch.stack([weight.integers for weight in weights]),
        torch.stack([weight.scale for weight in weights]),
        None if offsets is None else offsets.reshape(len(weights), *first.scale.shape),
        first.group_size,
    )
