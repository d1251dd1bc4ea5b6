"""Parts of the format that few exporters use, and that a conversion keeps or takes apart."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
from comparison import PROVIDERS, model_of, normal, run
from onnx import helper, numpy_helper
from onnxruntime_npu.converters import convert, inline
from onnxruntime_npu.errors import ExportError


def check_same(model, folder, inputs, expected=None):
    onnx.save(model, folder / "source.onnx")
    if expected is None:
        expected = run(folder / "source.onnx", PROVIDERS[1], inputs)
    report = convert(folder / "source.onnx", folder / "fused.onnx")
    for provider in PROVIDERS:
        for actual, wanted in zip(
            run(folder / "fused.onnx", provider, inputs), expected, strict=True
        ):
            np.testing.assert_allclose(actual, wanted, rtol=0, atol=1e-5)
    return report


@pytest.mark.parametrize("stored_as", ["initializer", "constant"])
@pytest.mark.parametrize("flat", [True, False])
def test_sparse_weights(tmp_path, flat, stored_as):
    dense = np.zeros((8, 6), np.float32)
    dense[1, 2], dense[4, 5], dense[7, 0] = 3, -1, 0.5
    at = np.flatnonzero(dense) if flat else np.argwhere(dense)
    values = numpy_helper.from_array(dense[dense != 0], "w")
    indices = numpy_helper.from_array(at.astype(np.int64), "at")
    sparse = helper.make_sparse_tensor(values, indices, list(dense.shape))
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"])]
    if stored_as == "constant":
        nodes.insert(0, helper.make_node("Constant", [], ["w"], sparse_value=sparse))
    inputs = {"x": normal(3, 8)}
    model = model_of(nodes, inputs, {"y": np.float32})
    if stored_as == "initializer":
        model.graph.sparse_initializer.append(sparse)
    check_same(model, tmp_path, inputs, [inputs["x"] @ dense])
    check_same(model, tmp_path, inputs)


def with_function(nodes, opset, model_opset):
    """Return a model that calls a function of another opset."""
    function = helper.make_function(
        "own", "Own", ["x"], ["y"], nodes, [helper.make_opsetid("", opset)]
    )
    call = helper.make_node("Own", ["x"], ["y"], domain="own")
    model = model_of([call], {"x": normal(2, 6)}, {"y": np.float32}, opset=model_opset)
    model.opset_import.append(helper.make_opsetid("own", 1))
    model.functions.append(function)
    return model


def test_functions_of_another_opset_are_inlined(tmp_path):
    nodes = [
        helper.make_node("Reshape", ["x", "x_shape"], ["flat"]),
        helper.make_node("Softmax", ["flat"], ["y"]),
    ]
    nodes.insert(0, helper.make_node("Shape", ["x"], ["x_shape"]))
    check_same(with_function(nodes, 18, 21), tmp_path, {"x": normal(2, 6)})


def test_functions_that_compute_something_else_in_the_models_opset_are_refused(tmp_path):
    model = with_function([helper.make_node("ReduceMean", ["x"], ["y"], axes=[1])], 13, 21)
    with pytest.raises(
        ExportError, match=r"\[ReduceMean\] expected functions of the model's opset"
    ):
        convert(model, tmp_path / "out.onnx")


def test_the_other_name_of_onnxs_domain(tmp_path):
    inputs = {"x": normal(2, 6)}
    model = model_of(
        [helper.make_node("Softmax", ["x"], ["y"], domain="ai.onnx")], inputs, {"y": np.float32}
    )
    model.opset_import[0].domain = "ai.onnx"
    check_same(model, tmp_path, inputs)


def test_libraries_are_silent(tmp_path, caplog, capfd):
    """They tell of a Split that they do not fold, and of constants that are outputs."""
    nodes = [
        helper.make_node("Split", ["w"], ["a", "b"], axis=0, num_outputs=2),
        helper.make_node("Sub", ["a", "b"], ["c"]),
        helper.make_node("Add", ["x", "c"], ["y"]),
    ]
    inputs, weight = {"x": normal(2, 6)}, normal(4, 6)
    model = model_of(nodes, inputs, {"y": np.float32, "w": np.float32}, {"w": weight})
    check_same(model, tmp_path, inputs, [inputs["x"] + weight[:2] - weight[2:], weight])
    inline(tmp_path / "fused.onnx", tmp_path / "plain.onnx")
    assert not caplog.records
    assert "Skip" not in capfd.readouterr().err


def test_a_converted_file_is_converted_again(tmp_path):
    """Its functions stay as they are, and are not those of nodes that are converted later."""
    nodes = [
        helper.make_node("Sigmoid", ["x"], ["s"]),
        helper.make_node("Mul", ["x", "s"], ["silu"]),
        helper.make_node("Mul", ["silu", "u"], ["product"]),
        helper.make_node("RMSNormalization", ["product", "gamma"], ["y"], epsilon=1e-5),
    ]
    nodes.insert(0, helper.make_node("Split", ["joined"], ["x", "u"], axis=-1, num_outputs=2))
    inputs, gamma = {"joined": normal(2, 32)}, normal(16)
    model = model_of(nodes, inputs, {"y": np.float32}, {"gamma": gamma}, opset=23)
    first = check_same(model, tmp_path, inputs)
    again = onnx.load(tmp_path / "fused.onnx")
    assert check_same(again, tmp_path, inputs).nodes == first.nodes
    onnx.checker.check_model(tmp_path / "fused.onnx")

    again.graph.node.add().CopyFrom(helper.make_node("Cast", ["y"], ["half"], to=10))
    gammas = numpy_helper.from_array(gamma.astype(np.float16), "half_gamma")
    again.graph.initializer.append(gammas)
    again.graph.node.add().CopyFrom(
        helper.make_node("RMSNormalization", ["half", "half_gamma"], ["z"], epsilon=1.0)
    )
    again.graph.output.append(helper.make_tensor_value_info("z", 10, None))
    onnx.save(again, tmp_path / "longer.onnx")
    expected = run(tmp_path / "longer.onnx", PROVIDERS[1], inputs)
    report = convert(tmp_path / "longer.onnx", tmp_path / "fused.onnx")
    assert report.nodes["npu::NPURmsNorm"] == 2
    for provider in PROVIDERS:
        for actual, wanted in zip(
            run(tmp_path / "fused.onnx", provider, inputs), expected, strict=True
        ):
            assert actual.dtype == wanted.dtype
            np.testing.assert_allclose(actual, wanted, rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize("function", [convert, inline])
def test_a_model_in_onnxruntimes_own_format_is_refused(tmp_path, function):
    inputs = {"x": normal(2, 6)}
    model = model_of([helper.make_node("Softmax", ["x"], ["y"])], inputs, {"y": np.float32})
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "model.ort")
    source = model.SerializeToString()
    onnxruntime.InferenceSession(source, options, providers=[PROVIDERS[1]])
    with pytest.raises(ExportError, match="expected an ONNX model, got one in onnxruntime's own"):
        function(tmp_path / "model.ort", tmp_path / "out.onnx")


def test_strings(tmp_path):
    """Constants of strings have no size in bytes, and folding would make bytes of them."""
    words = helper.make_tensor("words", onnx.TensorProto.STRING, [2], [b"a", "é".encode()])
    nodes = [
        helper.make_node("Concat", ["x", "words"], ["y"], axis=0),
        helper.make_node("Gather", ["words", "at"], ["z"]),
    ]
    kind = onnx.TensorProto.STRING
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", kind, [1])],
        [helper.make_tensor_value_info(name, kind, None) for name in "yz"],
        [words, numpy_helper.from_array(np.array(1), "at")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    convert(model, tmp_path / "fused.onnx")
    inline(tmp_path / "fused.onnx", tmp_path / "plain.onnx")
    for name in ("fused.onnx", "plain.onnx"):
        for provider in PROVIDERS:
            y, z = run(tmp_path / name, provider, {"x": np.array(["b"], object)})
            assert y.tolist() == ["b", "a", "é"] and z.item() == "é"


@pytest.mark.parametrize("op_type", ["Dropout", "Bernoulli"])
def test_equal_nodes_that_draw_numbers_stay_two(tmp_path, op_type):
    inputs = {"x": np.full(1000, 0.5, np.float32)}
    more = ["half", "true"] if op_type == "Dropout" else []
    weights = {"half": np.float32(0.5), "true": np.bool_(True)} if more else {}
    # Seeds of their own would tell them apart by themselves.
    nodes = [helper.make_node(op_type, ["x", *more], [name]) for name in "ab"]
    model = model_of(nodes, inputs, dict.fromkeys("ab", np.float32), weights)
    report = convert(model, tmp_path / "fused.onnx")
    assert report.nodes[op_type] == 2
    a, b = run(tmp_path / "fused.onnx", PROVIDERS[1], inputs)
    assert np.count_nonzero(a != b) > 0


def test_a_file_that_onnxruntime_has_optimised(tmp_path):
    """Its constants have names that a session gives to its own of the same kind."""
    inputs = {"x": normal(2, 3, 8)}
    nodes, weights = [], {}
    for i, source in enumerate(["x", "y0", "y1"]):
        nodes.append(helper.make_node("MatMul", [source, f"w{i}"], [f"p{i}"]))
        nodes.append(helper.make_node("Add", [f"p{i}", "bias"], [f"y{i}"]))
        weights[f"w{i}"] = normal(8, 8, seed=i)
    weights["bias"] = normal(8, seed=9)
    model = model_of(nodes, inputs, {"y2": np.float32}, weights)
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    options.optimized_model_filepath = str(tmp_path / "optimised.onnx")
    onnxruntime.InferenceSession(model.SerializeToString(), options, providers=[PROVIDERS[1]])
    optimised = onnx.load(tmp_path / "optimised.onnx")
    names = {tensor.name for tensor in optimised.graph.initializer}
    assert "gemm_input_shape" in names
    # One more product, that a session still has to join with its bias.
    last = [("MatMul", ["y2", "w2"], ["p3"]), ("Add", ["p3", "bias"], ["y3"])]
    optimised.graph.node.extend(helper.make_node(*parts) for parts in last)
    held = {"w2": weights["w2"], "bias": weights["bias"]}
    optimised.graph.initializer.extend(
        numpy_helper.from_array(value, name) for name, value in held.items() if name not in names
    )
    optimised.graph.output.append(helper.make_tensor_value_info("y3", 1, [2, 3, 8]))
    want = inputs["x"]
    for i in range(3):
        want = want @ weights[f"w{i}"] + weights["bias"]
    expected = [want, want @ weights["w2"] + weights["bias"]]
    convert(optimised, tmp_path / "fused.onnx")
    inline(tmp_path / "fused.onnx", tmp_path / "plain.onnx")
    for name in ("fused.onnx", "plain.onnx"):
        for provider in PROVIDERS:
            for actual, wanted in zip(
                run(tmp_path / name, provider, inputs), expected, strict=True
            ):
                np.testing.assert_allclose(actual, wanted, rtol=0, atol=1e-5 * np.abs(wanted).max())
