"""Groups of nodes that one fused operator computes: where they may be, and what turns them off."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime as ort
import onnxruntime_npu
import pytest
from fusion_models import fused_nodes, model_of, node, run_both, without_optimizations
from onnx import TensorProto, helper
from provider_models import CPU, NPU, npu_session, rms_norm_function, rms_norm_node

CONV = "npu.fused:FusedConv"
RNG = np.random.default_rng(3)
X = RNG.standard_normal((1, 4, 6, 6)).astype(np.float32)
WEIGHT = RNG.standard_normal((4, 4, 1, 1)).astype(np.float32)


def conv_relu(x: str = "x", y: str = "y", weight: str = "w") -> list[onnx.NodeProto]:
    return [node("Conv", f"{x} {weight}", f"{y}_conv"), node("Relu", f"{y}_conv", y)]


def conv_relu_of(x: np.ndarray) -> np.ndarray:
    """In NumPy: a convolution of one tap is a product."""
    return np.maximum(np.einsum("oc,nchw->nohw", WEIGHT[:, :, 0, 0], x), 0)


def close(actual: np.ndarray, expected: np.ndarray) -> None:
    """Sums of four float32 products, in any order, of values of about 1."""
    np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-5)


def test_assignment_names_the_fused_operator():
    session = npu_session(model_of(conv_relu(), {"x": X}, {"w": WEIGHT}))
    rows = onnxruntime_npu.assignment(session)
    assert [(r["op_type"], r["provider"], r["fused_into"]) for r in rows] == [
        ("Conv", NPU, CONV),
        ("Relu", NPU, CONV),
    ]
    close(session.run(None, {"x": X})[0], conv_relu_of(X))


def test_the_option_turns_it_off():
    model = model_of(conv_relu(), {"x": X}, {"w": WEIGHT})
    session = npu_session(model, fusion=0)
    assert fused_nodes(session) == {}
    close(session.run(None, {"x": X})[0], conv_relu_of(X))
    with pytest.raises(Exception, match="'fusion' expected 0, 1; got 'maybe'"):
        npu_session(model, fusion="maybe")


def test_an_inner_value_that_others_read_is_not_fused():
    """The convolution's result is an output of the graph, or read by a second node."""
    nodes = conv_relu()
    for outputs, more in ((("y", "y_conv"), []), (("y", "z"), [node("Neg", "y_conv", "z")])):
        model = model_of(nodes + more, {"x": X}, {"w": WEIGHT}, outputs)
        fused, plain, groups = run_both(model, {"x": X})
        assert groups == {}
        for a, b in zip(fused, plain, strict=True):
            np.testing.assert_array_equal(a, b)


def test_an_inner_value_that_a_subgraph_reads_is_not_fused():
    def branch(name: str, op: str) -> onnx.GraphProto:
        result = helper.make_tensor_value_info(name, TensorProto.FLOAT, None)
        return helper.make_graph(
            [helper.make_node(op, ["y_conv"], [name], name)], name, [], [result]
        )

    choose = node(
        "If", "flag", "z", then_branch=branch("then", "Neg"), else_branch=branch("else", "Abs")
    )
    feeds = {"x": X, "flag": np.array(True)}
    model = model_of([*conv_relu(), choose], feeds, {"w": WEIGHT}, ("y", "z"))
    fused, plain, groups = run_both(model, feeds)
    assert groups == {}
    np.testing.assert_array_equal(fused[1], plain[1])
    close(fused[0], conv_relu_of(X))


def test_a_subgraph_is_fused_with_constants_of_the_outer_graph():
    def branch(name: str, op: str) -> onnx.GraphProto:
        """Names of inner values repeat in both branches."""
        nodes = [node("Conv", "x w", "inner"), node(op, "inner", "result")]
        result = helper.make_tensor_value_info("result", TensorProto.FLOAT, None)
        return helper.make_graph(nodes, name, [], [result])

    choose = node(
        "If", "flag", "y", then_branch=branch("then", "Relu"), else_branch=branch("else", "Tanh")
    )
    feeds = {"x": X, "flag": np.array(True)}
    session = npu_session(model_of([choose], feeds, {"w": WEIGHT}))
    rows = [r["fused_into"] for r in onnxruntime_npu.assignment(session) if r["op_type"] != "If"]
    assert rows == [CONV] * 4
    close(session.run(None, feeds)[0], conv_relu_of(X))
    product = np.einsum("oc,nchw->nohw", WEIGHT[:, :, 0, 0], X)
    close(session.run(None, {"x": X, "flag": np.array(False)})[0], np.tanh(product))


def test_a_graph_is_examined_again_after_functions_were_inlined():
    """A function that the NPU does not know, so that onnxruntime inlines it and asks once more."""
    function = rms_norm_function()
    function.name = "Unknown"
    unknown = rms_norm_node("y", "z", "norm")
    unknown.op_type = "Unknown"
    gamma = np.ones(6, np.float32)
    model = onnx.load_from_string(
        model_of([*conv_relu(), unknown], {"x": X}, {"w": WEIGHT, "gamma": gamma}, ("z",))
    )
    model.functions.append(function)
    session = npu_session(model.SerializeToString())
    assert fused_nodes(session) == {"y_conv": CONV, "y": CONV}
    inlined, *rows = onnxruntime_npu.assignment(session)
    assert inlined["op_type"] == "Unknown" and {row["provider"] for row in rows} == {NPU}
    y = conv_relu_of(X)
    expected = y / np.sqrt((y * y).mean(-1, keepdims=True))
    close(session.run(None, {"x": X})[0], expected)


def test_captured_runs_replay_fused_nodes():
    session = npu_session(model_of(conv_relu(), {"x": X}, {"w": WEIGHT}), enable_npu_graph=1)
    assert set(fused_nodes(session).values()) == {CONV}
    binding = session.io_binding()
    x = ort.OrtValue.ortvalue_from_shape_and_type(X.shape, np.float32, "npu", 0, 0)
    y = ort.OrtValue.ortvalue_from_shape_and_type(X.shape, np.float32, "npu", 0, 0)
    binding.bind_ortvalue_input("x", x)
    binding.bind_ortvalue_output("y", y)
    for factor in (1, -2, 3):
        ort.copy_tensors([ort.OrtValue.ortvalue_from_numpy(np.float32(factor) * X)], [x])
        session.run_with_iobinding(binding)
        close(y.numpy(), conv_relu_of(factor * X))


def test_values_in_host_memory_are_not_fused():
    session = npu_session(model_of(conv_relu(), {"x": X}, {"w": WEIGHT}), host_memory=1)
    assert fused_nodes(session) == {}
    close(session.run(None, {"x": X})[0], conv_relu_of(X))


def test_a_session_stores_its_graph_without_fused_nodes(tmp_path):
    options = ort.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "optimized.onnx")
    session = npu_session(model_of(conv_relu(), {"x": X}, {"w": WEIGHT}), options)
    assert fused_nodes(session) == {}
    stored = ort.InferenceSession(options.optimized_model_filepath, providers=[CPU])
    close(stored.run(None, {"x": X})[0], conv_relu_of(X))


def test_constants_are_those_of_the_model(tmp_path):
    """Weights in a file beside the model, one of which two groups share."""
    nodes = conv_relu("x", "h") + conv_relu("h", "y")
    model = onnx.load_from_string(model_of(nodes, {"x": X}, {"w": WEIGHT}))
    path = tmp_path / "model.onnx"
    onnx.save(model, path, save_as_external_data=True, location="weights", size_threshold=0)
    session = ort.InferenceSession(path, providers=[NPU])
    assert set(fused_nodes(session).values()) == {"npu.channels_last:FusedConv"}
    close(session.run(None, {"x": X})[0], conv_relu_of(conv_relu_of(X)))


def test_branches_read_constants_in_a_file_of_the_graph_around_them(tmp_path):
    def branch(nodes):
        outputs = [helper.make_tensor_value_info("b", TensorProto.FLOAT, None)]
        return helper.make_graph(nodes, "branch", [], outputs)

    chosen = node(
        "If",
        "c",
        "y",
        then_branch=branch(conv_relu("x", "b")),
        else_branch=branch([node("Neg", "x", "b")]),
    )
    feeds = {"x": X, "c": np.array(True)}
    model = onnx.load_from_string(model_of([chosen], feeds, {"w": WEIGHT}))
    path = tmp_path / "model.onnx"
    onnx.save(model, path, save_as_external_data=True, location="weights", size_threshold=0)
    session = ort.InferenceSession(path, providers=[NPU])
    close(session.run(None, feeds)[0], conv_relu_of(X))
    close(session.run(None, {**feeds, "c": np.array(False)})[0], -X)


def test_a_large_constant_of_several_nodes_is_stored_once():
    """Each fused operator would keep a copy of this one, of 1.1 MiB."""
    weight = RNG.standard_normal((544, 544, 1, 1)).astype(np.float32)
    x = RNG.standard_normal((1, 544, 2, 2)).astype(np.float32)
    twice = conv_relu("x", "h") + conv_relu("h", "y")
    _, _, groups = run_both(model_of(twice, {"x": x}, {"w": weight}), {"x": x})
    assert groups == {}
    _, _, groups = run_both(model_of(conv_relu(), {"x": x}, {"w": weight}), {"x": x})
    assert set(groups.values()) == {"npu.channels_last:LoneFusedConv"}


def test_an_initializer_that_a_caller_may_replace_is_an_input():
    """It is an input of the graph, too: its value is only a default."""
    model = onnx.load_from_string(model_of(conv_relu(), {"x": X}, {"w": WEIGHT}))
    model.graph.input.append(helper.make_tensor_value_info("w", TensorProto.FLOAT, WEIGHT.shape))
    session = npu_session(model.SerializeToString(), without_optimizations())
    close(session.run(None, {"x": X})[0], conv_relu_of(X))
    given = session.run(None, {"x": X, "w": -WEIGHT})[0]
    close(given, np.maximum(np.einsum("oc,nchw->nohw", -WEIGHT[:, :, 0, 0], X), 0))


def test_errors_of_a_fused_node_name_the_operator():
    feeds = {"x": X, "w": WEIGHT}
    session = npu_session(model_of(conv_relu(), feeds, {}, dynamic=True))
    assert set(fused_nodes(session).values()) == {CONV}
    with pytest.raises(Exception, match=r"\[Conv\] expected W \[M, C / group, kernel\]"):
        session.run(None, {"x": X[:, :3], "w": WEIGHT})
    close(session.run(None, feeds)[0], conv_relu_of(X))
