"""Sizes that a file computes become constants if its shapes tell them."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from comparison import check, model_of, normal
from onnx import helper


def size_nodes(source: str, axes: list[int]) -> list[onnx.NodeProto]:
    """Return nodes that make values ``size_<axis>``, [1], of the shape of a value."""
    nodes = [helper.make_node("Shape", [source], ["shape"])]
    for axis in axes:
        nodes += [
            helper.make_node("Gather", ["shape", f"axis_{axis}"], [f"gathered_{axis}"]),
            helper.make_node("Unsqueeze", [f"gathered_{axis}", "axis_0_only"], [f"size_{axis}"]),
        ]
    return nodes


def named_rows_and_tokens(model: onnx.ModelProto) -> onnx.ModelProto:
    for value in model.graph.input:
        for axis, name in enumerate(("rows", "tokens")):
            value.type.tensor_type.shape.dim[axis].dim_param = name
    return model


WEIGHTS = {
    "axis_0": np.array(0), "axis_1": np.array(1), "axis_2": np.array(2),
    "axis_0_only": np.array([0]), "deduced": np.array([-1]), "four": np.array([4]),
    "two": np.array([2]), "flat": np.array([-1]), "minus": np.array(-1),
}  # fmt: skip


@pytest.mark.parametrize(
    ("parts", "known"),
    [
        (["size_0", "size_1", "deduced", "four"], True),
        (["size_0", "size_1", "two", "four"], True),
        (["size_0", "size_1", "deduced"], True),
        # As many elements, but in another order: nothing is copied.
        (["size_1", "size_0", "deduced", "four"], False),
        (["size_1", "deduced", "four"], False),
        # How many fours are left of tokens times 8 stays to be deduced.
        (["size_0", "deduced", "four"], True),
    ],
)
def test_targets_of_views(tmp_path, parts, known):
    nodes = [
        helper.make_node("Relu", ["x"], ["h"]),
        *size_nodes("h", [0, 1]),
        helper.make_node("Mul", ["h", "h"], ["square"]),
        helper.make_node("Concat", parts, ["target"], axis=0),
        helper.make_node("Reshape", ["square", "target"], ["y"]),
    ]
    inputs = {"x": normal(2, 3, 8)}
    model = named_rows_and_tokens(model_of(nodes, inputs, {"y": np.float32}, WEIGHTS))
    report = check(model, tmp_path, inputs, {}, 0.0)
    assert ("Shape" not in report.nodes) == known


def test_numbers_of_a_shape(tmp_path):
    nodes = [
        *size_nodes("x", [2]),
        helper.make_node("Div", ["size_2", "two"], ["half"]),
        helper.make_node("Slice", ["x", "half", "size_2", "axis_2_only"], ["y"]),
    ]
    inputs = {"x": normal(2, 3, 8)}
    weights = {**WEIGHTS, "axis_2_only": np.array([2])}
    model = named_rows_and_tokens(model_of(nodes, inputs, {"y": np.float32}, weights))
    report = check(model, tmp_path, inputs, {}, 0.0)
    assert report.nodes == {"Slice": 1}


@pytest.mark.parametrize(("filled", "plain"), [(1, True), (3, False)])
def test_expansions_that_keep_sizes(tmp_path, filled, plain):
    """Where a size is -1, what ConstantOfShape fills in takes its place: 1 keeps it, 3 does not."""
    value = onnx.numpy_helper.from_array(np.array([filled]))
    nodes = [
        *size_nodes("x", [0]),
        helper.make_node("Concat", ["size_0", "deduced", "four"], ["apart"], axis=0),
        helper.make_node("Reshape", ["apart", "flat"], ["sizes"]),
        helper.make_node("Shape", ["sizes"], ["count"]),
        helper.make_node("ConstantOfShape", ["count"], ["ones"], value=value),
        helper.make_node("Mul", ["ones", "minus"], ["negated"]),
        helper.make_node("Equal", ["sizes", "negated" if plain else "minus"], ["kept"]),
        helper.make_node("Where", ["kept", "ones", "sizes"], ["target"]),
        helper.make_node("Expand", ["x", "target"], ["y"]),
    ]
    inputs = {"x": normal(2, 1 if filled == 3 else 5, 1)}
    model = named_rows_and_tokens(model_of(nodes, inputs, {"y": np.float32}, WEIGHTS))
    report = check(model, tmp_path, inputs, {}, 0.0)
    assert ("Where" not in report.nodes) == plain


@pytest.mark.parametrize(("filled", "plain"), [(1, True), (3, False)])
def test_expansions_that_onnxruntime_has_folded(tmp_path, filled, plain):
    """Of its optimised files what is filled in, and -1, are constants of two sizes."""
    nodes = [
        *size_nodes("x", [0]),
        helper.make_node("Concat", ["size_0", "deduced", "four"], ["sizes"], axis=0),
        helper.make_node("Equal", ["sizes", "negated"], ["kept"]),
        helper.make_node("Where", ["kept", "ones", "sizes"], ["target"]),
        helper.make_node("Expand", ["x", "target"], ["y"]),
    ]
    inputs = {"x": normal(2, 1 if filled == 3 else 5, 1)}
    weights = {**WEIGHTS, "negated": np.full(3, -1), "ones": np.full(3, filled)}
    model = named_rows_and_tokens(model_of(nodes, inputs, {"y": np.float32}, weights))
    report = check(model, tmp_path, inputs, {}, 0.0)
    assert ("Where" not in report.nodes) == plain


@pytest.mark.parametrize(("part", "known"), [([-1], True), ([-2], False)])
def test_parts_of_a_shape(tmp_path, part, known):
    """As torch's older exporter reads the size of a head, to scale attention by its root."""
    nodes = [
        helper.make_node("Shape", ["x"], ["shape"]),
        helper.make_node("Slice", ["shape", "begin", "end"], ["size"]),
        helper.make_node("Cast", ["size"], ["float"], to=1),
        helper.make_node("Mul", ["x", "float"], ["y"]),
    ]
    end = np.array([np.iinfo(np.int64).max if part == [-1] else -1])
    inputs = {"x": normal(2, 3, 8)}
    weights = {"begin": np.array(part), "end": end}
    model = named_rows_and_tokens(model_of(nodes, inputs, {"y": np.float32}, weights))
    report = check(model, tmp_path, inputs, {}, 0.0)
    assert ("Shape" not in report.nodes) == known
