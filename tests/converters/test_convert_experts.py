"""Experts of onnxruntime become gating, routing and grouped matmuls that compute the same."""

from __future__ import annotations

import numpy as np
import onnxruntime_npu
import pytest
from comparison import MICROSOFT, PROVIDERS, check, converted, model_of, normal, run
from onnx import helper
from onnxruntime import InferenceSession

TOKENS, HIDDEN, INNER, EXPERTS, BEST = 6, 32, 64, 4, 2
FUSED = {
    "NPUMoeGatingTopKSoftmax": 1,
    "NPUMoeInitRoutingV2": 1,
    "NPUGroupedMatmul": 2,
    "NPUMoeFinalizeRouting": 1,
}


def inputs_of(shape, dtype=np.float32):
    return {
        "x": normal(*shape, HIDDEN, dtype=dtype),
        "logits": normal(TOKENS, EXPERTS, scale=2, seed=4, dtype=dtype),
    }


def experts(activation, bias, **attributes):
    """Return a MoE node and its weights."""
    columns = 2 * INNER if activation == "swiglu" else INNER
    weights = {
        "up": normal(EXPERTS, columns, HIDDEN, scale=0.2, seed=5),
        "up_bias": normal(EXPERTS, columns, seed=6),
        "down": normal(EXPERTS, HIDDEN, INNER, scale=0.2, seed=7),
        "down_bias": normal(EXPERTS, HIDDEN, seed=8),
    }
    names = ["up", "up_bias" if bias else "", "down", "down_bias" if bias else ""]
    node = helper.make_node(
        "MoE",
        ["x", "logits", *names],
        ["y"],
        domain=MICROSOFT,
        k=BEST,
        activation_type=activation,
        swiglu_fusion=int(activation == "swiglu"),
        **attributes,
    )
    return node, {name: weights[name] for name in names if name}


@pytest.mark.parametrize("shape", [(TOKENS,), (2, 3)])
@pytest.mark.parametrize("normalised", [0, 1])
@pytest.mark.parametrize("activation", ["relu", "gelu", "silu", "identity", "swiglu"])
def test_experts(tmp_path, activation, normalised, shape):
    node, weights = experts(activation, bias=True, normalize_routing_weights=normalised)
    inputs = inputs_of(shape)
    fused = FUSED | ({"NPUSwiGlu": 1} if activation == "swiglu" else {})
    check(model_of([node], inputs, {"y": np.float32}, weights), tmp_path, inputs, fused, 1e-5)


@pytest.mark.parametrize("limits", [{}, {"swiglu_limit": 0.5}])
def test_gate_of_gpt_oss(tmp_path, limits):
    node, weights = experts(
        "swiglu", bias=False, activation_alpha=1.702, activation_beta=1.0, **limits
    )
    inputs = inputs_of((TOKENS,))
    model = model_of([node], inputs, {"y": np.float32}, weights)
    check(model, tmp_path, inputs, FUSED, 1e-5)
    session = InferenceSession(tmp_path / "converted.onnx", providers=[PROVIDERS[0]])
    rows = onnxruntime_npu.assignment(session)
    assert {row["provider"] for row in rows} == {PROVIDERS[0]}, rows


# --- weights of integers


def packed(integers, bits):
    if bits == 8:
        return integers.astype(np.uint8)
    integers = np.pad(integers, [(0, 0)] * (integers.ndim - 1) + [(0, integers.shape[-1] % 2)])
    return (integers[..., ::2] | integers[..., 1::2] << 4).astype(np.uint8)


def layer(name, columns, depth, bits, block, zeros, dtype, seed):
    """Return the initializers of integers [E, N, K], and the weights that they mean."""
    generator = np.random.default_rng(seed)
    most, blocks = 1 << bits, depth // block if block else 1
    integers = generator.integers(0, most, (EXPERTS, columns, depth))
    scales = (generator.uniform(0.5, 1, (EXPERTS, columns, blocks)) / most).astype(dtype)
    points = np.full(scales.shape, most // 2)
    if zeros:
        points = generator.integers(0, most, scales.shape)
    spread = [np.repeat(v, depth // blocks, axis=2) for v in (points, scales.astype(np.float64))]
    last = (slice(None),) * 2 if block else (slice(None), slice(None), 0)
    made = {name: packed(integers, bits), f"{name}_scales": scales[last]}
    if zeros:
        made[f"{name}_zeros"] = packed(points[last], bits)
    return made, (integers - spread[0]) * spread[1]


def quantised(bits, block, zeros, dtype=np.float32, own_weights=False, **attributes):
    """Return a model of a QMoE node, its inputs, and its exact result."""
    up, exact_up = layer("up", 2 * INNER, HIDDEN, bits, block, zeros, dtype, 5)
    down, exact_down = layer("down", HIDDEN, INNER, bits, block, zeros, dtype, 6)
    bias = normal(EXPERTS, 2 * INNER, seed=7, dtype=dtype)
    names = ["x", "logits", "up", "up_scales", "bias", "down", "down_scales", "", "", "", ""]
    names += ["up_zeros", "down_zeros", ""] if zeros else ["", "", ""]
    inputs = inputs_of((TOKENS,), dtype)
    if own_weights:
        inputs["weights"] = np.random.default_rng(9).random((TOKENS, EXPERTS)).astype(dtype)
        names.append("weights")
    while not names[-1]:
        names.pop()
    if block:
        attributes["block_size"] = block
    node = helper.make_node(
        "QMoE",
        names,
        ["y"],
        domain=MICROSOFT,
        k=BEST,
        activation_type="swiglu",
        swiglu_fusion=1,
        expert_weight_bits=bits,
        **attributes,
    )
    model = model_of([node], inputs, {"y": dtype}, {**up, **down, "bias": bias})
    exact = np.zeros((TOKENS, HIDDEN))
    for token, (x, logits) in enumerate(zip(inputs["x"], inputs["logits"], strict=True)):
        best = np.argsort(-logits.astype(np.float64))[:BEST]
        shares = inputs["weights"][token] if own_weights else np.exp(logits.astype(np.float64))
        for expert in best:
            both = exact_up[expert] @ x.astype(np.float64) + bias[expert]
            hidden = both[::2] / (1 + np.exp(-both[::2])) * both[1::2]
            exact[token] += shares[expert] / shares[best].sum() * (exact_down[expert] @ hidden)
    return model, inputs, exact


@pytest.mark.parametrize("own_weights", [False, True])
@pytest.mark.parametrize(
    ("bits", "block", "zeros", "dtype"),
    [
        (4, 32, False, np.float32),
        (4, 32, True, np.float16),
        (4, 0, True, np.float32),
        (8, 32, True, np.float32),
        (8, 0, False, np.float16),
        (8, 0, True, np.float32),
    ],
)
def test_experts_of_integers(tmp_path, bits, block, zeros, dtype, own_weights):
    model, inputs, exact = quantised(
        bits, block, zeros, dtype, own_weights, normalize_routing_weights=1
    )
    report, path = converted(model, tmp_path)
    fused = {k.removeprefix("npu::"): n for k, n in report.nodes.items() if k.startswith("npu::")}
    assert fused == FUSED | {"NPUSwiGlu": 1} and report.without_body == []
    # Rounded are rows, scales and scaled weights of both matmuls, their results, the gate's and the
    # sum: by 2 ** -9 each to bfloat16 if x is of float32, by 2 ** -11 to float16.
    bound = 10 * (2**-9 if dtype == np.float32 else 2**-11) * np.linalg.norm(exact)
    # onnxruntime itself rounds the rows of blocks of 8 bits to int8.
    theirs = run(model, PROVIDERS[1], inputs)[0]
    assert np.linalg.norm(theirs - exact) <= bound
    for provider in PROVIDERS:
        (actual,) = run(path, provider, inputs)
        assert actual.dtype == dtype and actual.shape == exact.shape
        assert np.linalg.norm(actual - exact) <= bound, provider


@pytest.mark.parametrize(
    ("activation", "attributes", "reason"),
    [
        ("swiglu", {"use_sparse_mixer": 1}, "a sparse mixer"),
        ("tanh", {}, "its activation is tanh"),
    ],
)
def test_experts_without_an_equivalent_stay(tmp_path, activation, attributes, reason):
    node, weights = experts(activation, bias=False, **attributes)
    refused(model_of([node], inputs_of((TOKENS,)), {"y": np.float32}, weights), tmp_path, reason)


@pytest.mark.parametrize(
    ("attributes", "reason"),
    [
        ({"normalize_routing_weights": 0}, "kernel ignores"),
        ({"weights_prepacked": 1}, "an own layout"),
        ({"quant_type": "fp4"}, "its weights are fp4"),
        ({"fc1_expert_weight_bits": 2}, "its weight has 2 bits"),
        ({"fc2_expert_weight_bits": 4}, "its scales have not the size that it tells"),
    ],
)
def test_experts_of_integers_without_an_equivalent_stay(tmp_path, attributes, reason):
    attributes = {"normalize_routing_weights": 1, **attributes}
    refused(quantised(8, 32, False, **attributes)[0], tmp_path, reason)


def refused(model, folder, reason):
    """Convert, and expect that the node stays, and why."""
    (node,) = model.graph.node
    node.name = "it"
    report, _ = converted(model, folder)
    assert list(report.left) == ["it"] and reason in report.left["it"]
    assert not report.converted and report.nodes == {f"{MICROSOFT}::{node.op_type}": 1}
