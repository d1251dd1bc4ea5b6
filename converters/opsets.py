"""Raises a model to the opset that function bodies are written for."""

from __future__ import annotations

import onnx
import onnx_ir as ir
from onnxruntime_npu.errors import ExportError

from .microsoft_schemas import ASIDE, OWN, register_microsoft_schemas
from .rules.rule import attribute, rank

OPSET = 18  # the oldest that function bodies are written for
# Operators of which later opsets changed more than types and attributes that may be left out.
_CHANGED_LATER = ("DFT", "GridSample", "GroupNormalization")


def raise_opset(model: ir.Model) -> None:
    """Convert a model of an older opset to ``OPSET``, in place.

    Raises ExportError for one that onnx cannot convert, or not without changing results.
    """
    from onnxscript import version_converter

    version = model.opset_imports[""]
    if version >= OPSET:
        return
    register_microsoft_schemas()  # some conversions depend on shapes
    older = [name for name, since in OWN.items() if since is None or version < since]
    _move(model, "", ASIDE, older)
    model.opset_imports[ASIDE] = 1
    version_converter.convert_version(model, OPSET, fallback=True)
    _move(model, ASIDE, "", older)
    model.opset_imports.pop(ASIDE, None)
    if model.opset_imports[""] < OPSET:
        raise ExportError(
            f"cannot convert the model from opset {version} to {OPSET}: export it anew"
        )
    for node in list(model.graph.all_nodes()):
        if node.op_type == "Hardmax" and not node.domain and version < 13:
            _split_axes(node)
        if node.op_type == "Resize" and not node.domain and version < 11:
            _state_coordinates(node, version)


def match_opset(function: ir.Function, version: int) -> None:
    """Declare a function to be of the model's opset, as which onnxruntime reads its nodes.

    Raises ExportError if one of them computes something else there.
    """
    own = function.opset_imports.get("", version)
    for node in function.all_nodes():
        if not node.domain and _changed(node.op_type, own, version):
            raise ExportError(
                f"[{node.op_type}] expected functions of the model's opset {version}, got "
                f"{function.domain}::{function.name} of {own}, in which it is another operator: "
                "export the model anew"
            )
    if "" in function.opset_imports:
        function.opset_imports[""] = version


def _changed(op_type: str, first: int, second: int) -> bool:
    """Return whether an operator may compute something else in another opset."""
    try:
        since = {
            onnx.defs.get_schema(op_type, opset, "").since_version for opset in (first, second)
        }
    except onnx.defs.SchemaError:  # onnxruntime's own
        return False
    only_types = min(first, second) >= OPSET and op_type not in _CHANGED_LATER
    return len(since) > 1 and not only_types


def _move(model: ir.Model, source: str, target: str, op_types: list[str]) -> None:
    """Put nodes into another domain: onnx's converter only knows what ONNX has in its own."""
    for node in model.graph.all_nodes():
        if node.domain == source and node.op_type in op_types:
            node.domain = target


def _split_axes(node: ir.Node) -> None:
    """Compute a Hardmax over all axes from its own on, as it does before opset 13."""
    (x,), (result,) = node.inputs, node.outputs
    axis = attribute(node, "axis", 1)
    if x is None or axis == -1 or axis + 1 == rank(x):
        return
    graph = node.graph
    assert graph is not None
    shape = ir.node("Shape", [x], name=f"{result.name}_shape")
    flat = ir.node("Flatten", [x], {"axis": axis}, name=f"{result.name}_flat")
    hard = ir.node("Hardmax", flat.outputs, {"axis": -1}, name=f"{result.name}_of_rows")
    back = ir.node("Reshape", [hard.outputs[0], shape.outputs[0]], name=f"{result.name}_axes")
    ir.convenience.replace_nodes_and_values(
        graph, node, [node], [shape, flat, hard, back], [result], [back.outputs[0]]
    )


def _state_coordinates(node: ir.Node, version: int) -> None:
    """State how a Resize finds its samples, and an Upsample, as they do before opset 11.

    onnx's converter leaves them to the defaults, which are other ones. The nearest sample is that
    before where an axis grows, and that behind where it shrinks.
    """
    node.attributes.add(ir.AttrString("coordinate_transformation_mode", "asymmetric"))
    if attribute(node, "mode", "nearest") != "nearest":
        return
    (_, _, given) = node.inputs
    scales = None if given is None else ir.convenience.get_const_tensor(given)
    factors = [] if scales is None else scales.numpy().reshape(-1).tolist()
    if factors and all(factor >= 1 for factor in factors):
        rounding = "floor"
    elif factors and all(factor <= 1 for factor in factors):
        rounding = "ceil"
    else:
        raise ExportError(
            f"[Resize] expected constant scales that all enlarge or all shrink, got "
            f"{factors or 'computed ones'} in node {node.name!r} of opset {version}: export the "
            "model anew, with opset 11 or later"
        )
    node.attributes.add(ir.AttrString("nearest_mode", rounding))
