"""Attention of onnxruntime with caches, and with its own projections."""

from __future__ import annotations

import numpy as np
import pytest
from comparison import MICROSOFT, check, converted, model_of
from onnx import helper

FUSED = {"NPUFusedInferAttentionScore": 1}
BATCH, HEADS, SIZE, NEW, PAST = 2, 4, 16, 3, 5


def normal(*shape, scale=1.0, seed=3):
    return (np.random.default_rng(seed).standard_normal(shape) * scale).astype(np.float32)


def mask_of(kind, total):
    """Return a mask or what is added to the scores, if the kind has one, and the others' name."""
    generator = np.random.default_rng(9)
    if kind == "keys":
        mask = (generator.random((BATCH, total)) > 0.4).astype(np.int32)
    elif kind == "queries":
        mask = (generator.random((BATCH, NEW, total)) > 0.4).astype(np.int32)
    elif kind == "added":
        return normal(1, HEADS, NEW, total, scale=2, seed=9)
    else:
        return None
    mask[..., 0] = 1
    return mask


@pytest.mark.parametrize("causal", [0, 1])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("mask", ["none", "keys", "queries", "added"])
@pytest.mark.parametrize("past", [0, PAST])
def test_multi_head_attention_with_a_cache(tmp_path, past, mask, bias, causal):
    columns = HEADS * SIZE
    inputs = {name: normal(BATCH, NEW, columns, seed=i) for i, name in enumerate("qkv")}
    inputs |= {f"past_{n}": normal(BATCH, HEADS, past, SIZE, seed=i) for i, n in enumerate("kv", 5)}
    names = ["q", "k", "v", "b" if bias else "", "", "", "past_k", "past_v"]
    if (held := mask_of(mask, past + NEW)) is not None:
        names[5 if mask == "added" else 4] = "m"
        inputs["m"] = held
    outputs = ["y", "present_k", "present_v"]
    node = helper.make_node(
        "MultiHeadAttention",
        names,
        outputs,
        domain=MICROSOFT,
        num_heads=HEADS,
        scale=0.3,
        unidirectional=causal,
    )
    weights = {"b": normal(3 * columns, seed=8)} if bias else {}
    model = model_of([node], inputs, dict.fromkeys(outputs, np.float32), weights)
    check(model, tmp_path, inputs, FUSED, 1e-5)


@pytest.mark.parametrize("outputs", [["y"], ["y", "", ""], ["y", "present_k", "present_v"]])
def test_attention_over_heads_of_an_encoder(tmp_path, outputs):
    inputs = {"q": normal(BATCH, NEW, HEADS * SIZE)}
    inputs |= {n: normal(BATCH, HEADS, PAST, SIZE, seed=i) for i, n in enumerate("kv", 5)}
    node = helper.make_node(
        "MultiHeadAttention", list(inputs), outputs, domain=MICROSOFT, num_heads=HEADS
    )
    results = {name: np.float32 for name in outputs if name}
    check(model_of([node], inputs, results), tmp_path, inputs, FUSED, 1e-5)


def in_parts(causal):
    """Return nodes of Attention of x over a past, with m added to the scores."""
    node = helper.make_node
    return [
        node("MatMul", ["x", "w"], ["xw"]),
        node("Add", ["xw", "b"], ["joint"]),
        node("Split", ["joint"], ["q", "k", "v"], axis=-1, num_outputs=3),
        node("Split", ["past"], ["one_past_k", "one_past_v"], axis=0, num_outputs=2),
        *(node("Squeeze", [f"one_{n}", "axis"], [n]) for n in ("past_k", "past_v")),
        node(
            "MultiHeadAttention",
            ["q", "k", "v", "", "", "m", "past_k", "past_v"],
            ["y", "present_k", "present_v"],
            domain=MICROSOFT,
            num_heads=HEADS,
            unidirectional=causal,
        ),
        *(node("Unsqueeze", [n, "axis"], [f"one_{n}"]) for n in ("present_k", "present_v")),
        node("Concat", ["one_present_k", "one_present_v"], ["present"], axis=0),
    ]


@pytest.mark.parametrize("causal", [0, 1])
@pytest.mark.parametrize("mask", ["none", "keys", "queries", "added"])
@pytest.mark.parametrize("past", [None, 0, PAST])
def test_attention_with_projections(tmp_path, past, mask, causal):
    columns = HEADS * SIZE
    inputs = {"x": normal(BATCH, NEW, 24)}
    weights = {"w": normal(24, 3 * columns, scale=0.3, seed=4), "b": normal(3 * columns, seed=5)}
    names, outputs = ["x", "w", "b", "", "", ""], ["y"]
    if past is not None:
        inputs["past"] = normal(2, BATCH, HEADS, past, SIZE, seed=6)
        names[4] = "past"
        outputs.append("present")
    if (held := mask_of(mask, (past or 0) + NEW)) is not None:
        names[5 if mask == "added" else 3] = "m"
        inputs["m"] = held
    while not names[-1]:
        names.pop()
    node = helper.make_node(
        "Attention", names, outputs, domain=MICROSOFT, num_heads=HEADS, unidirectional=causal
    )
    results = dict.fromkeys(outputs, np.float32)
    reference = None
    if past is not None and mask == "added":  # onnxruntime's own kernel refuses both together
        reference = model_of(in_parts(causal), inputs, results, {**weights, "axis": np.array([0])})
    model = model_of([node], inputs, results, weights)
    check(model, tmp_path, inputs, FUSED, 1e-5, reference)


def test_values_of_another_size(tmp_path):
    inputs = {"x": normal(BATCH, NEW, 24)}
    weights = {"w": normal(24, 160, scale=0.3, seed=4), "b": normal(160, seed=5)}
    node = helper.make_node(
        "Attention", ["x", "w", "b"], ["y"], domain=MICROSOFT, num_heads=HEADS,
        qkv_hidden_sizes=[64, 64, 32],
    )  # fmt: skip
    check(model_of([node], inputs, {"y": np.float32}, weights), tmp_path, inputs, FUSED, 1e-5)


@pytest.mark.parametrize(
    ("op_type", "names", "attributes", "reason"),
    [
        ("Attention", ["x", "w", "b", "lengths"], {}, "its padding is not told key by key"),
        ("Attention", ["x", "w", "b"], {"do_rotary": 1}, "it has do_rotary"),
        ("Attention", ["x", "w", "b"], {"num_heads": 0}, "its number of heads"),
        ("Attention", ["x", "w", "b"], {"num_heads": 5}, "its heads are of several sizes"),
        ("Attention", ["x", "w", "b"], {"qkv_hidden_sizes": [1, 2, 3]}, "of three projections"),
        (
            "MultiHeadAttention", ["x", "heads", "heads", "b"], {},
            "it has a bias beside heads",
        ),
        (
            "MultiHeadAttention", ["x", "x", "x", "", "", "", "heads", "heads", "lengths"], {},
            "its cache is a buffer",
        ),
    ],
)  # fmt: skip
def test_forms_without_an_equivalent_stay(tmp_path, op_type, names, attributes, reason):
    inputs = {"x": normal(BATCH, NEW, 24), "heads": normal(BATCH, 4, PAST, 6)}
    weights = {"w": normal(24, 72), "b": normal(72), "lengths": np.array([3, 2], np.int32)}
    attributes = {"num_heads": 4, **attributes}
    node = helper.make_node(op_type, names, ["y"], name="it", domain=MICROSOFT, **attributes)
    report, _ = converted(model_of([node], inputs, {"y": np.float32}, weights), tmp_path)
    assert list(report.left) == ["it"] and reason in report.left["it"]
    assert not report.converted
