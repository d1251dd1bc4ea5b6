"""MoE and QMoE against experts in float64 by NumPy, and against the CPU provider."""

from __future__ import annotations

import numpy as np
import pytest
from onnx_nodes import Node, make_model, make_session, npu_nodes, random, run_cpu, run_npu
from onnxruntime.capi.onnxruntime_pybind11_state import Fail, InvalidArgument, RuntimeException
from test_microsoft_matmul_nbits import packed

MICROSOFT = "com.microsoft"
TOKENS, HIDDEN, INNER, EXPERTS, BEST = 7, 32, 48, 5, 2
# Products of up to 48 terms, the activation and the second product, each rounded to the type.
NEAR = {"float32": 3e-6, "float16": 4e-3, "bfloat16": 3e-2}
GATES = {"apart": 0, "interleaved": 1, "behind": 2}


def activated(kind: str, gate: np.ndarray, linear: np.ndarray | None, options: dict) -> np.ndarray:
    if kind == "swiglu":
        limit = options.get("swiglu_limit", np.inf)
        gate, linear = np.minimum(gate, limit), np.clip(linear, -limit, limit)
        alpha = options.get("activation_alpha", 1.0)
        return gate / (1 + np.exp(-alpha * gate)) * (linear + options.get("activation_beta", 0.0))
    cube = gate + 0.044715 * gate**3
    value = {
        "identity": gate,
        "relu": np.maximum(gate, 0),
        "silu": gate / (1 + np.exp(-gate)),
        "gelu": 0.5 * gate * (1 + np.tanh(np.sqrt(2 / np.pi) * cube)),
    }[kind]
    return value if linear is None else value * linear


def expected(x, logits, layers, kind, options, shares=None, normalized=False) -> np.ndarray:
    """Layers are (weight [E, N, K], bias [E, N]): first, second, third or None."""
    rows, logits = x.astype(np.float64).reshape(-1, HIDDEN), logits.astype(np.float64)
    soft = np.exp(logits - logits.max(-1, keepdims=True))
    soft = soft / soft.sum(-1, keepdims=True) if shares is None else shares.astype(np.float64)
    (up, up_bias), (down, down_bias), third = layers
    out = np.zeros_like(rows)
    for token, row in enumerate(rows):
        best = np.argsort(-logits[token], kind="stable")[: options["k"]]
        total = soft[token, best].sum() if normalized else 1
        for e in best:
            product = up[e] @ row + up_bias[e]
            if third is not None:
                gate, linear = product, third[0][e] @ row + third[1][e]
            elif kind != "swiglu":
                gate, linear = product, None
            elif options["swiglu_fusion"] == 1:
                gate, linear = product[::2], product[1::2]
            else:
                gate, linear = np.split(product, 2)
            made = down[e] @ activated(kind, gate, linear, options) + down_bias[e]
            out[token] += soft[token, e] / total * made
    return out.reshape(x.shape)


def assert_near(got: np.ndarray, wanted: np.ndarray, dtype: str) -> None:
    assert got.shape == wanted.shape
    near = NEAR[dtype] * np.abs(wanted).max()
    np.testing.assert_allclose(got.astype(np.float64), wanted, rtol=0, atol=near)


def inputs_of(rng, dtype: str, *lead: int) -> tuple[np.ndarray, np.ndarray]:
    tokens = int(np.prod(lead))
    return random(rng, dtype, *lead, HIDDEN, low=-1, high=1), random(rng, dtype, tokens, EXPERTS)


def float_layers(rng, dtype: str, columns: int, third: bool) -> list:
    def layer(n, k):
        return random(rng, dtype, EXPERTS, n, k, low=-1, high=1), random(rng, dtype, EXPERTS, n)

    return [layer(columns, HIDDEN), layer(HIDDEN, INNER), layer(INNER, HIDDEN) if third else None]


@pytest.mark.parametrize("constant", [(), (2, 4, 6)])
@pytest.mark.parametrize("kind, gate", [
    ("identity", None), ("relu", None), ("gelu", None), ("silu", None), ("silu", "apart"),
    ("swiglu", "apart"), ("swiglu", "interleaved"), ("swiglu", "behind"),
])  # fmt: skip
def test_experts_of_floats(kind, gate, constant) -> None:
    for dtype, lead, normalized in [
        ("float32", (TOKENS,), 0),
        ("float16", (2, 3), 1),
        ("bfloat16", (4,), 1),
    ]:
        rng = np.random.default_rng(1)
        x, logits = inputs_of(rng, dtype, *lead)
        columns = 2 * INNER if gate in ("interleaved", "behind") else INNER
        layers = float_layers(rng, dtype, columns, gate == "apart")
        options = {"k": BEST, "normalize_routing_weights": normalized}
        if kind == "swiglu":
            options |= {"swiglu_fusion": GATES[gate], "activation_alpha": 1.5,
                        "activation_beta": 0.5, "swiglu_limit": 3.0}  # fmt: skip
        given = [x, logits, *layers[0], *layers[1], *(layers[2] or ())]
        fixed = tuple(i for i in constant if i < len(given))
        got = run_npu(
            "MoE", given, domain=MICROSOFT, constant=fixed, activation_type=kind, **options
        )
        wide = [tuple(a.astype(np.float64) for a in each) if each else None for each in layers]
        wanted = expected(x, logits, wide, kind, options, normalized=bool(normalized))
        assert_near(got[0], wanted, dtype)


@pytest.mark.parametrize("normalized", [0, 1])
def test_experts_against_the_cpu(normalized) -> None:
    rng = np.random.default_rng(2)
    x, logits = inputs_of(rng, "float32", 600)  # more rows of an expert than are computed at a time
    layers = float_layers(rng, "float32", 2 * INNER, False)
    given = [x, logits, *layers[0], *layers[1]]
    options = {"k": 4, "normalize_routing_weights": normalized, "activation_type": "swiglu",
               "swiglu_fusion": 1, "domain": MICROSOFT, "constant": (2, 4)}  # fmt: skip
    wanted = run_cpu("MoE", given, **options)[0]
    assert_near(run_npu("MoE", given, **options)[0], wanted, "float32")


def integer_layer(rng, dtype: str, n: int, k: int, bits: int, block: int, zeros: bool):
    """Weight, scales, zero points as a node takes them, and the weight that they mean."""
    blocks = k // block if block else 1
    values = rng.integers(0, 2**bits, (EXPERTS, n, k))
    scales = (random(rng, dtype, EXPERTS, n, blocks, low=0.5, high=1) / 2**bits).astype(
        random(rng, dtype, 1).dtype
    )
    points = np.full(scales.shape, 2 ** (bits - 1))
    if zeros:
        points = rng.integers(0, 2**bits, scales.shape)
    meant = values - np.repeat(points, k // blocks, -1)
    meant = meant * np.repeat(scales.astype(np.float64), k // blocks, -1)
    last = ... if block else (..., 0)
    given_points = packed(points[last].astype(np.uint8), bits) if zeros else None
    return packed(values.astype(np.uint8), bits), scales[last].copy(), given_points, meant


@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("block", [0, 16])
@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_experts_of_integers(dtype, zeros, block, bits) -> None:
    rng = np.random.default_rng(bits)
    x, logits = inputs_of(rng, dtype, TOKENS)
    up = integer_layer(rng, dtype, 2 * INNER, HIDDEN, bits, block, zeros)
    down = integer_layer(rng, dtype, HIDDEN, INNER, bits, block, zeros)
    bias = random(rng, dtype, EXPERTS, 2 * INNER)
    shares = random(rng, dtype, TOKENS, EXPERTS, low=0, high=1)
    given = [x, logits, up[0], up[1], bias, down[0], down[1], None, None, None, None,
             up[2], down[2], None, shares]  # fmt: skip
    options = {"k": BEST, "swiglu_fusion": 1}
    attributes = options | {
        "activation_type": "swiglu",
        "expert_weight_bits": bits,
        "domain": MICROSOFT,
    }
    if block:
        attributes["block_size"] = block
    fixed = tuple(i for i in (2, 3, 5, 6, 11, 12) if given[i] is not None)
    layers = [(up[3], bias.astype(np.float64)), (down[3], np.zeros((EXPERTS, HIDDEN))), None]
    got = run_npu("QMoE", given, constant=fixed, **attributes)[0]
    assert_near(got, expected(x, logits, layers, "swiglu", options, shares), dtype)
    # Without router_weights the shares of the best experts add up to 1.
    got = run_npu("QMoE", given[:-1] if zeros else given[:7], constant=fixed, **attributes)[0]
    layers[0] = (up[3], layers[0][1])
    assert_near(got, expected(x, logits, layers, "swiglu", options, normalized=True), dtype)


def test_layers_of_different_widths_and_a_third_one() -> None:
    rng = np.random.default_rng(5)
    x, logits = inputs_of(rng, "float32", TOKENS)
    sizes = [(INNER, HIDDEN, 4), (HIDDEN, INNER, 8), (INNER, HIDDEN, 2)]
    made = [integer_layer(rng, "float32", n, k, bits, 16, False) for n, k, bits in sizes]
    given = [x, logits]
    for weight, scales, _, _ in made:
        given += [weight, scales, None]
    names = [f"fc{i + 1}_expert_weight_bits" for i in range(3)]
    widths = dict(zip(names, (4, 8, 2), strict=True))
    got = run_npu("QMoE", given[:-1], constant=(2, 3, 5, 6, 8, 9), k=BEST, activation_type="swiglu",
                  block_size=16, domain=MICROSOFT, **widths)[0]  # fmt: skip
    layers = [(m[3], np.zeros((EXPERTS, n))) for m, (n, _, _) in zip(made, sizes, strict=True)]
    wanted = expected(x, logits, layers, "swiglu", {"k": BEST}, normalized=True)
    assert_near(got, wanted, "float32")


@pytest.mark.parametrize("attributes", [
    {"use_sparse_mixer": 1}, {"activation_type": "tanh"}, {"quant_type": "fp4"},
    {"weights_prepacked": 1}, {"expert_weight_bits": 3},
])  # fmt: skip
def test_what_is_not_implemented_is_not_claimed(attributes) -> None:
    rng = np.random.default_rng(6)
    x, logits = inputs_of(rng, "float32", TOKENS)
    up = integer_layer(rng, "float32", INNER, HIDDEN, 4, 16, False)
    down = integer_layer(rng, "float32", HIDDEN, INNER, 4, 16, False)
    given = [x, logits, up[0], up[1], None, down[0], down[1]]
    options = {"k": BEST, "block_size": 16, "constant": (2, 3, 5, 6), "domain": MICROSOFT}
    model = make_model("QMoE", given, **(options | attributes))
    try:
        session = make_session(model)
    except (Fail, InvalidArgument, RuntimeException) as error:
        assert "[QMoE] expected" not in str(error)  # refused by onnxruntime's own kernel
    else:
        assert npu_nodes(session) == []


@pytest.mark.parametrize("change, message", [
    ({"x": (3, 8)}, "expected input"),
    ({"logits": (TOKENS, EXPERTS + 1)}, "expected router_probs"),
    ({"logits": (TOKENS + 1, EXPERTS)}, "expected router_probs"),
    ({"up_bias": (EXPERTS, 3)}, "expected bias"),
    ({"down": (EXPERTS + 1, HIDDEN, INNER)}, "expected fc2_experts_weights"),
    ({"k": EXPERTS + 1}, "expected k from 1"),
    ({"k": 0}, "expected k from 1"),
    ({"k": 2**62}, "expected k from 1"),
])  # fmt: skip
def test_hostile_experts(change, message) -> None:
    shapes = {"x": (TOKENS, HIDDEN), "logits": (TOKENS, EXPERTS), "up": (EXPERTS, INNER, HIDDEN),
              "up_bias": (EXPERTS, INNER), "down": (EXPERTS, HIDDEN, INNER)}  # fmt: skip
    k = change.pop("k", BEST)
    given = [np.ones(shape, np.float32) for shape in (shapes | change).values()]
    with pytest.raises((Fail, InvalidArgument, RuntimeException), match=rf"\[MoE\] {message}"):
        Node("MoE", given, domain=MICROSOFT, k=k)(*given)
