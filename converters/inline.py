"""The way back: plain ONNX, for any runtime, of a model with ``npu::`` nodes."""

from __future__ import annotations

from pathlib import Path

import onnx
import onnx_ir as ir
from onnx_ir.passes.common import RemoveUnusedOpsetsPass
from onnxruntime_npu.errors import UnsupportedError
from onnxruntime_npu.onnx_models.graph_passes import count_nodes

from .attach_bodies import attach_bodies
from .defaults import without_defaults
from .model_file import check_target, inline_functions, read, write
from .quiet import without_warnings
from .simplify import simplify


@without_warnings()
def inline(
    path_or_model: str | Path | onnx.ModelProto | ir.Model, out: str | Path
) -> dict[str, int]:
    """Write a model in which every ``npu::`` node is replaced by the nodes of its body.

    Args:
        path_or_model: the file or model; a given model is left unchanged.
        out: file to write; weights go to ``<out>.data``.

    Returns:
        The number of nodes of the written graph by type.

    Raises:
        ArgumentError: the file is missing, or ``out`` cannot be written.
        UnsupportedError: a node has no portable body; nothing is written.

    """
    model = read(path_or_model)
    check_target(model, out, path_or_model)
    missing = attach_bodies(model)
    if missing:
        raise UnsupportedError(
            f"cannot write {', '.join(missing)} in ONNX: no portable body computes the same"
        )
    inline_functions(model)
    with without_defaults(model):
        simplify(model)
    model.opset_imports.pop("npu", None)
    RemoveUnusedOpsetsPass()(model)
    write(model, out)
    return count_nodes(model.graph)
