"""ONNX files of other exporters: their operators become ``npu::`` ones with function bodies."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import onnx
import onnx_ir as ir
from onnx_ir.passes.common import (
    DeduplicateHashedInitializersPass,
    RemoveUnusedNodesPass,
)
from onnxruntime_npu.onnx_models.fuse_added_norms import fuse_added_norms
from onnxruntime_npu.onnx_models.graph_passes import count_nodes, tidy
from onnxruntime_npu.opdef.attach import attach_function_bodies
from onnxruntime_npu.opdef.onnx_schema import register_schemas
from onnxruntime_npu.progress import bar
from onnxscript.rewriter import pattern

from .branches import copy_outer_integers
from .defaults import without_defaults
from .drop_casts import drop_casts
from .folding import fold_constants
from .known_sizes import forget_unknown_sizes, state_known_sizes
from .microsoft_schemas import register_microsoft_schemas
from .model_file import check_target, read, write
from .quiet import without_warnings
from .rules import Rule, all_rules
from .shape_inference import infer_shapes
from .simplify import simplify


@dataclass
class ConversionReport:
    """What a conversion did.

    ``converted`` counts the applications of each rule; ``left`` gives a reason for the nodes, by
    name, that a rule matched and left, those of branches and loops by ``node.branch/name``;
    ``nodes`` counts the written nodes by type; ``without_body`` lists the op types that need the
    NPU; ``files`` are the written sizes in bytes.
    """

    converted: dict[str, int] = field(default_factory=dict)
    left: dict[str, str] = field(default_factory=dict)
    nodes: dict[str, int] = field(default_factory=dict)
    without_body: list[str] = field(default_factory=list)
    files: dict[str, int] = field(default_factory=dict)


@without_warnings()
def convert(
    path_or_model: str | Path | onnx.ModelProto | ir.Model, out: str | Path
) -> ConversionReport:
    """Rewrite an ONNX model from elsewhere into ``npu::`` operators with function bodies.

    Converted are norms, rotary embeddings, attention, gated MLPs, GELU and matmuls of 4 and 8 bits,
    as written out by torch.onnx, as ONNX 23 has them, and as onnxruntime's own operators
    (com.microsoft) have them. What no rule takes stays as it is. Inputs and outputs keep their
    names, types and order.

    Args:
        path_or_model: the file or model; a given model is left unchanged.
        out: file to write; weights go to ``<out>.data``.

    Returns:
        The report.

    Raises:
        ArgumentError: the file is missing, or ``out`` cannot be written.
        ExportError: the file is no ONNX model, or of an opset that cannot be raised to 18.

    """
    model = read(path_or_model)
    check_target(model, out, path_or_model)
    rules = all_rules()
    with bar("Converting", "step", total=len(rules) + 3) as steps:
        register_schemas()
        register_microsoft_schemas()
        given = set(model.graph.all_nodes())
        with without_defaults(model), _without_bodies(model):
            joined = _rewrite(model, rules, steps.update)
        steps.update()
        report = _report(model, rules, joined, given)
        report.files = write(model, out)
        steps.update()
    return report


@contextlib.contextmanager
def _without_bodies(model: ir.Model) -> Iterator[None]:
    """Take the bodies of a file's own fused nodes away: a rule would put the node into its body."""
    bodies = {name: body for name, body in model.functions.items() if body.domain == "npu"}
    for name in bodies:
        del model.functions[name]
    yield
    model.functions.update(bodies)


def _rewrite(model: ir.Model, rules: list[Rule], step: Callable[[], object]) -> int:
    """Apply the rules, and tidy up; return how many additions went into norms."""
    copy_outer_integers(model)
    infer_shapes(model)
    while sum(state_known_sizes(graph) for graph in model.graphs()):
        fold_constants(model)
        for graph in model.graphs():
            forget_unknown_sizes(graph)
        infer_shapes(model)
    step()
    for rule in rules:
        pattern.RewriteRuleSet([rule.rule_of()]).apply_to_model(model)
        RemoveUnusedNodesPass()(model)  # of which another rule need not convert any
        step()
    infer_shapes(model)
    simplify(model)
    if any(model.graph.subgraphs()):  # rules make new ones of a shared weight in each branch
        DeduplicateHashedInitializersPass()(model)
    joined = 0
    for graph in model.graphs():
        joined += fuse_added_norms(graph)
        drop_casts(graph)
        tidy(graph)
    return joined


def _report(
    model: ir.Model, rules: list[Rule], joined: int, given: set[ir.Node]
) -> ConversionReport:
    """Attach function bodies, and tell what was done; ``joined`` additions went into norms."""
    made = set(model.graph.all_nodes()) - given
    report = ConversionReport(
        without_body=attach_function_bodies(model, made), nodes=count_nodes(model.graph)
    )
    for rule in rules:
        if rule.count:
            report.converted[rule.name] = report.converted.get(rule.name, 0) + rule.count
    if joined:
        report.converted["addition before an RMSNorm"] = joined
    names = dict(_named(model.graph))
    for rule in rules:
        for node, reason in rule.refusals.items():
            if node in names:
                report.left[names[node]] = f"{node.op_type}: {reason}"
    return report


def _named(graph: ir.Graph, scope: str = "") -> Iterator[tuple[ir.Node, str]]:
    """Yield all nodes with names that tell branches apart, which may name their nodes alike."""
    for node in graph:
        name = f"{scope}{node.name or node.outputs[0].name}"
        yield node, name
        for attr in node.attributes.values():
            if attr.type == ir.AttributeType.GRAPH:
                yield from _named(attr.as_graph(), f"{name}.{attr.name}/")
