"""Operators of torch that ONNX can express and torch.onnx does not translate, or otherwise."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import onnx_ir as ir
import onnxscript
import torch


def torch_translations() -> dict[Callable[..., Any], Callable[..., Any]]:
    """Return their translations."""
    return {
        torch.ops.higher_order.while_loop: _while_loop,
        torch.ops.aten.copy.default: _copied,
        torch.ops.aten.sort.stable: _stable_sort,
        torch.ops.aten._native_batch_norm_legit_functional.default: _batch_norm,
    }


def _while_loop(*arguments: Any) -> Any:
    """Emit Loop as torch.onnx does, which calls the condition in another version than the rest.

    Functions whose graphs import both versions cannot be inlined: those with branches in the loop.
    """
    from torch.onnx._internal.exporter._torchlib.ops import hop

    results: Any = hop.higher_order_while_loop(*arguments)
    condition: Any = results[0].producer().inputs[1]
    condition.producer().version = None
    return results


def _copied(target: Any, source: Any, _non_blocking: bool = False) -> Any:
    """Emit what ``target.copy_(source)`` holds; torch.onnx leaves out that it broadcasts."""
    emit: Any = onnxscript.values.Opset("", 18)
    value = emit.CastLike(source, target)
    shapes_known = source.shape is not None and target.shape is not None
    if shapes_known and list(source.shape) == list(target.shape):
        return value
    return emit.Expand(value, emit.Shape(target))


def _stable_sort(
    self: Any, *, stable: bool | None = None, dim: int = -1, descending: bool = False
) -> Any:
    """Emit TopK of all elements: of equal ones, the one with the lower index comes first."""
    emit: Any = onnxscript.values.Opset("", 18)
    if len(self.shape) == 0:
        return emit.Identity(self), emit.Constant(value_int=0)
    size = emit.Shape(self)
    count = emit.Gather(size, emit.Constant(value_ints=[dim]), axis=0)
    return tuple(emit.TopK(self, count, axis=dim, largest=int(descending), sorted=1))


def _batch_norm(
    x: Any,
    weight: Any | None,
    bias: Any | None,
    running_mean: Any,
    running_var: Any,
    training: bool,
    momentum: float,
    eps: float,
) -> Any:
    """Emit BatchNormalization, while training by the mean and variance of the batch itself.

    torch.onnx takes the running ones then, too, and does not update them.
    """
    emit: Any = onnxscript.values.Opset("", 18)
    channels = emit.Shape(x, start=1, end=2)
    one, zero = (
        emit.Expand(emit.CastLike(emit.Constant(value_floats=[number]), x), channels)
        for number in (1.0, 0.0)
    )
    weight, bias = one if weight is None else weight, zero if bias is None else bias
    if not training:
        mean, var = running_mean, running_var
        updated = emit.Identity(mean), emit.Identity(var)
    else:
        axes = emit.Constant(value_ints=[axis for axis in range(len(x.shape)) if axis != 1])
        wide = emit.Cast(x, to=ir.DataType.FLOAT)
        kept = emit.ReduceMean(wide, axes, keepdims=1)
        apart = emit.Sub(wide, kept)
        mean = emit.Squeeze(kept, axes)
        var = emit.ReduceMean(emit.Mul(apart, apart), axes, keepdims=0)
        count = emit.Cast(emit.Div(emit.Size(x), channels), to=ir.DataType.FLOAT)
        unbiased = emit.Mul(var, emit.Div(count, emit.Sub(count, 1.0)))
        updated = tuple(
            emit.Add(
                emit.Mul(before, 1.0 - momentum), emit.CastLike(emit.Mul(new, momentum), before)
            )
            for before, new in ((running_mean, mean), (running_var, unbiased))
        )
    saved = emit.Cast(mean, to=ir.DataType.FLOAT)
    spread = emit.Sqrt(emit.Add(emit.Cast(var, to=ir.DataType.FLOAT), eps))
    mean, var = emit.CastLike(mean, x), emit.CastLike(var, x)
    normed = emit.BatchNormalization(x, weight, bias, mean, var, epsilon=eps)[0]
    normed.producer().resize_outputs(1)
    return normed, saved, emit.Reciprocal(spread), *updated
