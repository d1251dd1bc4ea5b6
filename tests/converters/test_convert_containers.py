"""Sequences and optional values: a conversion keeps their types, without which no session loads."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from comparison import PROVIDERS, normal, run
from onnx import TensorProto, helper
from onnxruntime_npu.converters import convert, inline

TENSOR = helper.make_tensor_type_proto(TensorProto.FLOAT, [2, 3])
SEQUENCE = helper.make_sequence_type_proto(TENSOR)
OPTIONAL = helper.make_optional_type_proto(TENSOR)
X = normal(2, 3)


def model(nodes, results, given=(("x", TENSOR),), constants=(), opset=18):
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_value_info(name, kind) for name, kind in given],
        [helper.make_value_info(name, kind) for name, kind in results],
        list(constants),
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def tensor(rank=2, kind=TensorProto.FLOAT):
    return helper.make_tensor_type_proto(kind, [None] * rank)


def branch(nodes, result, kind):
    return helper.make_graph(nodes, "branch", [], [helper.make_value_info(result, kind)])


def sequence_of_three(opset):
    nodes = [
        helper.make_node("SequenceConstruct", ["x", "x"], ["two"]),
        helper.make_node("Neg", ["x"], ["negative"]),
        helper.make_node("SequenceInsert", ["two", "negative"], ["three"]),
        helper.make_node("ConcatFromSequence", ["three"], ["y"], axis=0),
    ]
    return model(nodes, [("y", tensor())], opset=opset), {"x": X}, [np.concatenate([X, X, -X])]


def loop_that_appends(opset):
    body = helper.make_graph(
        [
            helper.make_node("Identity", ["go"], ["goes"]),
            helper.make_node("Add", ["x", "x"], ["twice"]),
            helper.make_node("SequenceInsert", ["before", "twice"], ["after"]),
        ],
        "body",
        [
            helper.make_tensor_value_info("i", TensorProto.INT64, []),
            helper.make_tensor_value_info("go", TensorProto.BOOL, []),
            helper.make_value_info("before", SEQUENCE),
        ],
        [
            helper.make_tensor_value_info("goes", TensorProto.BOOL, []),
            helper.make_value_info("after", SEQUENCE),
        ],
    )
    nodes = [
        helper.make_node("SequenceEmpty", [], ["none"], dtype=TensorProto.FLOAT),
        helper.make_node("Loop", ["count", "", "none"], ["all"], body=body),
        helper.make_node("ConcatFromSequence", ["all"], ["y"], axis=0, new_axis=1),
    ]
    constants = [helper.make_tensor("count", TensorProto.INT64, [], [2])]
    made = model(nodes, [("y", tensor(3))], constants=constants, opset=opset)
    return made, {"x": X}, [np.stack([2 * X, 2 * X])]


def optional_tensor(opset):
    nodes = [
        helper.make_node("Optional", ["x"], ["may"]),
        helper.make_node("Optional", [], ["not"], type=TENSOR),
        helper.make_node("OptionalGetElement", ["may"], ["element"]),
        helper.make_node("Relu", ["element"], ["y"]),
        helper.make_node("OptionalHasElement", ["may"], ["yes"]),
        helper.make_node("OptionalHasElement", ["not"], ["no"]),
    ]
    flag = tensor(0, TensorProto.BOOL)
    made = model(nodes, [("y", tensor()), ("yes", flag), ("no", flag)], opset=opset)
    return made, {"x": X}, [np.maximum(X, 0), np.array(True), np.array(False)]


def optional_of_a_branch(opset):
    given = branch([helper.make_node("Optional", ["x"], ["may"])], "may", OPTIONAL)
    absent = branch([helper.make_node("Optional", [], ["not"], type=TENSOR)], "not", OPTIONAL)
    nodes = [
        helper.make_node("If", ["which"], ["o"], then_branch=given, else_branch=absent),
        helper.make_node("OptionalHasElement", ["o"], ["y"]),
    ]
    inputs = (("x", TENSOR), ("which", tensor(0, TensorProto.BOOL)))
    made = model(nodes, [("y", tensor(0, TensorProto.BOOL))], inputs, opset=opset)
    return made, {"x": X, "which": np.array(False)}, [np.array(False)]


def sequence_of_a_branch(opset):
    one = branch([helper.make_node("SequenceConstruct", ["x"], ["one"])], "one", SEQUENCE)
    two = branch([helper.make_node("SequenceConstruct", ["x", "x"], ["two"])], "two", SEQUENCE)
    nodes = [
        helper.make_node("If", ["which"], ["s"], then_branch=one, else_branch=two),
        helper.make_node("SequenceLength", ["s"], ["y"]),
    ]
    inputs = (("x", TENSOR), ("which", tensor(0, TensorProto.BOOL)))
    made = model(nodes, [("y", tensor(0, TensorProto.INT64))], inputs, opset=opset)
    return made, {"x": X, "which": np.array(False)}, [np.array(2)]


@pytest.mark.parametrize(
    ("make", "opset"),
    [
        (sequence_of_three, 11),
        (sequence_of_three, 18),
        (loop_that_appends, 18),
        (optional_tensor, 18),
        (optional_of_a_branch, 18),
        (sequence_of_a_branch, 16),
    ],
)
@pytest.mark.parametrize("change", [convert, inline])
def test_values_that_are_no_tensors(tmp_path, change, make, opset):
    made, inputs, expected = make(opset)
    onnx.save(made, tmp_path / "source.onnx")
    change(tmp_path / "source.onnx", tmp_path / "out.onnx")
    for provider in PROVIDERS:
        for actual, wanted in zip(
            run(tmp_path / "out.onnx", provider, inputs), expected, strict=True
        ):
            np.testing.assert_array_equal(actual, wanted)
