"""Parts of projections for one of several ranks: columns of them, or rows summed over the ranks.

Quantised projections are divided after they were quantised, so that all ranks together have the
integers and scales of the whole model.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from ..errors import ExportError
from .roles.linear import Linear

GROUP = "tensor_parallel"  # what the file calls all ranks, for the provider's option `groups`


class SummedLinear(Linear):
    """A projection summed over the ranks, of which each has some rows of the weight."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Project x [.., in], this rank's part, to [.., out]."""
        return torch.ops.npu.npu_mm_all_reduce_base(x, self.weight, GROUP, bias=self.bias)


class SummedWeightOnlyLinear(nn.Module):
    """The same of an int8 weight [in, out] that is multiplied as floats.

    ``scale`` and ``offset`` are [1, out], or [groups, out]. The operator takes no int4: integers of
    4 bits are stored in 8 here.
    """

    def __init__(
        self,
        weight: torch.Tensor,
        scale: torch.Tensor,
        offset: torch.Tensor | None,
        bias: torch.Tensor | None,
        group_size: int,
    ) -> None:
        super().__init__()
        self.group_size = group_size
        self.register_buffer("weight", weight)
        self.register_buffer("scale", scale)
        self.register_buffer("offset", offset)
        self.register_buffer("bias", bias)
        self.operators: dict[str, int] = {}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Project x [.., in], this rank's part, to [.., out]."""
        return torch.ops.npu.npu_mm_all_reduce_base(
            x, self.weight, GROUP, bias=self.bias, antiquant_scale=self.scale,
            antiquant_offset=self.offset, antiquant_group_size=self.group_size,
        )  # fmt: skip


class SummedIntegerLinear(nn.Module):
    """The same of int8 activations and weights.

    Unless activations are ``static`` each rank gives its part of a row a scale of its own. The
    operator has results of bfloat16 only with scales of bfloat16.
    """

    def __init__(
        self,
        weight: torch.Tensor,
        scale: torch.Tensor,
        bias: torch.Tensor | None,
        input_scale: torch.Tensor | None,
        *,
        static: bool,
    ) -> None:
        super().__init__()
        self.static = static
        self.register_buffer("weight", weight)
        self.register_buffer("scale", scale)
        self.register_buffer("bias", bias)
        self.register_buffer("input_scale", input_scale)
        self.operators = {"npu_quantize" if static else "npu_dynamic_quant": 1}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Project x [.., in], this rank's part, to [.., out]."""
        held: Any = self
        rows = x.reshape(-1, held.weight.shape[0])
        tokens = None
        if held.static:
            integers = torch.ops.npu.npu_quantize(rows, held.input_scale, None, torch.qint8, -1)
        else:
            integers, tokens = torch.ops.npu.npu_dynamic_quant(rows, smooth_scales=held.input_scale)
        y = torch.ops.npu.npu_mm_all_reduce_base(
            integers, held.weight, GROUP, dequant_scale=held.scale, pertoken_scale=tokens
        )
        if held.bias is not None:  # of float32, which the operator does not add
            y = (y + held.bias).to(x.dtype)
        return y.reshape(*x.shape[:-1], held.weight.shape[1])


def columns_of(linear: nn.Module, parts: Sequence[range]) -> nn.Module:
    """Return the projection to some of the outputs; ExportError for one that is not divided."""
    from ..converters.packing import packed_columns
    from ..converters.quantized_linear import IntegerLinear, WeightOnlyLinear

    def taken(values: Any) -> Any:
        return (
            None if values is None else torch.cat([_slice(values, -1, part) for part in parts], -1)
        )

    if isinstance(linear, (Linear, nn.Linear)):
        weight, bias = _floats(linear)
        return Linear(taken(weight), taken(bias))
    if isinstance(linear, WeightOnlyLinear):
        values = taken(_integers(linear))
        return WeightOnlyLinear(
            values if linear.weight.dtype == torch.int8 else packed_columns(values),
            taken(linear.scale),
            taken(linear.bias),
            in_features=linear.in_features,
            offset=taken(linear.offset),
            group_size=linear.group_size,
            inner_precise=linear.inner_precise,
        )
    if isinstance(linear, IntegerLinear):
        return IntegerLinear(
            taken(linear.weight),
            taken(linear.scale),
            taken(linear.bias),
            static=linear.static,
            input_scale=linear.input_scale,
            offset=taken(linear.offset),
        )
    raise _undivided(linear)


def rows_of(linear: nn.Module, rows: range, dtype: torch.dtype, *, biased: bool) -> nn.Module:
    """Return the projection back from some of the inputs; ExportError for one that is not divided.

    ``dtype``: of activations; ``biased``: whether this rank adds the bias to its term.
    """
    from ..converters.quantized_linear import IntegerLinear, WeightOnlyLinear

    if isinstance(linear, (Linear, nn.Linear)):
        weight, bias = _floats(linear)
        return SummedLinear(_slice(weight, 0, rows), bias if biased else None)
    if isinstance(linear, WeightOnlyLinear):
        # Groups of the part begin at its first row: where that is within a group of the whole,
        # smaller groups have its scales.
        size = math.gcd(linear.group_size, rows.start) if linear.group_size else 0
        group = torch.arange(rows.start, rows.stop, max(size, 1)) // max(linear.group_size, 1)

        def of_groups(values: Any) -> Any:
            return values if values is None or not size else values[group]

        return SummedWeightOnlyLinear(
            _slice(_integers(linear), 0, rows),
            of_groups(linear.scale),
            of_groups(linear.offset),
            linear.bias.to(dtype) if biased and linear.bias is not None else None,
            size,
        )
    if isinstance(linear, IntegerLinear) and linear.offset is None:
        factors = linear.input_scale
        if factors is not None and factors.numel() > 1:
            factors = _slice(factors, 0, rows)
        scale = linear.scale.to(torch.bfloat16) if dtype == torch.bfloat16 else linear.scale
        return SummedIntegerLinear(
            _slice(linear.weight, 0, rows), scale, linear.bias, factors, static=linear.static
        )
    raise _undivided(linear)


def _floats(linear: Linear | nn.Linear) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Return the weight as [in, out], and the bias."""
    weight = linear.weight.detach()
    bias = None if linear.bias is None else linear.bias.detach()
    return (weight.t().contiguous() if isinstance(linear, nn.Linear) else weight), bias


def _integers(linear: Any) -> torch.Tensor:
    """Return the int8 values [in, out] of a quantised weight."""
    from ..converters.packing import unpacked_columns

    if linear.weight.dtype == torch.int8:
        return linear.weight
    return unpacked_columns(linear.weight, linear.in_features, linear.out_features)


def _slice(values: torch.Tensor, axis: int, part: range) -> torch.Tensor:
    return values.narrow(axis, part.start, len(part))


def _undivided(linear: nn.Module) -> ExportError:
    return ExportError(
        f"cannot divide {type(linear).__name__} among ranks: pass tensor_parallel=1, or another "
        "quant"
    )
