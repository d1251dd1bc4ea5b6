"""Simplification of a graph: constants folded, no-ops and equal nodes gone."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator

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
from onnxscript.rewriter import pattern
from onnxscript.rewriter.rules import common

from .folding import fold_constants

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

# Domains of which equal nodes of equal inputs have equal results, but for those that draw numbers.
_KNOWN = ("", "ai.onnx.ml", "com.microsoft", "npu")
_RANDOM = re.compile("Bernoulli|Dropout")  # and others, which the pass knows
_APART = "told_apart"
_OWN_NAME = re.compile(r"gemm_(in|out)put_shape(_token_\d+)?")


def simplify(model: ir.Model) -> None:
    """Fold constants, and remove nodes that change nothing or repeat another, in place."""
    outputs = model.graph.outputs
    # Inputs that are outputs, which onnxruntime takes: a node between them would rename one.
    direct = [(i, value) for i, value in enumerate(outputs) if value.is_graph_input()]
    for i, _ in reversed(direct):
        outputs.pop(i)
    fold_constants(model)
    pattern.RewriteRuleSet(_RULES).apply_to_model(model)
    for step in (
        RemoveUnusedNodesPass(),
        RemoveUnusedOpsetsPass(),
        LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0),
        LiftSubgraphInitializersToMainGraphPass(),
        DeduplicateInitializersPass(),
    ):
        step(model)
    with _told_apart(model.graph):
        CommonSubexpressionEliminationPass()(model)
    OutputFixPass()(model)
    NameFixPass()(model)
    _free_names(model.graph)
    for i, value in direct:
        outputs.insert(i, value)


@contextlib.contextmanager
def _told_apart(graph: ir.Graph) -> Iterator[None]:
    """Let no pass join nodes that may differ though they look alike.

    Those draw random numbers, or are of a domain of which nothing is known; and types are no
    attributes that the pass can compare.
    """
    types: dict[ir.Node, list[ir.Attr]] = {}
    for i, node in enumerate(graph):
        held = [a for a in node.attributes.values() if a.type is ir.AttributeType.TYPE_PROTO]
        if not held and not _RANDOM.search(node.op_type) and node.domain in _KNOWN:
            continue
        types[node] = held
        for attr in held:
            node.attributes.pop(attr.name)
        node.attributes.add(ir.AttrString(_APART, str(i)))
    try:
        yield
    finally:
        for node, held in types.items():
            node.attributes.pop(_APART)
            for attr in held:
                node.attributes.add(attr)


def _free_names(graph: ir.Graph) -> None:
    """Rename constants that are called what onnxruntime calls those of its own.

    A session that makes such a constant of a MatMul and its bias stops at a file that has one
    already, from an earlier optimisation.
    """
    for value in list(graph.initializers.values()):
        if value.name and _OWN_NAME.fullmatch(value.name) and not value.is_graph_output():
            value.name = f"{value.name}.stored"
