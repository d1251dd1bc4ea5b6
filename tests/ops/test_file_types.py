"""Node types of files for operators that consist of standard ones: NPUTranspose, NPUBroadcast.

An alpha version of torch_npu's exporter wrote them with the arguments as attributes, in the plural.
"""

from __future__ import annotations

from typing import Any

import onnx
import onnx_ir as ir
import pytest
import torch
from onnxruntime_npu.opdef import Composition, Sample, all_compositions, attach_function_bodies
from onnxruntime_npu.opdef import dtypes as dt
from op_paths import NPU, assert_on_npu, bind, samples, session, to_ortvalue, to_torch

_ATTRIBUTES = {"npu_transpose": "perms", "npu_broadcast": "sizes"}
READ = [op for op in all_compositions().values() if op.file_type]


def test_each_type_has_attributes() -> None:
    assert {op.name for op in READ} == set(_ATTRIBUTES)


def _model(op: Composition, tensor: torch.Tensor, arguments: dict[str, Any]) -> onnx.ModelProto:
    helper = onnx.helper
    number = dt.NUMBERS[dt.from_torch(tensor.dtype)]
    given = dict(arguments)
    given[_ATTRIBUTES[op.name]] = given.pop(_ATTRIBUTES[op.name].removesuffix("s"))
    nodes = [
        helper.make_node(op.file_type, ["x"], ["y"], domain="npu", **given),
        helper.make_node("Shape", ["y"], ["sizes_of_y"]),  # y has no type but the one inferred
    ]
    graph = helper.make_graph(
        nodes,
        "main_graph",
        [helper.make_tensor_value_info("x", number, list(tensor.shape))],
        [
            helper.make_tensor_value_info("y", number, None),
            helper.make_tensor_value_info("sizes_of_y", onnx.TensorProto.INT64, None),
        ],
    )
    graph.output[0].ClearField("type")
    opsets = [helper.make_opsetid("", 13), helper.make_opsetid("npu", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=7)


def _run(op: Composition, sample: Sample) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the result of a node, and of the function on the CPU."""
    bound = bind(op, sample)
    tensor = bound.pop("self").contiguous()
    model = _model(op, tensor, bound)
    made = session(model, NPU)
    assert_on_npu(made)
    got, sizes = (to_torch(v) for v in made.run_with_ort_values(None, {"x": to_ortvalue(tensor)}))
    assert sizes.tolist() == list(got.shape)
    return got, op.function_body(tensor, **bound)


@pytest.mark.parametrize(
    ("op", "dtype", "i"),
    [
        pytest.param(op, dtype, i, id=f"{op.name}-{dtype}-{sample.id}")
        for op in READ
        for dtype in op.sample_dtypes
        for i, sample in enumerate(samples(op, dtype))
    ],
)
def test_node_means_the_function(op: Composition, dtype: str, i: int) -> None:
    got, want = _run(op, samples(op, dtype)[i])
    assert got.dtype == want.dtype and torch.equal(got, want)


@pytest.mark.parametrize(
    ("op", "arguments", "match"),
    [
        ("npu_transpose", {"perm": [0, 0]}, r"\[npu_transpose\] expected perm to name each axis"),
        ("npu_transpose", {"perm": [0]}, r"\[npu_transpose\] expected perm of 2 axes .*, got 1"),
        ("npu_transpose", {"perm": [0, 2]}, r"\[npu_transpose\] expected .*axis.*2"),
        ("npu_broadcast", {"size": [2, 4]}, r"\[npu_broadcast\] expected a size that \[2, 3\]"),
        ("npu_broadcast", {"size": [3]}, r"\[npu_broadcast\] expected a size that .*, got \[3\]"),
        ("npu_broadcast", {"size": [-1, 2, 3]}, r"\[npu_broadcast\] expected a size that"),
        ("npu_broadcast", {"size": [2**40, 2**40, 2, 3]}, r"NPUBroadcast.*[Oo]verflow"),
    ],
)
def test_bad_attributes_are_refused(op: str, arguments: dict[str, Any], match: str) -> None:
    tensor = torch.zeros(2, 3)
    made = session(_model(all_compositions()[op], tensor, arguments), NPU)
    with pytest.raises(Exception, match=match):
        made.run_with_ort_values(None, {"x": to_ortvalue(tensor)})


@pytest.mark.parametrize("op", READ, ids=lambda op: op.name)
def test_node_gets_no_body(op: Composition) -> None:
    bound = bind(op, samples(op, op.sample_dtypes[0])[0])
    tensor = bound.pop("self")
    model = _model(op, tensor, bound)
    graph = ir.from_proto(model)
    assert attach_function_bodies(model) == attach_function_bodies(graph) == [op.file_type]
