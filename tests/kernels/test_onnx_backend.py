"""The node tests of the onnx package, for every standard operator the NPU implements."""

from __future__ import annotations

import re

import numpy as np
import onnx
import onnx_backend
import onnxruntime as ort
import onnxruntime_npu
import pytest
from onnx import helper
from onnx_backend import NEWEST_OPSET, as_array
from onnx_nodes import (
    BFLOAT16,
    FIXED_WIDTH,
    dtype_of,
    make_session,
    npu_nodes,
    run_session,
)
from onnxruntime.capi.onnxruntime_pybind11_state import InvalidGraph
from onnxruntime_npu import _C

# Operators with a version that onnxruntime does not know, and the tests of that version.
NEWER_THAN_ONNXRUNTIME = {"Attention": "tests/cpp/kernels/onnx_attention_test.cc"}
# Cases whose values are those of one generator; test_random_operators.py tests distributions.
DRAWN = re.compile("test_bernoulli|test_training_dropout(_default)?(_mask)?$")
IMPLEMENTED = {op["type"] for op in _C.registered_ops() if op["domain"] == ""}
TYPES = {helper.np_dtype_to_tensor_dtype(dtype_of(name)) for name in FIXED_WIDTH}
# Unimplemented forms, as `assignment` reports them.
LEFT_TO_CPU = re.compile(
    "got bool|fmod=1|no type the NPU knows|in training mode|statistics|returns qk_matmul_output"
    "|constant scales only"
)


def implemented_types(model: onnx.ModelProto) -> bool:
    """Whether every input and output is a tensor of a type the NPU has."""
    values = [*model.graph.input, *model.graph.output]
    return all(value.type.tensor_type.elem_type in TYPES for value in values)


def implemented_cases() -> list:
    """The package's cases of one implemented operator."""
    return [
        pytest.param(case, id=case.name)
        for case in onnx_backend.node_cases()
        if len(case.model.graph.node) == 1
        and case.model.graph.node[0].op_type in IMPLEMENTED
        and case.model.graph.node[0].domain == ""
        and implemented_types(case.model)
    ]


def loadable(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model at an opset and IR version onnxruntime loads, with dynamic input shapes."""
    out = onnx_backend.loadable(model)
    for k, value in enumerate(out.graph.input):  # with known shapes, Shape would be constant-folded
        if value.name == "sizes":  # of Resize: onnx's shape inference treats an unknown length as 0
            continue
        for d, dim in enumerate(value.type.tensor_type.shape.dim):
            dim.dim_param = f"d{k}_{d}"
    return out


def session_of(case) -> ort.InferenceSession:
    """A session of the case's model; skips a case that the installed onnxruntime cannot load."""
    try:
        return make_session(loadable(case.model))
    except InvalidGraph as error:
        node = case.model.graph.node[0]
        newest = onnx.defs.get_schema(node.op_type).since_version
        unknown = re.search("Type Error|Unrecognized attr", str(error))
        if (newest <= NEWEST_OPSET and node.op_type not in NEWER_THAN_ONNXRUNTIME) or not unknown:
            raise
        elsewhere = NEWER_THAN_ONNXRUNTIME.get(node.op_type, "the same kernel under older opsets")
        pytest.skip(
            f"onnxruntime {ort.__version__} refuses to load {node.op_type} with this type or "
            f"attribute, which opset {newest} added; tested in {elsewhere}"
        )


def comparable(array: np.ndarray) -> np.ndarray:
    return array.astype(np.float32) if array.dtype == BFLOAT16 else array


@pytest.mark.parametrize("case", implemented_cases())
def test_node(case) -> None:
    """The NPU gives the results that the package expects."""
    session = session_of(case)
    model = case.model
    op_type = model.graph.node[0].op_type
    if npu_nodes(session) != [op_type]:
        reasons = [n["reason"] for n in onnxruntime_npu.assignment(session)]
        assert reasons and all(LEFT_TO_CPU.search(reason) for reason in reasons), reasons
        pytest.skip(reasons[0])
    for inputs, expected in case.data_sets:
        names = [value.name for value in model.graph.input]
        feeds = dict(zip(names, map(as_array, inputs), strict=True))
        for got, want in zip(run_session(session, feeds), map(as_array, expected), strict=True):
            assert got.dtype == want.dtype and got.shape == want.shape
            if DRAWN.match(case.name):
                continue
            # The package rounds to bfloat16 at each of several steps, kernels once, at the end.
            rtol = max(case.rtol, 2.0**-6) if got.dtype == BFLOAT16 else case.rtol
            # NumPy's transform of float32 leaves an ulp of the largest value where 0 is exact.
            largest = np.abs(want).max(initial=0) if op_type == "DFT" else 0
            atol = max(case.atol, float(largest) * np.finfo(np.float32).eps)
            np.testing.assert_allclose(comparable(got), comparable(want), rtol=rtol, atol=atol)
