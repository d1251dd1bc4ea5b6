"""Branches and loops: graphs within a graph, which read values of the graph around them."""

from __future__ import annotations

import onnx_ir as ir

_LARGEST = 16  # sizes, axes and indices; what is larger is data


def copy_outer_integers(model: ir.Model) -> None:
    """Give branches and loops initializers of their own for the sizes, axes and indices they read.

    onnx infers shapes within a branch without the constants of the graph around it, where optimum
    puts those of the two decoders that it merges.
    """
    copied = 0
    for graph in model.graph.subgraphs():
        copies: dict[ir.Value, ir.Value] = {}
        for node in graph:
            for i, value in enumerate(node.inputs):
                if value is None or value.graph is graph or not _is_small_integer(value):
                    continue
                if value not in copies:
                    copied += 1
                    copies[value] = _copy(value, f"{value.name}.{copied}")
                    graph.register_initializer(copies[value])
                node.replace_input_with(i, copies[value])


def _is_small_integer(value: ir.Value) -> bool:
    return (
        value.is_initializer()
        and not value.is_graph_input()  # which may be given at a run
        and value.const_value is not None
        and value.const_value.dtype in (ir.DataType.INT32, ir.DataType.INT64)
        and value.const_value.size <= _LARGEST
    )


def _copy(value: ir.Value, name: str) -> ir.Value:
    assert value.const_value is not None
    tensor = ir.tensor(value.const_value.numpy(), dtype=value.const_value.dtype, name=name)
    return ir.Value(name=name, shape=value.shape, type=value.type, const_value=tensor)
