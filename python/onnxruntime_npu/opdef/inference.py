"""Output types and shapes of a node, from the operator's reference on meta tensors.

Dimensions may be unknown or symbolic. The reference then runs twice with different numbers in their
place: an output dimension that equals one of them is that symbol, an unchanged one is a constant.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import onnx

from . import dtypes as dt
from .definition import Op
from .empty_inputs import stands_for_absent
from .node_types import NodeType

Dim = int | str | None
# Distinct primes per run, unlike typical model sizes, to avoid accidental equality.
_FIRST_RUN = (1009, 1013, 1019, 1021, 1031, 1033, 1039, 1049, 1051, 1061, 1063, 1069)
_SECOND_RUN = (2003, 2011, 2017, 2027, 2029, 2039, 2053, 2063, 2069, 2081, 2083, 2087)


def infer_outputs(
    op: Op,
    inputs: Sequence[tuple[str, Sequence[Dim]] | None],
    attrs: Mapping[str, Any],
) -> list[tuple[str, list[Dim]]] | None:
    """Return dtype and dimensions of every output, or None if they cannot be inferred.

    Args:
        op: the operator.
        inputs: dtype name and dimensions per node input, None if it is absent.
        attrs: the node's attributes.

    """
    # Layers repeat: a model of hundreds of nodes has a dozen different ones.
    found = _infer(
        op,
        tuple(None if known is None else (known[0], tuple(known[1])) for known in inputs),
        tuple((name, tuple(v) if isinstance(v, list) else v) for name, v in attrs.items()),
    )
    return None if found is None else [(dtype, list(dims)) for dtype, dims in found]


@functools.lru_cache(maxsize=1024)
def _infer(
    op: Op,
    inputs: tuple[tuple[str, Sequence[Dim]] | None, ...],
    attributes: tuple[tuple[str, Any], ...],
) -> list[tuple[str, list[Dim]]] | None:
    attrs = {name: list(v) if isinstance(v, tuple) else v for name, v in attributes}
    symbols: list[tuple[int, int] | str] = []
    for i, known in enumerate(inputs):
        for axis, dim in enumerate(known[1] if known else ()):
            if not isinstance(dim, int):
                symbol = dim if dim else (i, axis)
                if symbol not in symbols:
                    symbols.append(symbol)
    if len(symbols) > len(_FIRST_RUN):
        return None
    first = _run(op, inputs, attrs, dict(zip(symbols, _FIRST_RUN, strict=False)))
    if first is None or not symbols:
        return first
    second = _run(op, inputs, attrs, dict(zip(symbols, _SECOND_RUN, strict=False)))
    if second is None:
        return None
    pairs: dict[tuple[Any, Any], str | None] = {
        (a, b): symbol if isinstance(symbol, str) else None
        for symbol, a, b in zip(symbols, _FIRST_RUN, _SECOND_RUN, strict=False)
    }
    return [
        (dtype, [a if a == b else pairs.get((a, b)) for a, b in zip(dims, other, strict=True)])
        for (dtype, dims), (_, other) in zip(first, second, strict=True)
    ]


def _run(
    op: Op,
    inputs: Sequence[tuple[str, Sequence[Dim]] | None],
    attrs: Mapping[str, Any],
    sizes: Mapping[Any, int],
) -> list[tuple[str, list[Dim]]] | None:
    import torch

    def make(i: int, known: tuple[str, Sequence[Dim]]) -> torch.Tensor:
        dims = [
            d if isinstance(d, int) else sizes[d if d else (i, j)] for j, d in enumerate(known[1])
        ]
        return torch.empty(dims, dtype=dt.to_torch(known[0]), device="meta")

    bound: dict[str, Any] = {a.name: None if a.required else a.default for a in op.node_arguments}
    for i, node_input in enumerate(op.inputs):
        given = inputs[i:] if node_input.variadic else inputs[i : i + 1]
        tensors = [make(i + j, known) for j, known in enumerate(given) if known is not None]
        if node_input.is_list_of_ints:
            if tensors:
                return None  # the result may depend on the values
        elif node_input.variadic:
            bound[node_input.name] = tensors
        else:
            bound[node_input.name] = tensors[0] if tensors else None
    for attribute in op.attributes:
        name, value = attribute.argument.name, attrs.get(attribute.name, attribute.default)
        bound[name] = attribute.from_onnx(value, bound[name])
    try:
        results = op.call_reference(**bound)
    except Exception:
        return None  # the numbers substituted for symbols violate the operator's conditions
    flat: list[torch.Tensor] = []
    for result in results:
        flat += result if isinstance(result, (list, tuple)) else [result]
    stated = _stated_types(op, attrs)
    return [(stated.get(i) or dt.from_torch(t.dtype), list(t.shape)) for i, t in enumerate(flat)]


def _stated_types(op: Op, attrs: Mapping[str, Any]) -> dict[int, str | None]:
    """Return the types of results that a node states beside a number, which hold everywhere.

    The reference follows the number of a call as devices of this process's generation do.
    """
    beside_numbers = {a.name for a in op.attributes if a.number_type}
    return {
        typing.output: dict(typing.types).get(attrs[typing.attribute])
        for typing in op.attribute_typings
        if typing.attribute in beside_numbers and typing.attribute in attrs
    }


def infer_node(node_type: NodeType, context: Any) -> None:
    """Serve as onnx's type and shape inference function of one op type."""
    op = node_type.op_for(context.get_num_inputs())
    inputs: list[tuple[str, Sequence[Dim]] | None] = []
    for i in range(context.get_num_inputs()):
        type_ = context.get_input_type(i)
        value = context.get_input_data(i) if stands_for_absent(op, i) else None
        empty = value is not None and 0 in value.dims
        if type_ is None or not type_.tensor_type.elem_type or empty:
            inputs.append(None)
            continue
        tensor = type_.tensor_type
        if not tensor.HasField("shape"):
            return
        dims: list[Dim] = [
            d.dim_value if d.HasField("dim_value") else (d.dim_param or None)
            for d in tensor.shape.dim
        ]
        inputs.append((dt.NAMES.get(tensor.elem_type, ""), dims))

    def get(name: str) -> Any:
        proto = context.get_attribute(name)
        value = None if proto is None else onnx.helper.get_attribute_value(proto)
        return value.decode() if isinstance(value, bytes) else value

    found = {attribute.name: attribute.given(get) for attribute in op.attributes}
    attrs = {name: value for name, value in found.items() if value is not None}
    outputs = infer_outputs(op, inputs, attrs)
    if outputs is None:
        return
    for i, (dtype, dims) in enumerate(outputs[: context.get_num_outputs()]):
        made = onnx.helper.make_tensor_type_proto(dt.NUMBERS[dtype], dims)
        context.set_output_type(i, made)
