"""What onnxruntime's optimizers make of encoders: scaled products, lengths of rows."""

from __future__ import annotations

import numpy as np
import pytest
from comparison import MICROSOFT, PROVIDERS, check, converted, model_of, normal, run
from onnx import helper

ATTENTION = {"NPUFusedInferAttentionScore": 1}
IDS = np.array([[3, 1, 4, 1, 5], [9, 2, 6, 5, 3]], np.int32)
MASK = np.array([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]], np.int32)


@pytest.mark.parametrize("causal", [0, 1])
@pytest.mark.parametrize("projected", [True, False])
def test_keys_behind_the_length_of_a_row_are_hidden(tmp_path, projected, causal):
    inputs = {"x": normal(2, 5, 16), "lengths": np.array([5, 3], np.int32)}
    weights = {"w": normal(16, 48, scale=0.3, seed=4), "b": normal(48, seed=5)}
    names = ["x", "w", "b", "lengths"] if projected else ["x", "x", "x", "", "lengths"]
    node = helper.make_node(
        "Attention" if projected else "MultiHeadAttention", names, ["y"], domain=MICROSOFT,
        num_heads=4, unidirectional=causal,
    )  # fmt: skip
    model = model_of([node], inputs, {"y": np.float32}, weights if projected else {})
    check(model, tmp_path, inputs, ATTENTION, 1e-5)


def test_an_encoder_of_the_optimizer(tmp_path):
    """No type or shape is stated between the embeddings and the second attention."""
    tables = {"words": (10, 16), "places": (7, 16), "kinds": (2, 16), "gamma": (16,), "beta": (16,)}
    weights = {name: normal(*shape, seed=i) for i, (name, shape) in enumerate(tables.items())}
    weights |= {"w": normal(16, 48, scale=0.3, seed=7), "b": normal(48, seed=8)}
    names = ["ids", "segments", "words", "places", "kinds", "gamma", "beta", "mask"]
    nodes = [
        helper.make_node("EmbedLayerNormalization", names, ["x", "lengths"], domain=MICROSOFT),
        *(
            helper.make_node(
                "Attention", [source, "w", "b", "lengths"], [result], domain=MICROSOFT, num_heads=4
            )
            for source, result in (("x", "z"), ("z", "y"))
        ),
    ]
    inputs = {"ids": IDS, "segments": 1 - MASK, "mask": MASK}
    model = model_of(nodes, inputs, {"y": np.float32}, weights)
    for value in model.graph.input:
        value.type.tensor_type.shape.dim[0].dim_param = "rows"
    report, path = converted(model, tmp_path)
    assert report.nodes["npu::NPUFusedInferAttentionScore"] == 2
    (expected,) = run(model, PROVIDERS[1], inputs)
    for provider in PROVIDERS:
        (y,) = run(path, provider, inputs)
        np.testing.assert_allclose(y, expected, rtol=0, atol=1e-5 * np.abs(expected).max())


def products(inputs, transposed, **attributes):
    key = [] if transposed else [helper.make_node("Transpose", ["k"], ["kt"], perm=[0, 1, 3, 2])]
    inputs["m"] = np.where(MASK, 0, -1e9).astype(np.float32)[:, None, None]
    nodes = [
        *key,
        helper.make_node(
            "FusedMatMul", ["q", "k" if transposed else "kt"], ["p"], name="it", domain=MICROSOFT,
            alpha=8**-0.5, transB=int(transposed), **attributes,
        ),
        helper.make_node("Add", ["p", "m"], ["scores"]),
        helper.make_node("Softmax", ["scores"], ["weights"]),
        helper.make_node("MatMul", ["weights", "v"], ["y"], name="last"),
    ]  # fmt: skip
    return model_of(nodes, inputs, {"y": np.float32})


@pytest.mark.parametrize("transposed", [False, True])
def test_attention_whose_product_is_scaled_by_its_node(tmp_path, transposed):
    inputs = {name: normal(2, 4, 5, 8, seed=i) for i, name in enumerate("qkv")}
    check(products(inputs, transposed), tmp_path, inputs, ATTENTION, 1e-5)


def test_attention_of_another_axis_of_batches_stays(tmp_path):
    inputs = {name: normal(4, 5, 2, 8, seed=i) for i, name in enumerate("qkv")}
    inputs["v"] = normal(2, 4, 5, 8, seed=2)
    report, _ = converted(products(inputs, True, transBatchA=1, transBatchB=1), tmp_path)
    assert report.left == {"last": "MatMul: its scores are of an unknown form"}
    assert report.nodes["com.microsoft::FusedMatMul"] == 1


def test_the_shape_of_a_norm_of_the_optimizer_is_known(tmp_path):
    """Heads are parts of the columns of its result, of which a bias or a view may follow."""
    weight = normal(16, 48, scale=0.3, seed=4)
    nodes = [
        helper.make_node("SimplifiedLayerNormalization", ["x", "gamma"], ["n"], axis=-1),
        helper.make_node("Attention", ["n", "w", "b"], ["y"], domain=MICROSOFT, num_heads=4),
    ]
    inputs = {"x": normal(2, 5, 16)}
    weights = {"gamma": normal(16, seed=4), "w": weight, "b": normal(48, seed=5)}
    fused = {**ATTENTION, "NPURmsNorm": 1}
    check(model_of(nodes, inputs, {"y": np.float32}, weights), tmp_path, inputs, fused, 1e-5)
