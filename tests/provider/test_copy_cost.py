"""Nodes that stay on the CPU because copies to the NPU and back would cost more than it saves."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime as ort
import onnxruntime_npu
import pytest
from fusion_models import without_optimizations
from onnx import TensorProto, helper
from provider_models import CPU, NPU, make_model, npu_session, providers_of

FLOAT, FLOAT16, INT64 = TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.INT64
WHY = "on the CPU, it needs fewer copies between the CPU and the NPU"
SIZE = 16
W = np.random.default_rng(0).normal(size=(SIZE, SIZE)).astype(np.float32)
CONSTANTS = {"w": W, "two": np.array(2, np.float32), "row": W[0], "shape": np.array([SIZE, -1])}


def node(op: str, inputs: str, output: str, **attributes) -> onnx.NodeProto:
    """Named like its output."""
    return helper.make_node(op, inputs.split(), [output], output, **attributes)


def foreign(x: str, y: str) -> onnx.NodeProto:
    """An operator that the NPU does not have, of one input and one output."""
    return node("Normalizer", x, y, domain="ai.onnx.ml", norm="L2")


def model(*nodes: onnx.NodeProto, outputs=("y",), rows=SIZE) -> bytes:
    used = {name for n in nodes for name in n.input}
    constants = {name: array for name, array in CONSTANTS.items() if name in used}
    shape = [rows, SIZE]
    return make_model(
        nodes, [("x", FLOAT, shape)], [(name, FLOAT, None) for name in outputs], constants
    )


def on_the_cpu(given: bytes, **settings) -> set[str]:
    """Names of the nodes on the CPU; the results are those of the CPU provider."""
    session = npu_session(given, without_optimizations(), **settings)
    feeds = {"x": np.random.default_rng(1).normal(size=(SIZE, SIZE)).astype(np.float32)}
    expected = ort.InferenceSession(given, providers=[CPU]).run(None, feeds)
    for got, wanted in zip(session.run(None, feeds), expected, strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-6)  # sums of 16 products
    for row in onnxruntime_npu.assignment(session):
        assert (row["reason"] == "") == (row["provider"] == NPU), row
    return {name for name, provider in providers_of(session).items() if provider == CPU}


def reasons(given: bytes, **settings) -> dict[str, str]:
    session = npu_session(given, without_optimizations(), **settings)
    return {row["node"]: row["reason"] for row in onnxruntime_npu.assignment(session)}


@pytest.mark.parametrize("rows", [SIZE, "n"])
@pytest.mark.parametrize("between", [
    [node("Mul", "a two", "b")],
    [node("Add", "a row", "c"), node("Relu", "c", "d"), node("Reshape", "d shape", "b")],
    [node("Sigmoid", "a", "c"), node("Tanh", "a", "d"), node("Where", "e c d", "b"),
     node("Greater", "a two", "e")][::1],
], ids=["one", "several", "two ways"])  # fmt: skip
def test_light_nodes_between_nodes_of_the_cpu_stay_there(between, rows):
    ordered = sorted(between, key=lambda n: n.op_type == "Where")
    nodes = [node("MatMul", "x w", "m"), foreign("m", "a"), *ordered, foreign("b", "z"),
             node("MatMul", "z w", "y")]  # fmt: skip
    given = model(*nodes, rows=rows)
    assert on_the_cpu(given) == {"a", "z", *(n.name for n in ordered)}
    assert {reasons(given)[n.name] for n in ordered} == {WHY}


def test_a_lone_node_of_the_cpu_takes_no_other_with_it():
    """The values around it are as large as its own: one copy to it and one back."""
    given = model(
        node("MatMul", "x w", "m"), node("Add", "m row", "b"), foreign("b", "a"),
        node("Mul", "a two", "c"), node("MatMul", "c w", "y"),
    )  # fmt: skip
    assert on_the_cpu(given) == {"a"}


def test_inputs_and_outputs_of_the_model_may_be_anywhere():
    given = model(node("Add", "x row", "b"), foreign("b", "a"), node("Mul", "a two", "y"))
    assert on_the_cpu(given) == {"a"}


def test_a_product_stays_on_the_npu():
    given = model(foreign("x", "a"), node("MatMul", "a w", "b"), foreign("b", "y"))
    assert on_the_cpu(given) == {"a", "y"}


def test_a_node_that_the_npu_needs_more_stays_there():
    """Of b's neighbours two are on the CPU and three on the NPU."""
    given = model(
        node("MatMul", "x w", "m"), node("MatMul", "m w", "n"), foreign("x", "a"),
        node("Sum", "a m n", "b"), foreign("b", "y"), node("MatMul", "b w", "z"),
        outputs=["y", "z"],
    )  # fmt: skip
    assert on_the_cpu(given) == {"a", "y"}


def test_the_smaller_value_is_copied():
    """Columns that nothing reads are not worth a copy to the NPU."""
    given = model(
        foreign("x", "a"), helper.make_node("Slice", ["a", "s", "e", "s1"], ["b"], "b"),
        node("MatMul", "b v", "y"),
    )  # fmt: skip
    parsed = onnx.load_from_string(given)
    for name, array in {"s": [0], "e": [1], "s1": [1]}.items():
        parsed.graph.initializer.append(onnx.numpy_helper.from_array(np.array(array), name))
    parsed.graph.initializer.append(onnx.numpy_helper.from_array(np.ones((1, 3), np.float32), "v"))
    parsed.graph.value_info.append(helper.make_tensor_value_info("b", FLOAT, [SIZE, 1]))
    assert on_the_cpu(parsed.SerializeToString()) == {"a", "b"}


def test_types_that_the_cpu_does_not_add_stay_on_the_npu():
    """Onnxruntime's CPU provider has no Add of bfloat16."""
    cast = [node("Cast", "a", "h", to=TensorProto.BFLOAT16), node("Add", "h h", "s"),
            node("Cast", "s", "b", to=FLOAT)]  # fmt: skip
    given = model(foreign("x", "a"), *cast, foreign("b", "y"))
    left = {name for name, why in reasons(given).items() if why}
    assert left == {"a", "y"}


def test_nodes_left_out_by_name_take_the_light_ones_between_them_along():
    given = model(node("MatMul", "x w", "m"), node("Add", "m row", "a"), node("MatMul", "a w", "y"))
    assert on_the_cpu(given, cpu_operators="MatMul") == {"m", "a", "y"}


def test_without_the_cpu_there_is_no_choice():
    """The error names what the NPU does not have, and nothing that it has."""
    given = model(foreign("x", "a"), node("Mul", "a two", "b"), foreign("b", "y"))
    with pytest.raises(Exception, match=r"2 nodes .*Normalizer 'a': .*Normalizer 'y': ") as error:
        npu_session(given, cpu_fallback="refuse")
    assert "Mul" not in str(error.value)


def test_in_a_body():
    body = helper.make_graph(
        [node("MatMul", "x w", "m"), foreign("m", "a"), node("Mul", "a two", "b"),
         foreign("b", "z"), node("MatMul", "z w", "out")],
        "body", [], [helper.make_tensor_value_info("out", FLOAT, None)],
    )  # fmt: skip
    other = helper.make_graph(
        [node("MatMul", "x w", "out2")],
        "other",
        [],
        [helper.make_tensor_value_info("out2", FLOAT, None)],
    )
    given = make_model(
        [helper.make_node("If", ["flag"], ["y"], "if", then_branch=body, else_branch=other)],
        [("x", FLOAT, [SIZE, SIZE]), ("flag", TensorProto.BOOL, [])],
        [("y", FLOAT, None)],
        {"w": W, "two": CONSTANTS["two"]},
    )
    session = npu_session(given, without_optimizations())
    assert {n for n, p in providers_of(session).items() if p == CPU} == {"a", "b", "z"}
    cpu = ort.InferenceSession(given, providers=[CPU])
    for flag in (True, False):
        feeds = {"x": W + 1, "flag": np.array(flag)}
        np.testing.assert_allclose(
            session.run(None, feeds)[0], cpu.run(None, feeds)[0], rtol=1e-5, atol=1e-6
        )
