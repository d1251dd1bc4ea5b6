"""Products of activations that keep their leading axes, without Reshapes before and behind them.

A quantised layer makes a matrix of its activations, because torch_npu's operators take no other on
every device. Those of the domain ``npu`` take any leading axes, and the Reshapes of a decoder's
layers, hundreds in each step, take as long as small kernels.
"""

from __future__ import annotations

import onnx_ir as ir

from ..opdef import all_ops
from .reshape_targets import constant_target, is_reshape, set_target
from .rounded_rows import rounds_by_row


def keep_leading_axes(graph: ir.Graph) -> None:
    """Multiply activations with the axes that the result gets, where only Reshapes read it."""
    operators = all_ops()
    of_floats = operators["npu_weight_quant_batchmatmul"].onnx_type
    of_integers = operators["npu_quant_matmul"].onnx_type
    for node in list(graph):
        if node.domain == "npu" and node.op_type in (of_floats, of_integers):
            rounding = _rounding(node) if node.op_type == of_integers else None
            if rounding is not None or node.op_type == of_floats:
                _keep_axes(node, rounding, graph)


def _rounding(product: ir.Node) -> ir.Node | None:
    """Return the node that rounds rows for this product alone, by a scale of each or of all."""
    rounded, scale = product.inputs[0], product.inputs[4] if len(product.inputs) > 4 else None
    node = None if rounded is None else rounded.producer()
    if node is None or node.domain != "npu":
        return None
    results = [value for value in (rounded, scale) if value is not None]
    if list(node.outputs) != results or any(value.is_graph_output() for value in results):
        return None
    if any(use.node is not product for value in results for use in value.uses()):
        return None
    if node.op_type == all_ops()["npu_quantize"].onnx_type:
        axis, scales = node.attributes.get("axis"), node.inputs[1]
        last = axis is not None and axis.as_int() == -1
        fits = scales is not None and scales.shape is not None and scales.shape.rank() == 1
        return node if last and fits else None
    grouped = len(node.inputs) > 2 and node.inputs[2] is not None
    return node if rounds_by_row(node) and not grouped else None


def _keep_axes(product: ir.Node, rounding: ir.Node | None, graph: ir.Graph) -> None:
    first = product if rounding is None else rounding
    rows, weight, result = first.inputs[0], product.inputs[1], product.outputs[0]
    before = None if rows is None else rows.producer()
    source = before.inputs[0] if before is not None and is_reshape(before) else None
    readers = [use.node for use in result.uses()]
    if rows is None or source is None or not readers or result.is_graph_output():
        return
    if not all(is_reshape(reader) and reader.graph is graph for reader in readers):
        return
    if any(v is None or v.shape is None or v.shape.rank() != 2 for v in (rows, weight, result)):
        return
    leading = _leading_axes(source, rows, readers, result)
    if leading is None or rows.shape is None or result.shape is None:
        return
    given, made = (ir.Shape([*leading, shape[1]]) for shape in (rows.shape, result.shape))
    before_it = constant_target(source.shape, given)
    behind_it = [constant_target(made, reader.outputs[0].shape) for reader in readers]
    if before_it is None or any(target is None for target in behind_it):
        return
    if source.shape == given and rounding is None and _is_transposed(source):
        return
    if source.shape != given:
        source = _reshaped(source, given, before_it, first)
    first.replace_input_with(0, source)
    if rounding is not None:
        of_rows = rounding.outputs[0].shape  # of int4 eight columns are in one
        columns = given[-1] if of_rows is None else of_rows[-1]
        shapes = ir.Shape([*leading, columns]), ir.Shape(leading)
        for value, shape in zip(rounding.outputs, shapes, strict=False):
            value.shape = shape
    result.shape = made
    for reader, target in zip(readers, behind_it, strict=True):
        output = reader.outputs[0]
        if output.shape == made and not (output.is_graph_output() and result.is_graph_output()):
            if output.is_graph_output():  # the name is what a caller asks for
                result.name, output.name = output.name, result.name
            ir.convenience.replace_all_uses_with(output, result, replace_graph_outputs=True)
        elif target is not None:
            set_target(reader, target, graph)


def _is_transposed(value: ir.Value) -> bool:
    """Whether a Transpose makes a value, which a product of floats must not read as it is.

    A function of the product casts it and multiplies: onnxruntime 1.31 crashes where it moves the
    Cast before a Transpose of axes that are not those of a matrix (MatmulTransposeFusion).
    """
    node = value.producer()
    return node is not None and node.op_type == "Transpose" and not node.domain


def _leading_axes(
    source: ir.Value, rows: ir.Value, readers: list[ir.Node], result: ir.Value
) -> list[int | ir.SymbolicDim] | None:
    """Return the axes before the last one of what a reader makes of the result, or of the source.

    A reader has others where it splits the columns, too, as for heads of attention.
    """
    for value, matrix in [*((reader.outputs[0], result) for reader in readers), (source, rows)]:
        if value.shape is None or matrix.shape is None or value.shape.rank() < 3:
            continue
        *leading, last = value.shape
        if last == matrix.shape[1] and all(isinstance(d, int) or d.value for d in leading):
            return leading
    return None


def _reshaped(source: ir.Value, shape: ir.Shape, target: list[int], reader: ir.Node) -> ir.Value:
    """Return the source in another shape, by a node before its reader."""
    graph = reader.graph
    assert isinstance(graph, ir.Graph)
    reshape = ir.Node("", "Reshape", [source, None], name=f"{reader.name}_rows")
    output = reshape.outputs[0]
    output.name, output.shape, output.type = f"{source.name}_rows", shape, source.type
    graph.insert_before(reader, reshape)
    set_target(reshape, target, graph)
    return output
