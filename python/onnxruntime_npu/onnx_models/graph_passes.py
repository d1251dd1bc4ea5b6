"""Cleanup of the traced graph: readable dimension names, no leftover shape arithmetic."""

from __future__ import annotations

import re
from collections.abc import Mapping

import onnx_ir as ir

from .leading_axes import keep_leading_axes
from .reshape_targets import make_reshapes_constant

DOMAIN = "npu"
_APPENDED = "_orig"  # by onnx_ir's OutputFixPass


def tidy(graph: ir.Graph) -> None:
    """Remove leftovers of tracing."""
    keep_leading_axes(graph)
    make_reshapes_constant(graph)
    drop_inverse_transposes(graph)
    drop_unused_outputs(graph)
    drop_unused_nodes(graph)


def name_dimensions(graph: ir.Graph, dimensions: Mapping[str, tuple[str | int, ...]]) -> None:
    """Name every dynamic dimension as ``dimensions`` names it on inputs and outputs.

    Tracing names them s53, s70, and uses different names for equal sizes of different inputs.
    """
    symbols: dict[str, str] = {}
    for value in graph.inputs:
        for traced, name in zip(value.shape or (), dimensions[str(value.name)], strict=True):
            if isinstance(traced, ir.SymbolicDim) and isinstance(name, str):
                symbols[str(traced.value)] = name
    for value in _values(graph):
        if value.shape is not None:
            value.shape = ir.Shape([_named(dim, symbols) for dim in value.shape])
    for value in [*graph.inputs, *graph.outputs]:
        value.shape = ir.Shape(dimensions[str(value.name)])


def _named(dim: int | ir.SymbolicDim, symbols: Mapping[str, str]) -> int | str | None:
    if isinstance(dim, int) or dim.value is None:
        return dim if isinstance(dim, int) else None
    text = re.sub(r"\b[su]\d+\b", lambda m: symbols.get(m[0], m[0]), str(dim.value))
    return "total" if text in ("past + sequence", "sequence + past") else text


def _values(graph: ir.Graph) -> list[ir.Value]:
    values = [*graph.inputs, *graph.initializers.values()]
    return values + [output for node in graph for output in node.outputs]


def drop_inverse_transposes(graph: ir.Graph) -> None:
    """Read past two Transposes of which the second undoes the first."""
    for node in graph:
        first = node.inputs[0].producer() if _is_transpose(node) and node.inputs[0] else None
        if first is None or not _is_transpose(first) or first.inputs[0] is None:
            continue
        inner, outer = (n.attributes["perm"].as_ints() for n in (first, node))
        restored = [inner[axis] for axis in outer] == list(range(len(inner)))
        if restored and node.outputs[0] not in graph.outputs:
            ir.convenience.replace_all_uses_with(node.outputs[0], first.inputs[0])


def _is_transpose(node: ir.Node) -> bool:
    return node.op_type == "Transpose" and not node.domain and "perm" in node.attributes


def drop_unused_outputs(graph: ir.Graph) -> None:
    """Leave unused outputs unnamed, so that kernels need not compute them."""
    results = set(graph.outputs)
    for node in graph:
        if node.domain != DOMAIN:
            continue
        for output in node.outputs:
            if not output.uses() and output not in results:
                output.name = ""


def drop_unused_nodes(graph: ir.Graph) -> None:
    """Remove nodes and initializers that no output depends on."""
    results = set(graph.outputs)
    for node in reversed(graph):
        if not any(output.uses() or output in results for output in node.outputs):
            graph.remove(node, safe=True)
    for name, value in list(graph.initializers.items()):
        if not value.uses() and value not in results:
            del graph.initializers[name]


def name_inputs_as_given(graph: ir.Graph) -> None:
    """Give inputs that are outputs, too, the names of the arguments, which onnx_ir has appended to.

    The outputs, whose names are a tracer's, get others.
    """
    outputs = {value.name: value for value in graph.outputs}
    for value in graph.inputs:
        name = str(value.name).removesuffix(_APPENDED)
        if name != value.name and name in outputs:
            outputs[name].name = f"{name}_out"
            value.name = name


def count_nodes(graph: ir.Graph) -> dict[str, int]:
    """Count nodes per operator, those of other domains than ONNX's as ``domain::type``.

    Those of branches and loops are counted, too.
    """
    counts: dict[str, int] = {}
    for node in graph.all_nodes():
        name = f"{node.domain}::{node.op_type}" if node.domain else node.op_type
        counts[name] = counts.get(name, 0) + 1
    return dict(sorted(counts.items()))
