"""Constant folding."""

from __future__ import annotations

import onnx_ir as ir
from onnxscript.optimizer import fold_constants_ir


def fold_constants(model: ir.Model) -> None:
    """Compute what depends on constants only, in place."""
    fold_constants_ir(model, onnx_shape_inference=False, should_fold=_may_fold)


def _may_fold(node: ir.Node) -> bool | None:
    """Leave strings, whose results would be no tensors of strings; None leaves the choice."""
    strings = (
        v is not None and v.dtype == ir.DataType.STRING for v in (*node.inputs, *node.outputs)
    )
    return False if any(strings) else None
