"""What onnxruntime's optimizers make of encoders: embeddings, scaled products, rows' lengths."""

from __future__ import annotations

import numpy as np
import pytest
from comparison import DTYPES, MICROSOFT, TOLERANCE, check, converted, model_of, normal
from onnx import helper

ATTENTION = {"NPUFusedInferAttentionScore": 1}
IDS = np.array([[3, 1, 4, 1, 5], [9, 2, 6, 5, 3]], np.int32)
MASK = np.array([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]], np.int32)
TABLES = {"words": (10, 16), "places": (7, 16), "kinds": (2, 16), "gamma": (16,), "beta": (16,)}


def weights_of(dtype=np.float32):
    return {
        name: normal(*shape, dtype=dtype, seed=i) for i, (name, shape) in enumerate(TABLES.items())
    }


@DTYPES
@pytest.mark.parametrize("segments", [False, True])
@pytest.mark.parametrize(
    "outputs", [["y", ""], ["y", "n"], ["y", "", "total"], ["y", "n", "total"]]
)
@pytest.mark.parametrize("at", [False, True])
def test_embeddings_and_their_norm(tmp_path, outputs, segments, at, dtype):
    inputs = {"ids": IDS}
    if "n" in outputs:
        inputs["mask"] = MASK
    if segments:
        inputs["segments"] = 1 - MASK
    if at:
        inputs["at"] = IDS[:, ::-1] % 7
    names = ["ids", "segments", "words", "places", "kinds", "gamma", "beta", "mask", "at"]
    weights = weights_of(dtype)
    if not segments:
        weights.pop("kinds")
    names = [name if name in inputs or name in weights else "" for name in names]
    node = helper.make_node(
        "EmbedLayerNormalization", names, outputs, domain=MICROSOFT, epsilon=1e-3
    )
    results = {name: np.int32 if name == "n" else dtype for name in outputs if name}
    report = check(
        model_of([node], inputs, results, weights), tmp_path, inputs, {}, TOLERANCE[dtype]
    )
    assert report.nodes["LayerNormalization"] == 1


def test_lengths_of_rows_without_a_mask_stay(tmp_path):
    names = ["ids", "", "words", "places", "", "gamma", "beta"]
    node = helper.make_node(
        "EmbedLayerNormalization", names, ["y", "n"], name="it", domain=MICROSOFT
    )
    weights = weights_of()
    weights.pop("kinds")
    model = model_of([node], {"ids": IDS}, {"y": np.float32, "n": np.int32}, weights)
    report, _ = converted(model, tmp_path)
    assert report.left == {
        "it": "EmbedLayerNormalization: its lengths are used, and it has no mask"
    }


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
    weights = weights_of()
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
    for given in model.graph.input:
        given.type.tensor_type.shape.dim[0].dim_param = "rows"
    check(model, tmp_path, inputs, {"NPUFusedInferAttentionScore": 2}, 1e-5)


@pytest.mark.parametrize("alpha", [1.0, 0.25])
@pytest.mark.parametrize("flags", [(0, 0), (0, 1), (1, 0), (1, 1)])
def test_scaled_and_transposed_products(tmp_path, flags, alpha):
    inputs = {
        "a": normal(*((2, 3, 6, 5) if flags[0] else (2, 3, 5, 6)), seed=1),
        "b": normal(*((3, 4, 6) if flags[1] else (3, 6, 4)), seed=2),
    }
    node = helper.make_node(
        "FusedMatMul", ["a", "b"], ["y"], domain=MICROSOFT, alpha=alpha, transA=flags[0],
        transB=flags[1],
    )  # fmt: skip
    report = check(model_of([node], inputs, {"y": np.float32}), tmp_path, inputs, {}, 1e-5)
    assert report.nodes["MatMul"] == 1 and report.nodes.get("Transpose", 0) == sum(flags)


def test_attention_whose_product_is_scaled_by_its_node(tmp_path):
    inputs = {name: normal(2, 4, 5, 8, seed=i) for i, name in enumerate("qkv")}
    inputs["m"] = np.where(MASK, 0, -1e9).astype(np.float32)[:, None, None]
    nodes = [
        helper.make_node(
            "FusedMatMul", ["q", "k"], ["p"], domain=MICROSOFT, alpha=8**-0.5, transB=1
        ),
        helper.make_node("Add", ["p", "m"], ["scores"]),
        helper.make_node("Softmax", ["scores"], ["weights"]),
        helper.make_node("MatMul", ["weights", "v"], ["y"]),
    ]
    check(model_of(nodes, inputs, {"y": np.float32}), tmp_path, inputs, ATTENTION, 1e-5)


def test_the_shape_of_a_norm_of_the_optimizer_is_known(tmp_path):
    """A product behind it is transposed, for which its number of axes has to be known."""
    inputs, gamma = {"x": normal(2, 5, 16)}, normal(16, seed=4)
    nodes = [
        helper.make_node("SimplifiedLayerNormalization", ["x", "gamma"], ["n"], axis=-1),
        helper.make_node("FusedMatMul", ["n", "n"], ["y"], domain=MICROSOFT, transB=1),
    ]
    model = model_of(nodes, inputs, {"y": np.float32}, {"gamma": gamma})
    check(model, tmp_path, inputs, {"NPURmsNorm": 1}, 1e-5)


def test_products_over_another_axis_of_batches_stay(tmp_path):
    inputs = {"a": normal(5, 2, 6), "b": normal(2, 6, 4)}
    node = helper.make_node(
        "FusedMatMul", ["a", "b"], ["y"], name="it", domain=MICROSOFT, transBatchA=1
    )
    report, _ = converted(model_of([node], inputs, {"y": np.float32}), tmp_path)
    assert report.left == {"it": "FusedMatMul: it moves an axis of batches"}
