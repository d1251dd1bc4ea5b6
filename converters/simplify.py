"""Simplification of a graph: constants folded, no-ops and equal nodes gone."""

from __future__ import annotations

import onnx_ir as ir
from onnx_ir.passes.common import (
    CommonSubexpressionEliminationPass,
    DeduplicateInitializersPass,
    LiftConstantsToInitializersPass,
    LiftSubgraphInitializersToMainGraphPass,
    NameFixPass,
    OutputFixPass,
    RemoveUnusedNodesPass,
    RemoveUnusedOpsetsPass,
)
from onnxscript.optimizer import fold_constants_ir
from onnxscript.rewriter import pattern
from onnxscript.rewriter.rules import common

# Those of onnxscript's that concern what exporters of transformers and our rules write. Its own
# optimizer tries all, one of which takes time quadratic in the number of nodes.
_RULES = (
    common.cast_cast_rule,
    common.no_op_cast_rule,
    common.no_op_expand_rule,
    common.no_op_transpose_rule,
    common.transpose_transpose_rule,
    common.reshape_reshape_rule,
    common.unsqueeze_unsqueeze_rule,
    common.squeeze_reshape_1d_rule,
    common.collapse_slice_rule,
    common.collapse_slice2_rule,
    common.materialize_reshape_shape_rule,
    common.add_0_rule,
    common.sub_0_rule,
    common.mul_by_1_rule,
    common.div_by_1_rule,
)


def simplify(model: ir.Model) -> None:
    """Fold constants, and remove nodes that change nothing or repeat another, in place."""
    outputs = model.graph.outputs
    # Inputs that are outputs, which onnxruntime takes: a node between them would rename one.
    direct = [(i, value) for i, value in enumerate(outputs) if value.is_graph_input()]
    for i, _ in reversed(direct):
        outputs.pop(i)
    fold_constants_ir(model, onnx_shape_inference=False)
    pattern.RewriteRuleSet(_RULES).apply_to_model(model)
    steps = [
        RemoveUnusedNodesPass(),
        RemoveUnusedOpsetsPass(),
        LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0),
        LiftSubgraphInitializersToMainGraphPass(),
        DeduplicateInitializersPass(),
        CommonSubexpressionEliminationPass(),
        OutputFixPass(),
        NameFixPass(),
    ]
    if any(map(_has_type, model.graph)):  # which the pass cannot compare
        steps = [step for step in steps if not isinstance(step, CommonSubexpressionEliminationPass)]
    for step in steps:
        step(model)
    for i, value in direct:
        outputs.insert(i, value)


def _has_type(node: ir.Node) -> bool:
    return any(attr.type is ir.AttributeType.TYPE_PROTO for attr in node.attributes.values())
