"""Each rule: the converted node computes what onnxruntime's own kernel does, or is left alone.

Here are norms, rotary embeddings, activations and nodes that stay; attention, matmuls, experts and
gathers have files of their own.
"""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from comparison import (
    DTYPES,
    MICROSOFT,
    PROVIDERS,
    TOLERANCE,
    check,
    converted,
    model_of,
    normal,
    run,
    tables,
)
from onnx import helper, numpy_helper

# --- norms


@DTYPES
@pytest.mark.parametrize("op_type", ["RMSNormalization", "SimplifiedLayerNormalization"])
def test_rms_norm(tmp_path, op_type, dtype):
    inputs = {"x": normal(2, 3, 48, dtype=dtype, scale=1e-2)}
    node = helper.make_node(op_type, ["x", "gamma"], ["y"], axis=-1, epsilon=1e-4)
    model = model_of([node], inputs, {"y": dtype}, {"gamma": normal(48, dtype=dtype)}, opset=23)
    check(model, tmp_path, inputs, {"NPURmsNorm": 1}, TOLERANCE[dtype])


@DTYPES
@pytest.mark.parametrize("outputs", [["y"], ["y", "", "", "total"]])
def test_norm_of_a_sum(tmp_path, outputs, dtype):
    inputs = {name: normal(2, 3, 48, dtype=dtype, seed=i) for i, name in enumerate(("x", "skip"))}
    node = helper.make_node(
        "SkipSimplifiedLayerNormalization",
        ["x", "skip", "gamma"],
        outputs,
        domain=MICROSOFT,
        epsilon=1e-4,
    )
    results = {name: dtype for name in outputs if name}
    model = model_of([node], inputs, results, {"gamma": normal(48, dtype=dtype)})
    check(model, tmp_path, inputs, {"NPUAddRmsNorm": 1}, TOLERANCE[dtype])


@pytest.mark.parametrize("op_type", ["SkipSimplifiedLayerNormalization", "SkipLayerNormalization"])
def test_norm_of_a_small_sum_without_an_epsilon(tmp_path, op_type):
    inputs = {n: normal(2, 3, 48, scale=1e-4, seed=i) for i, n in enumerate(("x", "skip"))}
    node = helper.make_node(op_type, ["x", "skip", "gamma"], ["y"], domain=MICROSOFT)
    model = model_of([node], inputs, {"y": np.float32}, {"gamma": normal(48)})
    fused = {"NPUAddRmsNorm": 1} if "Simplified" in op_type else {}
    check(model, tmp_path, inputs, fused, TOLERANCE[np.float32])


@pytest.mark.parametrize("shape", [(3, 48), (1, 3, 48)])
def test_norm_of_a_sum_with_what_all_rows_share(tmp_path, shape):
    inputs = {"x": normal(2, 3, 48, seed=0), "skip": normal(*shape, seed=1)}
    node = helper.make_node(
        "SkipSimplifiedLayerNormalization",
        ["x", "skip", "gamma"],
        ["y", "", "", "total"],
        domain=MICROSOFT,
    )
    results = {"y": np.float32, "total": np.float32}
    model = model_of([node], inputs, results, {"gamma": normal(48)})
    check(model, tmp_path, inputs, {"NPUAddRmsNorm": 1}, TOLERANCE[np.float32])


@pytest.mark.parametrize("op_type", ["SkipSimplifiedLayerNormalization", "Add"])
@pytest.mark.parametrize("batches", [("b", "c"), (None, None), ("b", "b")])
def test_norm_of_a_sum_whose_batches_the_file_does_not_state(tmp_path, batches, op_type):
    inputs = {"x": normal(2, 3, 48, seed=0), "skip": normal(1, 3, 48, seed=1)}
    if same := batches == ("b", "b"):
        inputs["skip"] = inputs["x"]
    if op_type == "Add":
        nodes = [
            helper.make_node("Add", ["x", "skip"], ["total"]),
            helper.make_node("RMSNormalization", ["total", "gamma"], ["y"]),
        ]
    else:
        names = ["x", "skip", "gamma"], ["y", "", "", "total"]
        nodes = [helper.make_node(op_type, *names, domain=MICROSOFT)]
    results = {"y": np.float32, "total": np.float32}
    model = model_of(nodes, inputs, results, {"gamma": normal(48)}, opset=23)
    for given, batch in zip(model.graph.input, batches, strict=True):
        size = given.type.tensor_type.shape.dim[0]
        size.Clear()
        if batch is not None:
            size.dim_param = batch
    fused = {"NPUAddRmsNorm": 1} if same else {"NPURmsNorm": 1}
    check(model, tmp_path, inputs, fused, TOLERANCE[np.float32])


@DTYPES
@pytest.mark.parametrize("outputs", [["y"], ["y", "", "", "total"]])
@pytest.mark.parametrize("given", [["beta", "bias"], ["beta"], []])
def test_layer_norm_of_a_sum(tmp_path, given, outputs, dtype):
    inputs = {name: normal(2, 3, 48, dtype=dtype, seed=i) for i, name in enumerate(("x", "skip"))}
    names = ["x", "skip", "gamma", *given]
    node = helper.make_node(
        "SkipLayerNormalization", names, outputs, domain=MICROSOFT, epsilon=1e-4
    )
    weights = {name: normal(48, dtype=dtype, seed=i) for i, name in enumerate(names[2:], 5)}
    results = {name: dtype for name in outputs if name}
    report = check(
        model_of([node], inputs, results, weights), tmp_path, inputs, {}, TOLERANCE[dtype]
    )
    assert report.nodes["LayerNormalization"] == 1


@pytest.mark.parametrize("inverse", ["Reciprocal", "one over", "Div"])
@pytest.mark.parametrize("square", ["Pow", "Mul"])
@pytest.mark.parametrize("swapped", [False, True])
def test_rms_norm_written_out(tmp_path, inverse, square, swapped):
    def node(op_type, inputs, output, **attributes):
        return helper.make_node(op_type, inputs, [output], **attributes)

    def product(left, right, output):
        return node("Mul", [right, left] if swapped else [left, right], output)

    nodes = [
        node("Pow", ["x", "two"], "squares") if square == "Pow" else product("x", "x", "squares"),
        node("ReduceMean", ["squares", "axes"], "mean", keepdims=1),
        node("Add", ["epsilon", "mean"] if swapped else ["mean", "epsilon"], "shifted"),
        node("Sqrt", ["shifted"], "root"),
        *{
            "Reciprocal": [node("Reciprocal", ["root"], "r"), product("x", "r", "normed")],
            "one over": [node("Div", ["one", "root"], "r"), product("x", "r", "normed")],
            "Div": [node("Div", ["x", "root"], "normed")],
        }[inverse],
        product("normed", "gamma", "y"),
    ]
    weights = {
        "two": np.float32(2),
        "one": np.float32(1),
        "axes": np.array([2]),
        "epsilon": np.array([1e-4], np.float32),
        "gamma": normal(48),
    }
    inputs = {"x": normal(2, 3, 48, scale=1e-2)}
    model = model_of(nodes, inputs, {"y": np.float32}, weights)
    check(model, tmp_path, inputs, {"NPURmsNorm": 1}, 1e-5)


# --- rotary embeddings


@DTYPES
@pytest.mark.parametrize("interleaved", [0, 1])
@pytest.mark.parametrize(("half", "width"), [(8, 0), (4, 8)])
@pytest.mark.parametrize("shape", [(2, 4, 3, 16), (2, 3, 64)])
@pytest.mark.parametrize("domain", ["", MICROSOFT])
def test_rotary_embedding(tmp_path, domain, shape, half, width, interleaved, dtype):
    if domain and len(shape) == 3 and width:
        pytest.skip("onnxruntime's own kernel wants num_heads and a width here, and misreads it")
    cos, sin = tables(20, half, dtype)
    positions = np.array([[4, 5, 6], [0, 1, 2]])
    inputs = {"x": normal(*shape, dtype=dtype), "positions": positions}
    order = ["x", "positions", "cos", "sin"] if domain else ["x", "cos", "sin", "positions"]
    attributes = {"interleaved": interleaved, "num_heads": 4 if len(shape) == 3 or width else 0}
    node = helper.make_node(
        "RotaryEmbedding", order, ["y"], domain=domain, rotary_embedding_dim=width, **attributes
    )
    model = model_of([node], inputs, {"y": dtype}, {"cos": cos, "sin": sin}, opset=23)
    check(model, tmp_path, inputs, {"NPURotaryMul": 1}, TOLERANCE[dtype])


@pytest.mark.parametrize("split", [False, True])
def test_rotary_embedding_written_out(tmp_path, split):
    if split:
        halves = [helper.make_node("Split", ["x"], ["first", "second"], axis=-1, num_outputs=2)]
    else:
        halves = [
            helper.make_node("Slice", ["x", "zero", "half", "axes"], ["first"]),
            helper.make_node("Slice", ["x", "half", "end", "axes"], ["second"]),
        ]
    nodes = [
        *halves,
        helper.make_node("Neg", ["second"], ["negated"]),
        helper.make_node("Concat", ["negated", "first"], ["turned"], axis=3),
        helper.make_node("Mul", ["cos", "x"], ["left"]),
        helper.make_node("Mul", ["turned", "sin"], ["right"]),
        helper.make_node("Add", ["right", "left"], ["y"]),
    ]
    weights = {
        name: np.array([value])
        for name, value in {"zero": 0, "half": 8, "end": 2**62, "axes": 3}.items()
    }
    inputs = {
        name: normal(*shape, seed=i)
        for i, (name, shape) in enumerate(
            {"x": (2, 4, 3, 16), "cos": (2, 1, 3, 16), "sin": (2, 1, 3, 16)}.items()
        )
    }
    model = model_of(nodes, inputs, {"y": np.float32}, weights)
    check(model, tmp_path, inputs, {"NPURotaryMul": 1}, 1e-5)
    nodes[-4] = helper.make_node("Concat", ["first", "negated"], ["turned"], axis=3)
    report, _ = converted(model_of(nodes, inputs, {"y": np.float32}, weights), tmp_path)
    assert not any(name.startswith("npu::") for name in report.nodes)


# --- activations


@DTYPES
@pytest.mark.parametrize(
    ("op_type", "bias", "fused"),
    [
        ("Gelu", False, "NPUGeluV2"),
        ("BiasGelu", True, "NPUGeluV2"),
        ("FastGelu", False, "NPUGeluV2"),
        ("FastGelu", True, "NPUGeluV2"),
        ("QuickGelu", False, "NPUFastGelu"),
    ],
)
def test_gelu(tmp_path, op_type, bias, fused, dtype):
    if dtype == np.float16 and op_type in ("Gelu", "BiasGelu"):
        pytest.skip("onnxruntime has no float16 kernel to compare with")
    inputs = {"x": normal(3, 48, dtype=dtype, scale=3)}
    node = helper.make_node(op_type, ["x", "b"] if bias else ["x"], ["y"], domain=MICROSOFT)
    weights = {"b": normal(48, dtype=dtype)} if bias else {}
    model = model_of([node], inputs, {"y": dtype}, weights)
    check(model, tmp_path, inputs, {fused: 1}, TOLERANCE[dtype])


@pytest.mark.parametrize("form", ["Sigmoid", "Swish", "QuickGelu"])
def test_gated_mlp(tmp_path, form):
    """One matmul of the joined weights, whose halves are gate and up."""
    activation = {
        "Sigmoid": [
            helper.make_node("Sigmoid", ["gate"], ["s"]),
            helper.make_node("Mul", ["s", "gate"], ["silu"]),
        ],
        "Swish": [helper.make_node("Swish", ["gate"], ["silu"])],
        "QuickGelu": [
            helper.make_node("QuickGelu", ["gate"], ["silu"], domain=MICROSOFT, alpha=1.0)
        ],
    }[form]
    nodes = [
        helper.make_node("MatMul", ["x", "w1"], ["gate"]),
        *activation,
        helper.make_node("MatMul", ["x", "w2"], ["up"]),
        helper.make_node("Mul", ["up", "silu"], ["y"]),
    ]
    inputs = {"x": normal(2, 3, 32)}
    weights = {"w1": normal(32, 40, seed=1), "w2": normal(32, 40, seed=2)}
    model = model_of(nodes, inputs, {"y": np.float32}, weights, opset=24 if form == "Swish" else 21)
    report = check(model, tmp_path, inputs, {"NPUSwiGlu": 1}, 1e-5)
    assert report.nodes["MatMul"] == 1


def test_gated_mlp_of_a_joined_projection(tmp_path):
    nodes = [
        helper.make_node("Split", ["x"], ["gate", "up"], axis=-1, num_outputs=2),
        helper.make_node("Sigmoid", ["gate"], ["s"]),
        helper.make_node("Mul", ["gate", "s"], ["silu"]),
        helper.make_node("Mul", ["silu", "up"], ["y"]),
    ]
    inputs = {"x": normal(2, 3, 64)}
    check(model_of(nodes, inputs, {"y": np.float32}), tmp_path, inputs, {"NPUSwiGlu": 1}, 1e-5)
    nodes[-1] = helper.make_node("Mul", ["silu", "gate"], ["y"])
    report, _ = converted(model_of(nodes, inputs, {"y": np.float32}), tmp_path)
    assert not any(name.startswith("npu::") for name in report.nodes)


@pytest.mark.parametrize("division", [True, False])
@pytest.mark.parametrize("half_first", [True, False])
def test_gelu_written_out(tmp_path, division, half_first):
    def product(left, right, output):
        return helper.make_node("Mul", [left, right], [output])

    scaled = helper.make_node("Div", ["x", "root"], ["z"]) if division else product("r", "x", "z")
    last = (
        [product("half", "x", "h"), product("h", "shifted", "y")]
        if half_first
        else [product("shifted", "half", "h"), product("x", "h", "y")]
    )
    nodes = [
        scaled,
        helper.make_node("Erf", ["z"], ["e"]),
        helper.make_node("Add", ["one", "e"], ["shifted"]),
        *last,
    ]
    numbers = {"root": 2**0.5, "r": 0.5**0.5, "one": 1.0, "half": 0.5}
    weights = {name: np.float32(value) for name, value in numbers.items()}
    inputs = {"x": normal(3, 48, scale=3)}
    model = model_of(nodes, inputs, {"y": np.float32}, weights)
    check(model, tmp_path, inputs, {"NPUGeluV2": 1}, 1e-5)
    weights["half"] = np.float32(0.25)
    report, _ = converted(model_of(nodes, inputs, {"y": np.float32}, weights), tmp_path)
    assert not any(name.startswith("npu::") for name in report.nodes)


# --- what is left


def node_of(op_type, inputs, outputs=("y",), **attributes):
    return helper.make_node(op_type, inputs, list(outputs), **attributes)


@pytest.mark.parametrize(
    ("node", "reason"),
    [
        (node_of("RMSNormalization", ["x", "w"], axis=1), "spans several axes"),
        (node_of("RMSNormalization", ["x", "w"], axis=-1), "its weight is no vector"),
        (node_of("RMSNormalization", ["x", "w0"], axis=-1), "its weight is one number"),
        (
            node_of(
                "SkipSimplifiedLayerNormalization", ["x", "x", "w1", "w1"], domain=MICROSOFT
            ),
            "it has a bias",
        ),
        (node_of("QuickGelu", ["x"], domain=MICROSOFT, alpha=1.5), "its factor is 1.5"),
        (node_of("Attention", ["x4", "x4", "x4"], softcap=3.0), "its scores are capped"),
        (node_of("Attention", ["x4", "x4", "x4"], left_window_size=1), "it has a window"),
        (node_of("Attention", ["x4", "x4", "x4"], right_window_size=0), "it has a window"),
        (
            node_of("MatMulNBits", ["x", "b", "s"], domain=MICROSOFT, K=16, N=8, bits=2,
                    block_size=16),
            "its weight has 2 bits",
        ),
        (
            node_of("MatMulNBits", ["x", "b", "s"], domain=MICROSOFT, K=16, N=8, bits=8,
                    block_size=16, weight_prepacked=1),
            "its weight is in an own layout",
        ),
        *(
            (
                node_of("GroupQueryAttention", ["x", "x", "x", "", "", "bounds", "bounds"],
                        domain=MICROSOFT, num_heads=2, kv_num_heads=2, **{name: value}),
                reason,
            )
            for name, value, reason in [
                ("causal", 0, "it is not causal"),
                ("sliding_window_cache", 1, "it has sliding_window_cache"),
            ]
        ),
        (
            node_of("MatMulNBits", ["x1", "b", "s"], domain=MICROSOFT, K=16, N=8, bits=8,
                    block_size=16),
            "its input is a vector",
        ),
        (
            node_of("MultiHeadAttention", ["x", "x", "x", "", "bounds"], domain=MICROSOFT,
                    num_heads=2),
            "its padding is not told by the lengths of rows alone",
        ),
        (
            node_of("MultiHeadAttention", ["x"], domain=MICROSOFT, num_heads=2),
            "its projections are packed",
        ),
        (
            node_of("MultiHeadAttention", ["x", "x", "x"], domain=MICROSOFT, num_heads=3),
            "its heads are of several sizes",
        ),
        (
            node_of("MatMulNBits", ["x", "b", "s"], domain=MICROSOFT, K=16, N=8000, bits=4,
                    block_size=16),
            "has not the size that it tells",
        ),
        (
            node_of("MatMulNBits", ["x", "b", "s"], domain=MICROSOFT, K="a", N=8, bits=4,
                    block_size=16),
            "it is malformed",
        ),
    ],
)  # fmt: skip
def test_what_has_no_equivalent_stays_with_a_reason(tmp_path, node, reason):
    inputs = {"x": normal(2, 3, 16), "x1": normal(16), "x4": normal(2, 4, 3, 16)}
    weights = {
        "bounds": np.array([3, 2, 0, 0], np.int32),
        "w": normal(3, 16),
        "w1": normal(16),
        "w0": normal(1),
        "b": np.zeros((8, 1, 16), np.uint8),
        "s": np.ones(8, np.float32),
    }
    node.name = "it"
    report, path = converted(
        model_of([node], inputs, {"y": np.float32}, weights, opset=23), tmp_path
    )
    assert list(report.left) == ["it"] and reason in report.left["it"]
    assert not report.converted
    assert [n.op_type for n in onnx.load(path).graph.node if n.name == "it"] == [node.op_type]


def test_nodes_of_branches_are_converted_and_counted(tmp_path):
    def branch(node):
        return helper.make_graph(
            [node], "b", [], [helper.make_tensor_value_info(node.output[0], 1, None)]
        )

    nodes = [
        node_of(
            "If",
            ["normed"],
            then_branch=branch(node_of("RMSNormalization", ["x", "w"], ["t"], axis=-1)),
            else_branch=branch(node_of("Identity", ["x"], ["e"])),
        )
    ]
    inputs = {"x": normal(2, 3, 16), "normed": np.array(True)}
    model = model_of(nodes, inputs, {"y": np.float32}, {"w": normal(16)}, opset=23)
    report = check(model, tmp_path, inputs, {"NPURmsNorm": 1}, TOLERANCE[np.float32])
    assert report.converted == {"RMSNormalization": 1}


def test_inputs_that_are_outputs_keep_their_names(tmp_path):
    inputs = {"x": normal(2, 3, 16)}
    node = node_of("RMSNormalization", ["x", "w"], axis=-1)
    model = model_of(
        [node], inputs, {"x": np.float32, "y": np.float32}, {"w": normal(16)}, opset=23
    )
    check(model, tmp_path, inputs, {"NPURmsNorm": 1}, TOLERANCE[np.float32])
    graph = onnx.load(tmp_path / "converted.onnx").graph
    assert [value.name for value in graph.input] == ["x"]
    assert [value.name for value in graph.output] == ["x", "y"]


@DTYPES
def test_types_behind_nodes_of_onnxruntime_are_known(tmp_path, dtype):
    """A file of its optimizer, which states no types between: norms, products, GELU."""
    nodes = [
        node_of("SkipLayerNormalization", ["x", "x", "gamma"], ["normed"], domain=MICROSOFT),
        node_of("MatMul", ["normed", "w"], ["wide"]),
        node_of("FastGelu", ["wide", "bias"], domain=MICROSOFT),
    ]
    inputs = {"x": normal(2, 3, 16, dtype=dtype)}
    weights = {name: normal(*shape, dtype=dtype) for name, shape in
               {"gamma": (16,), "w": (16, 24), "bias": (24,)}.items()}  # fmt: skip
    model = model_of(nodes, inputs, {"y": dtype}, weights)
    check(model, tmp_path, inputs, {"NPUGeluV2": 1}, TOLERANCE[dtype])


def test_what_follows_a_node_of_an_unknown_type_stays(tmp_path):
    """Its operands' types are not known, nor is whether there is a fused form of them."""
    nodes = [
        node_of("Normalizer", ["x"], ["normed"], domain="ai.onnx.ml", norm="L2"),
        node_of("Gelu", ["normed"], ["z"], domain=MICROSOFT),
        node_of("SkipLayerNormalization", ["z", "z", "gamma"], domain=MICROSOFT),
    ]
    inputs = {"x": normal(3, 16)}
    model = model_of(nodes, inputs, {"y": np.float32}, {"gamma": normal(16)})
    model.opset_import.append(helper.make_opsetid("ai.onnx.ml", 3))
    report, path = converted(model, tmp_path)
    assert all("the element type of" in reason for reason in report.left.values())
    assert len(report.left) == 2
    for provider in PROVIDERS:
        actual, expected = (run(file, provider, inputs)[0] for file in (path, model))
        np.testing.assert_allclose(actual, expected, rtol=0, atol=1e-5)


def test_float64_stays(tmp_path):
    """Fused operators have at most the precision of float32."""
    nodes = [
        node_of("Mul", ["x", "x"], ["squares"]),
        node_of("ReduceMean", ["squares", "axes"], ["mean"], keepdims=1),
        node_of("Add", ["mean", "epsilon"], ["shifted"]),
        node_of("Sqrt", ["shifted"], ["root"]),
        node_of("Div", ["x", "root"], ["normed"]),
        node_of("Mul", ["normed", "gamma"]),
    ]
    gamma = normal(16, dtype=np.float64)
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", onnx.TensorProto.DOUBLE, [3, 16])],
        [helper.make_tensor_value_info("y", onnx.TensorProto.DOUBLE, [3, 16])],
        [
            numpy_helper.from_array(value, name)
            for name, value in {
                "axes": np.array([1]),
                "epsilon": np.array([1e-5]),
                "gamma": gamma,
            }.items()
        ],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    report, _ = converted(model, tmp_path)
    assert not any(name.startswith("npu::") for name in report.nodes)
    assert list(report.left.values()) == ["Mul: the fused operator has no float64 form"]
