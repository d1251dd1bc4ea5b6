"""Each rule: the converted node computes what onnxruntime's own kernel does, or is left alone.

Tolerances: float32 sums in another order, 1e-5 of the largest value; float16 results are rounded
once by us and up to three times by kernels of several steps, 2e-3.
"""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from comparison import MICROSOFT, PROVIDERS, check, converted, model_of, run
from onnx import helper

TOLERANCE = {np.float32: 1e-5, np.float16: 2e-3}
DTYPES = pytest.mark.parametrize("dtype", [np.float32, np.float16])


def normal(*shape, dtype=np.float32, scale=1.0, seed=3):
    return (np.random.default_rng(seed).standard_normal(shape) * scale).astype(dtype)


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


def tables(length, half, dtype=np.float32):
    angles = np.arange(length)[:, None] * 0.3 ** np.arange(half)[None]
    return np.cos(angles).astype(dtype), np.sin(angles).astype(dtype)


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


# --- attention


@DTYPES
@pytest.mark.parametrize("mask", [None, (3, 7), (1, 1, 3, 7), (2, 1, 3, 7)])
@pytest.mark.parametrize("kind", ["bool", "added"])
@pytest.mark.parametrize("kv_heads", [2, 4])
def test_attention(tmp_path, mask, kind, kv_heads, dtype):
    inputs = {
        "q": normal(2, 4, 3, 16, dtype=dtype, seed=1),
        "k": normal(2, kv_heads, 7, 16, dtype=dtype, seed=2),
        "v": normal(2, kv_heads, 7, 16, dtype=dtype, seed=3),
    }
    if mask is not None and kind == "added":
        inputs["m"] = normal(*mask, dtype=dtype, scale=2, seed=4)
    elif mask is not None:
        inputs["m"] = np.random.default_rng(4).random(mask) > 0.4
        inputs["m"][..., 0] = True
    node = helper.make_node("Attention", list(inputs), ["y"], scale=0.3)
    model = model_of([node], inputs, {"y": dtype}, opset=23)
    check(model, tmp_path, inputs, {"NPUFusedInferAttentionScore": 1}, TOLERANCE[dtype])


@pytest.mark.parametrize("mask", ["visible", "hidden", "added", "none"])
@pytest.mark.parametrize("guard", [None, "IsNaN", "count"])
@pytest.mark.parametrize("scaled", ["both", "query", "Div"])
def test_attention_written_out(tmp_path, mask, guard, scaled):
    def node(op_type, inputs, output, **attributes):
        return helper.make_node(op_type, inputs, [output], **attributes)

    if mask in ("none", "added") and guard == "count":
        pytest.skip("there is nothing to count")
    grouped = [
        node("Unsqueeze", ["k", "two"], "k5"),
        node("Expand", ["k5", "five"], "k_wide"),
        node("Reshape", ["k_wide", "four"], "keys"),
        node("Unsqueeze", ["v", "two"], "v5"),
        node("Expand", ["v5", "five"], "v_wide"),
        node("Reshape", ["v_wide", "four"], "values"),
        node("Transpose", ["keys"], "kt", perm=[0, 1, 3, 2]),
    ]
    q, k = "q", "kt"
    scaling = []
    if scaled in ("both", "query"):
        scaling.append(node("Mul", ["q", "factor"], "q_scaled"))
        q = "q_scaled"
    if scaled == "both":
        scaling.append(node("Mul", ["factor", "kt"], "k_scaled"))
        k = "k_scaled"
    scores = [node("MatMul", [q, k], "product")]
    last = "product"
    if scaled == "Div":
        scores.append(node("Div", [last, "factor"], "divided"))
        last = "divided"
    if mask == "visible":
        scores.append(node("Where", ["m", "zero", "least"], "bias"))
    elif mask == "hidden":
        scores += [
            node("Not", ["m"], "not"),
            node("Cast", ["not"], "flags", to=1),
            node("Mul", ["flags", "least"], "bias"),
        ]
    elif mask == "added":  # as older exporters of BERT write it, and biases by position
        scores += [
            node("Cast", ["m"], "ones", to=1),
            node("Sub", ["one", "ones"], "flags"),
            node("Mul", ["flags", "least"], "least_hidden"),
            node("Add", ["least_hidden", "by_head"], "bias"),
        ]
    if mask != "none":
        scores.append(node("Add", ["bias", last], "masked"))
        last = "masked"
    scores.append(node("Softmax", [last], "weights", axis=-1))
    last = "weights"
    if guard == "IsNaN":
        scores.append(node("IsNaN", [last], "test"))
    elif guard == "count":
        scores += [
            node("Cast", ["m"], "ones", to=1),
            node("ReduceSum", ["ones", "axes"], "count", keepdims=1),
            node("Less", ["count", "one"], "test"),
        ]
    if guard:
        scores.append(node("Where", ["test", "zero", last], "guarded"))
        last = "guarded"
    nodes = [*grouped, *scaling, *scores, node("MatMul", [last, "values"], "y")]
    weights = {
        "two": np.array([2]),
        "five": np.array([2, 2, 2, 7, 16]),
        "four": np.array([2, 4, 7, 16]),
        "axes": np.array([-1]),
        "factor": np.float32(0.7),
        "zero": np.float32(0),
        "one": np.float32(1),
        "least": np.float32(-1e4 if mask == "added" else -3e38),
        "by_head": normal(4, 3, 7, seed=5),
    }
    inputs = {
        "q": normal(2, 4, 3, 16, seed=1),
        "k": normal(2, 2, 7, 16, seed=2),
        "v": normal(2, 2, 7, 16, seed=3),
        "m": np.random.default_rng(4).random((2, 1, 1, 7)) > 0.4,
    }
    inputs["m"][..., 0] = True
    model = model_of(nodes, inputs, {"y": np.float32}, weights)
    check(model, tmp_path, inputs, {"NPUFusedInferAttentionScore": 1}, 1e-5)


def test_causal_attention(tmp_path):
    inputs = {n: normal(2, 4, 5, 16, seed=i) for i, n in enumerate("qkv")}
    node = helper.make_node("Attention", list(inputs), ["y"], is_causal=1)
    model = model_of([node], inputs, {"y": np.float32}, opset=23)
    check(model, tmp_path, inputs, {"NPUFusedInferAttentionScore": 1}, 1e-5)


def gqa(
    dtype, *, packed, width, interleaved=0, window=-1, batch=1, length=1, past=4, held=None,
    added=None,
):  # fmt: skip
    """Return a model of GroupQueryAttention and its inputs; rows hold ``held`` tokens before.

    ``added`` is the shape of what is added to the scores.
    """
    heads, kv_heads, size, longest = 4, 2, 16, past + length
    held = [past] * batch if held is None else held
    lengths = np.array([n + length - 1 if past else length - 1 for n in held], np.int32)
    shapes = {"query": heads * size, "key": kv_heads * size, "value": kv_heads * size}
    if packed:
        shapes = {"query": sum(shapes.values())}
    inputs = {
        name: normal(batch, length, columns, dtype=dtype, seed=i)
        for i, (name, columns) in enumerate(shapes.items())
    }
    caches = {
        f"past_{name}": normal(batch, kv_heads, past, size, dtype=dtype, seed=i)
        for i, name in enumerate(("key", "value"), 7)
    }
    inputs |= caches
    cos, sin = tables(40, width // 2, dtype)
    names = ["query", "" if packed else "key", "" if packed else "value", *caches]
    names += ["lengths", "total", "cos" if width else "", "sin" if width else ""]
    if added is not None:
        inputs["bias"] = normal(*added, dtype=dtype, scale=2, seed=9)
        names += ["", "bias"]
    node = helper.make_node(
        "GroupQueryAttention",
        names,
        ["y", "present_key", "present_value"],
        domain=MICROSOFT,
        num_heads=heads,
        kv_num_heads=kv_heads,
        do_rotary=int(width > 0),
        rotary_interleaved=interleaved,
        local_window_size=window,
    )
    weights = {"lengths": lengths, "total": np.array([longest], np.int32)}
    weights |= {"cos": cos, "sin": sin} if width else {}
    outputs = dict.fromkeys(("y", "present_key", "present_value"), dtype)
    return model_of([node], inputs, outputs, weights), inputs


GQA = {"NPUFusedInferAttentionScore": 1}


@DTYPES
@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize(
    ("width", "interleaved", "window"), [(0, 0, -1), (16, 0, -1), (16, 1, -1), (16, 0, 3)]
)
@pytest.mark.parametrize(("batch", "length", "past"), [(2, 5, 0), (2, 1, 6), (1, 3, 6)])
def test_group_query_attention(
    tmp_path, batch, length, past, width, interleaved, window, packed, dtype
):
    model, inputs = gqa(
        dtype,
        packed=packed,
        width=width,
        interleaved=interleaved,
        window=window,
        batch=batch,
        length=length,
        past=past,
    )
    # Heads that come packed are rotated together.
    nodes = {**GQA, "NPURotaryMul": 1 if packed else 2} if width else GQA
    check(model, tmp_path, inputs, nodes, TOLERANCE[dtype])


@pytest.mark.parametrize("shape", [(1, 1), (2, 4)])
@pytest.mark.parametrize(("window", "length", "past"), [(-1, 5, 0), (3, 5, 0), (-1, 1, 6)])
def test_group_query_attention_with_a_bias(tmp_path, window, length, past, shape):
    model, inputs = gqa(
        np.float32, packed=True, width=16, window=window, batch=2, length=length, past=past,
        added=(*shape, length, length + past),
    )  # fmt: skip
    check(model, tmp_path, inputs, {**GQA, "NPURotaryMul": 1}, 1e-5)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("mask", ["none", "padding", "added", "causal"])
def test_multi_head_attention(tmp_path, mask, bias):
    inputs = {
        "q": normal(2, 3, 64, seed=1),
        "k": normal(2, 3 if mask == "causal" else 7, 64, seed=2),
        "v": normal(2, 3 if mask == "causal" else 7, 32, seed=3),
    }
    weights = {"b": normal(160, seed=4)} if bias else {}
    names = ["q", "k", "v", "b" if bias else "", "", ""]
    if mask == "padding":
        names[4] = "padding"
        inputs["padding"] = np.array([[1] * 7, [1] * 4 + [0] * 3], np.int32)
    elif mask == "added":
        names[5] = "added"
        inputs["added"] = normal(1, 4, 3, 7, scale=2, seed=5)
    node = helper.make_node(
        "MultiHeadAttention",
        names,
        ["y"],
        domain=MICROSOFT,
        num_heads=4,
        scale=0.3,
        unidirectional=int(mask == "causal"),
    )
    model = model_of([node], inputs, {"y": np.float32}, weights)
    check(model, tmp_path, inputs, GQA, 1e-5)


def test_group_query_attention_of_rows_of_other_lengths(tmp_path):
    model, inputs = gqa(
        np.float32, packed=True, width=16, batch=3, length=1, past=6, held=[6, 2, 4]
    )
    _, path = converted(model, tmp_path)
    expected = run(model, PROVIDERS[1], inputs)
    for provider in PROVIDERS:
        actual = run(path, provider, inputs)
        np.testing.assert_allclose(actual[0], expected[0], rtol=0, atol=1e-5)
        for cache, wanted in zip(actual[1:], expected[1:], strict=True):
            assert cache.shape == wanted.shape
            for row, tokens in enumerate((7, 3, 5)):  # behind them nothing is defined
                np.testing.assert_allclose(
                    cache[row, :, :tokens], wanted[row, :, :tokens], rtol=0, atol=1e-5
                )


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


# --- quantised matmuls


def blocks_of(depth, columns, block, zeros, dtype, bits=4):
    """Return the initializers of a MatMulNBits, and the weight [K, N] that they mean."""
    generator = np.random.default_rng(5)
    count = -(-depth // block)
    most = 1 << bits
    integers = generator.integers(0, most, (columns, count * block))
    scales = generator.uniform(0.01, 0.02, (columns, count)).astype(dtype)
    points = np.full((columns, count), most // 2)
    if zeros:
        points = generator.integers(0, most, (columns, count))

    def packed(values):
        if bits == 8:
            return values.astype(np.uint8)
        values = np.pad(values, ((0, 0), (0, values.shape[1] % 2)))
        return (values[:, ::2] | values[:, 1::2] << 4).astype(np.uint8)

    blocks = packed(integers).reshape(columns, count, block * bits // 8)
    weights = {"b": blocks, "s": scales.reshape(-1)}
    if zeros:
        weights["z"] = packed(points).reshape(-1)
    spread = [np.repeat(values, block, axis=1) for values in (points, scales.astype(np.float32))]
    return weights, ((integers - spread[0]) * spread[1])[:, :depth].T


@DTYPES
@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize("level", [0, 4])
@pytest.mark.parametrize(
    ("bits", "depth", "columns", "block"),
    [(4, 96, 24, 32), (4, 160, 40, 32), (4, 64, 8, 64), (4, 128, 5, 32), (8, 96, 5, 32)],
)
def test_matmul_of_integers(tmp_path, bits, depth, columns, block, level, zeros, dtype):
    weights, exact = blocks_of(depth, columns, block, zeros, dtype, bits)
    inputs = {"x": normal(2, 3, depth, dtype=dtype)}
    node = helper.make_node(
        "MatMulNBits",
        ["x", *weights],
        ["y"],
        domain=MICROSOFT,
        K=depth,
        N=columns,
        bits=bits,
        block_size=block,
        accuracy_level=level,
    )
    report, path = converted(model_of([node], inputs, {"y": dtype}, weights), tmp_path)
    assert report.nodes["npu::NPUWeightQuantBatchMatmulV2"] == 1
    # Rounded are activations, scales, scaled weights and the result, by 2 ** -9 each to bfloat16 if
    # x is of float32, by 2 ** -11 to float16. Level 4 rounds a block of a row to int8: a step is
    # 1 / 127 of its largest element, which is below 3 times the usual one, and errs by / 12 ** 0.5.
    bound = 4 * (2**-9 if dtype == np.float32 else 2**-11) + (level == 4) * 3 / 127 / 12**0.5
    expected = inputs["x"].astype(np.float64) @ exact
    size = np.linalg.norm(expected)
    for provider in PROVIDERS:
        (actual,) = run(path, provider, inputs)
        assert actual.dtype == dtype and actual.shape == (2, 3, columns)
        assert np.linalg.norm(actual - expected) <= bound * size, provider


def test_nodes_that_share_a_weight_are_all_converted(tmp_path):
    weights, exact = blocks_of(32, 32, 16, True, np.float16)
    numbers = {"K": 32, "N": 32, "bits": 4, "block_size": 16}
    nodes = [
        helper.make_node("MatMulNBits", [x, *weights], [y], domain=MICROSOFT, **numbers)
        for x, y in (("x", "h"), ("h", "y"))
    ]
    inputs = {"x": normal(3, 32, dtype=np.float16)}
    report, path = converted(model_of(nodes, inputs, {"y": np.float16}, weights), tmp_path)
    assert report.nodes["npu::NPUWeightQuantBatchMatmulV2"] == 2
    assert report.converted["MatMulNBits"] == 2
    expected = inputs["x"].astype(np.float64) @ exact @ exact
    for provider in PROVIDERS:
        (actual,) = run(path, provider, inputs)
        # Two products, of four roundings each.
        assert np.linalg.norm(actual - expected) <= 8 * 2**-11 * np.linalg.norm(expected)


@pytest.mark.parametrize("used_as", ["an input", "an output, too"])
def test_gated_mlp_of_4_bits_is_joined(tmp_path, used_as):
    weights, exact = {}, []
    for i, (name, *sizes) in enumerate((("g", 64, 24), ("u", 64, 24), ("d", 24, 16))):
        parts, matrix = blocks_of(*sizes, 32, False, np.float32)
        parts["s"] = parts["s"] * (i + 1)
        weights |= {f"{name}{key}": value for key, value in parts.items()}
        exact.append(matrix * (i + 1))
    numbers = {"K": 64, "N": 24, "bits": 4, "block_size": 32}
    down = numbers | {"K": 24, "N": 16}
    nodes = [
        helper.make_node("MatMulNBits", ["x", "gb", "gs"], ["gate"], domain=MICROSOFT, **numbers),
        helper.make_node("MatMulNBits", ["x", "ub", "us"], ["up"], domain=MICROSOFT, **numbers),
        helper.make_node("Sigmoid", ["gate"], ["s"]),
        helper.make_node("Mul", ["gate", "s"], ["silu"]),
        helper.make_node("Mul", ["silu", "up"], ["h"]),
        helper.make_node("MatMulNBits", ["h", "db", "ds"], ["y"], domain=MICROSOFT, **down),
    ]
    outputs = ["y", "h"] if used_as == "an output, too" else ["y"]
    inputs = {"x": normal(3, 64)}
    model = model_of(nodes, inputs, dict.fromkeys(outputs, np.float32), weights)
    report, path = converted(model, tmp_path)
    assert report.nodes["npu::NPUWeightQuantBatchMatmulV2"] == 2
    assert report.nodes["npu::NPUSwiGlu"] == 1
    # x and y; between them bfloat16 stays, unless float32 is asked for.
    assert report.nodes["Cast"] == (2 if len(outputs) == 1 else 4)
    gate, up = (inputs["x"].astype(np.float64) @ matrix for matrix in exact[:2])
    hidden = gate / (1 + np.exp(-gate)) * up
    for provider in PROVIDERS:
        results = run(path, provider, inputs)
        # Activations, scales and each product's result are rounded to bfloat16.
        expected = [hidden @ exact[2], hidden][: len(outputs)]
        for actual, wanted, bound in zip(results, expected, (6, 3)[: len(outputs)], strict=True):
            assert np.linalg.norm(actual - wanted) <= bound * 2**-8 * np.linalg.norm(wanted)


# --- what is left


def node_of(op_type, inputs, outputs=("y",), **attributes):
    return helper.make_node(op_type, inputs, list(outputs), **attributes)


@pytest.mark.parametrize(
    ("node", "reason"),
    [
        (node_of("RMSNormalization", ["x", "w"], axis=1), "spans several axes"),
        (
            node_of(
                "SkipSimplifiedLayerNormalization", ["x", "x", "w1", "w1"], domain=MICROSOFT
            ),
            "it has a bias",
        ),
        (node_of("QuickGelu", ["x"], domain=MICROSOFT, alpha=1.5), "its factor is 1.5"),
        (node_of("Attention", ["x4", "x4", "x4"], softcap=3.0), "its scores are capped"),
        (
            node_of("MatMulNBits", ["x", "b", "s"], domain=MICROSOFT, K=16, N=8, bits=2,
                    block_size=16),
            "its weight has 2 bits",
        ),
        (
            node_of("MultiHeadAttention", ["x", "x", "x", "", "lengths"], domain=MICROSOFT,
                    num_heads=2),
            "its padding is not told key by key",
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
    inputs = {"x": normal(2, 3, 16), "x4": normal(2, 4, 3, 16)}
    weights = {
        "lengths": np.array([3, 2], np.int32),
        "w": normal(3, 16),
        "w1": normal(16),
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
