"""Small models built by hand, and sessions on them."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import onnxruntime_npu
from onnx import TensorProto, helper, numpy_helper

NPU = onnxruntime_npu.get_ep_name()
CPU = "CPUExecutionProvider"
OPSET = 21
_HERE = os.path.dirname(os.path.abspath(__file__))

Value = tuple[str, int, Sequence[Any] | None]


def make_model(
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[Value],
    outputs: Sequence[Value],
    constants: dict[str, np.ndarray] | None = None,
    functions: Sequence[onnx.FunctionProto] = (),
    opset: int = OPSET,
) -> bytes:
    graph = helper.make_graph(
        list(nodes),
        "graph",
        [helper.make_tensor_value_info(*v) for v in inputs],
        [helper.make_tensor_value_info(*v) for v in outputs],
        [numpy_helper.from_array(a, name) for name, a in (constants or {}).items()],
    )
    model = helper.make_model(
        graph,
        functions=list(functions),
        opset_imports=[
            helper.make_opsetid("", opset),
            helper.make_opsetid("npu", 1),
            helper.make_opsetid("ai.onnx.ml", 3),
        ],
        ir_version=10,
    )
    return model.SerializeToString()


def left_to_the_cpu(x: str, y: str) -> onnx.NodeProto:
    """y = x / sum(|x|) of each row: of ai.onnx.ml, which the NPU does not have."""
    return helper.make_node("Normalizer", [x], [y], "left", domain="ai.onnx.ml", norm="L1")


def npu_session(model: bytes, options: Any = None, **settings: Any) -> ort.InferenceSession:
    return ort.InferenceSession(model, options, providers=[(NPU, settings)])


def providers_of(session: ort.InferenceSession) -> dict[str, str]:
    """Provider by node name."""
    return {row["node"]: row["provider"] for row in onnxruntime_npu.assignment(session)}


def add_model(dtype: int = TensorProto.FLOAT, shape: Sequence[Any] = ("n", 4)) -> bytes:
    """z = (x + y) * y, two named nodes."""
    nodes = [
        helper.make_node("Add", ["x", "y"], ["s"], "add"),
        helper.make_node("Mul", ["s", "y"], ["z"], "mul"),
    ]
    return make_model(nodes, [("x", dtype, shape), ("y", dtype, shape)], [("z", dtype, shape)])


def rms_norm_function(overload: str = "", scale: float = 1.0) -> onnx.FunctionProto:
    """A body for npu:NPURmsNorm; `scale` distinguishes its results from the kernel's."""
    nodes = [
        helper.make_node("Constant", [], ["axes"], value_ints=[-1]),
        helper.make_node("Constant", [], ["scale"], value_float=scale),
        helper.make_node("Mul", ["self", "self"], ["squares"]),
        helper.make_node("ReduceMean", ["squares", "axes"], ["mean"], keepdims=1),
        helper.make_node("Sqrt", ["mean"], ["root"]),
        helper.make_node("Reciprocal", ["root"], ["rstd"]),
        helper.make_node("Mul", ["self", "rstd"], ["normal"]),
        helper.make_node("Mul", ["normal", "gamma"], ["scaled"]),
        helper.make_node("Mul", ["scaled", "scale"], ["y"]),
    ]
    function = helper.make_function(
        "npu",
        "NPURmsNorm",
        ["self", "gamma"],
        ["y", "rstd"],
        nodes,
        [helper.make_opsetid("", OPSET)],
        attributes=["epsilon"],
    )
    function.overload = overload
    return function


def rms_norm_node(x: str, y: str, name: str, overload: str = "") -> onnx.NodeProto:
    node = helper.make_node("NPURmsNorm", [x, "gamma"], [y, ""], name, domain="npu", epsilon=0.0)
    node.overload = overload
    return node


def rms_norm(x: np.ndarray, gamma: np.ndarray) -> np.ndarray:
    return x / np.sqrt((x * x).mean(-1, keepdims=True)) * gamma


def run_python(
    code: str, environment: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Runs code in a separate process, with this folder importable."""
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        env={
            **os.environ,
            **(environment or {}),
            "PYTHONPATH": os.pathsep.join([_HERE, *sys.path]),
        },
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
