"""Sessions on one model with and without the fusion of nodes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnxruntime as ort
import onnxruntime_npu
from onnx import helper
from provider_models import NPU, make_model, npu_session

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
ONNX_TYPES = {
    np.dtype(np.float32): onnx.TensorProto.FLOAT,
    np.dtype(np.float64): onnx.TensorProto.DOUBLE,
    np.dtype(np.float16): onnx.TensorProto.FLOAT16,
    BFLOAT16: onnx.TensorProto.BFLOAT16,
    np.dtype(np.int64): onnx.TensorProto.INT64,
    np.dtype(np.int32): onnx.TensorProto.INT32,
    np.dtype(np.bool_): onnx.TensorProto.BOOL,
}


def node(op: str, inputs: str, outputs: str, **attributes: Any) -> onnx.NodeProto:
    """Named like its first output; a "-" stands for an omitted input."""
    names = ["" if name == "-" else name for name in inputs.split()]
    return helper.make_node(op, names, outputs.split(), outputs.split()[0], **attributes)


def npu_node(op: str, inputs: str, outputs: str, **attributes: Any) -> onnx.NodeProto:
    """The same of the domain ``npu``."""
    made = node(op, inputs, outputs, **attributes)
    made.domain = "npu"
    return made


def model_of(
    nodes: Sequence[onnx.NodeProto],
    feeds: dict[str, np.ndarray],
    constants: dict[str, np.ndarray],
    outputs: Sequence[str] = ("y",),
    dynamic: bool = False,
    opset: int = 21,
) -> bytes:
    """`dynamic`: no dimension of an input is known."""
    inputs = [
        (
            name,
            ONNX_TYPES[array.dtype],
            [f"{name}_{d}" for d in range(array.ndim)] if dynamic else array.shape,
        )
        for name, array in feeds.items()
    ]
    kind = ONNX_TYPES[next(iter(feeds.values())).dtype]
    return make_model(nodes, inputs, [(name, kind, None) for name in outputs], constants, (), opset)


def without_optimizations() -> ort.SessionOptions:
    """Onnxruntime's own fusions would change the nodes that a rule is to see."""
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    return options


def fused_nodes(session: ort.InferenceSession) -> dict[str, str]:
    """The fused operator by node, of the nodes that are computed together with others."""
    rows = [row for row in onnxruntime_npu.assignment(session) if row["fused_into"]]
    assert {row["provider"] for row in rows} <= {NPU}
    return {row["node"]: row["fused_into"] for row in rows}


def run_both(
    model: bytes, feeds: dict[str, np.ndarray], **settings: Any
) -> tuple[list[np.ndarray], list[np.ndarray], dict[str, str]]:
    """Results with fusion and without, and the fused operator by node."""
    fused = npu_session(model, without_optimizations(), **settings)
    plain = npu_session(model, without_optimizations(), fusion=0, **settings)
    assert fused_nodes(plain) == {}
    return fused.run(None, feeds), plain.run(None, feeds), fused_nodes(fused)


def run_used(
    nodes: Sequence[onnx.NodeProto],
    feeds: dict[str, np.ndarray],
    constants: dict[str, np.ndarray],
    outputs: Sequence[str],
) -> tuple[list[np.ndarray], list[np.ndarray], dict[str, str]]:
    """``run_both`` with those of the inputs and constants that the nodes read."""
    used = {name for each in nodes for name in each.input}
    feeds = {name: array for name, array in feeds.items() if name in used}
    constants = {name: array for name, array in constants.items() if name in used}
    return run_both(model_of(nodes, feeds, constants, outputs), feeds)


def check_float16(fused: list[np.ndarray], plain: list[np.ndarray]) -> None:
    """Compare what is rounded to float16 once with what is also rounded on the way to it."""
    for a, b in zip(fused, plain, strict=True):
        assert a.dtype == np.float16
        bound = 4 * 2.0**-10 * max(1.0, float(np.abs(b).max()))
        np.testing.assert_allclose(a.astype(np.float32), b.astype(np.float32), rtol=0, atol=bound)
