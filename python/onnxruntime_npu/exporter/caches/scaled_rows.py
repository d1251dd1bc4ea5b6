"""Rows of int8 that end with their scale, so that one tensor holds a cache with its scales.

The four bytes of a float32 have no name in the operators of a model's opset: two functions compute
them. A paged cache reads and writes such rows by nodes that replace both (join_groups.py).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import onnx
import onnx_ir as ir
import onnxscript
import torch

from ...onnx_models.node_groups import BYTES_OF_FLOATS, DOMAIN, FLOATS_OF_BYTES
from ...opdef.function_body import Builder

SCALE_BYTES = 4  # of a float32
_PLACES = [1, 2**8, 2**16, 2**24]  # of the bytes, the lowest first
_SIGNATURES = ((BYTES_OF_FLOATS, "float", "int8"), (FLOATS_OF_BYTES, "int8", "float"))
_FRACTION, _BIAS = 23, 127  # of float32: bits behind the point, and what is added to its exponent


@torch.library.custom_op("npu_traced::bytes_of_floats", mutates_args=())
def bytes_of_floats(scales: torch.Tensor) -> torch.Tensor:
    """Return the bytes of float32 scales [..], int8 [.., 4]."""
    # A copy: the result of a custom operator is no view of what it was given.
    return scales.unsqueeze(-1).clone().view(torch.int8)


@bytes_of_floats.register_fake
def _fake_bytes(scales: torch.Tensor) -> torch.Tensor:
    return scales.new_empty(*scales.shape, SCALE_BYTES, dtype=torch.int8)


@torch.library.custom_op("npu_traced::floats_of_bytes", mutates_args=())
def floats_of_bytes(rows: torch.Tensor) -> torch.Tensor:
    """Return the float32 scales [..] of bytes int8 [.., 4]."""
    return rows.clone(memory_format=torch.contiguous_format).view(torch.float32).squeeze(-1)


@floats_of_bytes.register_fake
def _fake_floats(rows: torch.Tensor) -> torch.Tensor:
    return rows.new_empty(*rows.shape[:-1], dtype=torch.float32)


def join(integers: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """Return rows [.., D + 4] of integers int8 [.., D] and scales [..]."""
    return torch.cat([integers, bytes_of_floats(scales)], -1)


def divide(rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the integers [.., D] and scales [..] of rows [.., D + 4]."""
    return rows[..., :-SCALE_BYTES], floats_of_bytes(rows[..., -SCALE_BYTES:])


def translations() -> dict[Any, Any]:
    """Return how torch.onnx.export translates the two operators."""
    for name, given, result in _SIGNATURES:
        if not onnx.defs.has(name, 1, DOMAIN):
            parameter = onnx.defs.OpSchema.FormalParameter
            schema = onnx.defs.OpSchema(
                name,
                DOMAIN,
                1,
                inputs=[parameter("given", f"tensor({given})")],
                outputs=[parameter("result", f"tensor({result})")],
            )
            onnx.defs.register_schema(schema)
    emit: Any = onnxscript.values.Opset(DOMAIN, 1)
    return {
        torch.ops.npu_traced.bytes_of_floats.default: getattr(emit, BYTES_OF_FLOATS),
        torch.ops.npu_traced.floats_of_bytes.default: getattr(emit, FLOATS_OF_BYTES),
    }


def attach_functions(model: ir.Model) -> None:
    """Give a model whose nodes call the two functions their bodies."""
    called = {node.op_identifier() for node in model.graph.all_nodes()}
    opset = model.opset_imports[""]
    floats, integers = ir.DataType.FLOAT, ir.DataType.INT8
    bodies = ((BYTES_OF_FLOATS, _bytes, floats), (FLOATS_OF_BYTES, _floats, integers))
    for name, body, dtype in bodies:
        if (DOMAIN, name, "") in called:
            function = _function(name, body, dtype, opset)
            model.functions[function.identifier()] = function
            model.opset_imports[DOMAIN] = 1


def _function(
    name: str, body: Callable[[Builder, Any], Any], dtype: ir.DataType, opset: int
) -> ir.Function:
    given = ir.Value(name="given", type=ir.TensorType(dtype))
    return onnxscript.build_function(
        lambda builder, *_: [body(Builder(builder), given)],
        [given],
        domain=DOMAIN,
        name=name,
        attributes=[],
        opset_imports={"": opset},
    )


def _bytes(b: Builder, scales: Any) -> Any:
    """Compute exponent and fraction in float64, where both are exact. Scales are not negative."""
    one, two = b.const(1.0, "float64"), b.const(2.0, "float64")
    wide = b.Max(b.Cast(scales, to="float64"), b.const(2.0 ** (1 - _BIAS), "float64"))
    exponent = b.Floor(b.Div(b.Log(wide), b.const(math.log(2), "float64")))
    # A logarithm beside a power of two may be rounded to it, or from it.
    part = b.Div(wide, b.Pow(two, exponent))
    above = b.Cast(b.Not(b.Less(part, two)), to="float64")
    below = b.Cast(b.Less(part, one), to="float64")
    exponent = b.Sub(b.Add(exponent, above), below)
    part = b.Div(wide, b.Pow(two, exponent))
    # The fraction is without the part's 1, which the exponent's bias has less.
    bits = b.Mul(
        b.Add(b.Add(exponent, b.const(_BIAS - 1.0, "float64")), part),
        b.const(2.0**_FRACTION, "float64"),
    )
    whole = b.Cast(bits, to="int64")
    positive = b.Greater(scales, b.const(0.0, "float32"))
    whole = b.Where(positive, whole, b.const(0, "int64"))
    byte = b.const(256, "int64")
    digits = b.Mod(b.Div(b.Unsqueeze(whole, [-1]), b.const(_PLACES, "int64")), byte)
    half = b.const(128, "int64")
    return b.Cast(b.Sub(b.Mod(b.Add(digits, half), byte), half), to="int8")


def _floats(b: Builder, rows: Any) -> Any:
    digits = b.Mod(b.Cast(rows, to="int64"), b.const(256, "int64"))
    bits = b.ReduceSum(b.Mul(digits, b.const(_PLACES, "int64")), [-1], keepdims=0)
    unit = b.const(2**_FRACTION, "int64")
    exponent = b.Sub(b.Div(bits, unit), b.const(_BIAS, "int64"))
    fraction = b.Div(b.Cast(b.Mod(bits, unit), to="float64"), b.const(2.0**_FRACTION, "float64"))
    power = b.Pow(b.const(2.0, "float64"), b.Cast(exponent, to="float64"))
    value = b.Cast(b.Mul(b.Add(fraction, b.const(1.0, "float64")), power), to="float32")
    return b.Where(b.Equal(bits, b.const(0, "int64")), b.const(0.0, "float32"), value)
