"""``sampler.onnx``: logits to tokens, on the device that the logits are on."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from ..opdef.attach import attach_function_bodies

SAMPLER_FILE = "sampler.onnx"
_OPSET = 18


def write_sampler(path: Path) -> None:
    """Write the graph that draws a token per row; it depends on no vocabulary or model.

    Inputs: ``logits`` [batch, S, V] float32, only the last position is used; ``temperature``
    [1] float32; ``top_k`` [batch] int32 in [1, V]; ``top_p`` [batch] float32 in (0, 1];
    ``min_p`` [1] float32 in [0, 1]; ``uniform`` [batch, 1] float32, numbers drawn from
    [0, 1 - 1e-6). Output: ``tokens`` [batch, 1] int64.
    """
    nodes = [
        helper.make_node("Slice", ["logits", "last", "end", "positions"], ["newest"]),
        helper.make_node("Reshape", ["newest", "rows"], ["flat"]),
        # A tiny temperature must not overflow: distances from the maximum are scaled, all <= 0.
        helper.make_node("ReduceMax", ["flat", "last"], ["most"], keepdims=1),
        helper.make_node("Sub", ["flat", "most"], ["distances"]),
        helper.make_node("Div", ["distances", "temperature"], ["scores"]),
        helper.make_node("NPUTopKTopP", ["scores", "top_p", "top_k"], ["kept"], domain="npu"),
        # Scores are distances from the most likely token, so exp(score) is the ratio to it.
        helper.make_node("Log", ["min_p"], ["least"]),
        helper.make_node("GreaterOrEqual", ["scores", "least"], ["likely"]),
        helper.make_node("Where", ["likely", "kept", "never"], ["candidates"]),
        helper.make_node("Softmax", ["candidates"], ["weights"], axis=-1),
        helper.make_node("CumSum", ["weights", "axis"], ["cumulative"]),
        helper.make_node("Slice", ["cumulative", "last", "end", "last"], ["total"]),
        helper.make_node("Mul", ["uniform", "total"], ["target"]),
        # The token whose interval of [0, total) contains the target: earlier ones end at or below.
        helper.make_node("LessOrEqual", ["cumulative", "target"], ["before"]),
        helper.make_node("Cast", ["before"], ["ones"], to=TensorProto.INT64),
        helper.make_node("ReduceSum", ["ones", "last"], ["tokens"], keepdims=1),
    ]
    constants = {
        "positions": np.array([1]),
        "rows": np.array([0, -1]),
        "last": np.array([-1]),
        "axis": np.array(-1),
        "end": np.array([np.iinfo(np.int64).max]),
        "never": np.array(-np.inf, np.float32),
    }
    graph = helper.make_graph(
        nodes,
        "sampler",
        [
            helper.make_tensor_value_info(
                "logits", TensorProto.FLOAT, ["batch", "sequence", "vocabulary"]
            ),
            helper.make_tensor_value_info("temperature", TensorProto.FLOAT, [1]),
            helper.make_tensor_value_info("top_k", TensorProto.INT32, ["batch"]),
            helper.make_tensor_value_info("top_p", TensorProto.FLOAT, ["batch"]),
            helper.make_tensor_value_info("min_p", TensorProto.FLOAT, [1]),
            helper.make_tensor_value_info("uniform", TensorProto.FLOAT, ["batch", 1]),
        ],
        [helper.make_tensor_value_info("tokens", TensorProto.INT64, ["batch", 1])],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    opsets = [helper.make_opsetid("", _OPSET), helper.make_opsetid("npu", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    model.producer_name = "onnxruntime-npu"
    attach_function_bodies(model)
    onnx.save(model, path)
