"""Attention of onnx and onnxruntime, and written out, with caches and projections or without."""

from __future__ import annotations

import numpy as np
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
from onnx import helper

FUSED = {"NPUFusedInferAttentionScore": 1}
BATCH, HEADS, SIZE, NEW, PAST = 2, 4, 16, 3, 5


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
    check(model, tmp_path, inputs, FUSED, TOLERANCE[dtype])


@pytest.mark.parametrize("mask", ["visible", "hidden", "added", "filled", "kept", "none"])
@pytest.mark.parametrize("guard", [None, "IsNaN", "count"])
@pytest.mark.parametrize("scaled", ["both", "query", "Div"])
def test_attention_written_out(tmp_path, mask, guard, scaled):
    def node(op_type, inputs, output, **attributes):
        return helper.make_node(op_type, inputs, [output], **attributes)

    if mask in ("none", "added", "filled", "kept") and guard == "count":
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
    elif mask == "filled":  # after a bias
        scores += [
            node("Add", [last, "by_head"], "biased"),
            node("Not", ["m"], "hidden"),
            node("Where", ["hidden", "least", "biased"], "chosen"),
        ]
        last = "chosen"
    elif mask == "kept":  # before a bias
        scores += [
            node("Where", ["m", last, "least"], "chosen"),
            node("Add", ["chosen", "by_head"], "biased"),
        ]
        last = "biased"
    if mask in ("visible", "hidden", "added"):
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
    check(model, tmp_path, inputs, FUSED, 1e-5)


def test_causal_attention(tmp_path):
    inputs = {n: normal(2, 4, 5, 16, seed=i) for i, n in enumerate("qkv")}
    node = helper.make_node("Attention", list(inputs), ["y"], is_causal=1)
    model = model_of([node], inputs, {"y": np.float32}, opset=23)
    check(model, tmp_path, inputs, FUSED, 1e-5)


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
    nodes = {**FUSED, "NPURotaryMul": 1 if packed else 2} if width else FUSED
    check(model, tmp_path, inputs, nodes, TOLERANCE[dtype])


@pytest.mark.parametrize("shape", [(1, 1), (2, 4)])
@pytest.mark.parametrize(("window", "length", "past"), [(-1, 5, 0), (3, 5, 0), (-1, 1, 6)])
def test_group_query_attention_with_a_bias(tmp_path, window, length, past, shape):
    model, inputs = gqa(
        np.float32, packed=True, width=16, window=window, batch=2, length=length, past=past,
        added=(*shape, length, length + past),
    )  # fmt: skip
    check(model, tmp_path, inputs, {**FUSED, "NPURotaryMul": 1}, 1e-5)


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
    check(model, tmp_path, inputs, FUSED, 1e-5)


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


@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize("rows", [1, NEW])
def test_the_last_row_of_causal_attention_sees_all_keys(tmp_path, rows, known):
    columns = HEADS * SIZE
    inputs = {"q": normal(BATCH, rows, columns)}
    inputs |= {n: normal(BATCH, PAST + NEW, columns, seed=i) for i, n in enumerate("kv", 5)}
    options = {"domain": MICROSOFT, "num_heads": HEADS, "unidirectional": 1}
    node = helper.make_node("MultiHeadAttention", ["q", "k", "v"], ["y"], **options)
    model = model_of([node], inputs, {"y": np.float32})
    if not known:
        model.graph.input[0].type.tensor_type.shape.dim[1].dim_param = "rows"
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
        ("Attention", ["x", "w", "b", "bounds"], {}, "not told by the lengths of rows alone"),
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
        (
            "MultiHeadAttention", ["x", "x", "x", "", "seen"], {"mask_filter_value": -5.0},
            "its padding is seen a little",
        ),
    ],
)  # fmt: skip
def test_forms_without_an_equivalent_stay(tmp_path, op_type, names, attributes, reason):
    inputs = {"x": normal(BATCH, NEW, 24), "heads": normal(BATCH, 4, PAST, 6)}
    weights = {"w": normal(24, 72), "b": normal(72), "lengths": np.array([3, 2], np.int32)}
    weights["seen"] = np.ones((BATCH, NEW), np.int32)
    weights["bounds"] = np.array([3, 2, 0, 0], np.int32)  # ends of rows, then their beginnings
    attributes = {"num_heads": 4, **attributes}
    node = helper.make_node(op_type, names, ["y"], name="it", domain=MICROSOFT, **attributes)
    report, _ = converted(model_of([node], inputs, {"y": np.float32}, weights), tmp_path)
    assert list(report.left) == ["it"] and reason in report.left["it"]
    assert not report.converted


@pytest.mark.parametrize(
    ("query", "key", "reason"),
    [
        ((2, 4, 3, 16), (1, 4, 7, 16), "it is broadcast to several rows"),
        ((1, 4, 3, 16), ("rows", 4, 7, 16), "it is broadcast to several rows"),
        ((2, 1, 3, 16), (2, 4, 7, 16), "its queries are broadcast to its heads of keys"),
    ],
)
def test_attention_that_broadcasts_stays(tmp_path, query, key, reason):
    nodes = [
        helper.make_node("Transpose", ["k"], ["kt"], perm=[0, 1, 3, 2]),
        helper.make_node("MatMul", ["q", "kt"], ["scores"]),
        helper.make_node("Softmax", ["scores"], ["p"], axis=-1),
        helper.make_node("MatMul", ["p", "v"], ["y"], name="it"),
    ]
    inputs = {
        name: normal(*(2 if size == "rows" else size for size in shape))
        for name, shape in {"q": query, "k": key, "v": key}.items()
    }
    model = model_of(nodes, inputs, {"y": np.float32})
    for value, shape in zip(model.graph.input, (query, key, key), strict=True):
        if shape[0] == "rows":
            value.type.tensor_type.shape.dim[0].dim_param = "rows"
    report = check(model, tmp_path, inputs, {}, TOLERANCE[np.float32])
    assert report.left == {"it": f"MatMul: {reason}"}


def test_keys_whose_transpositions_are_joined(tmp_path):
    """As the exporter of TorchScript writes them, of which optimum's files are."""
    inputs = {"q": normal(2, 4, 3, 16), "k": normal(2, 7, 4, 16), "v": normal(2, 4, 7, 16)}
    nodes = [
        helper.make_node("Transpose", ["k"], ["kt"], perm=[0, 2, 3, 1]),
        helper.make_node("MatMul", ["q", "kt"], ["scores"]),
        helper.make_node("Softmax", ["scores"], ["p"], axis=-1),
        helper.make_node("MatMul", ["p", "v"], ["y"]),
    ]
    model = model_of(nodes, inputs, {"y": np.float32})
    check(model, tmp_path, inputs, FUSED, TOLERANCE[np.float32])


@pytest.mark.parametrize(("flat", "fused"), [([8, 7, 16], True), ([4, 14, 16], False)])
def test_keys_transposed_on_three_axes(tmp_path, flat, fused):
    """As torch.onnx writes it for opset 18, of known sizes; other rows would not be the heads'."""
    inputs = {"q": normal(2, 4, 3, 16), "k": normal(2, 4, 7, 16), "v": normal(2, 4, 7, 16)}
    nodes = [
        helper.make_node("Reshape", ["k", "three"], ["flat"]),
        helper.make_node("Transpose", ["flat"], ["turned"], perm=[0, 2, 1]),
        helper.make_node("Reshape", ["turned", "four"], ["kt"]),
        helper.make_node("MatMul", ["q", "kt"], ["scores"]),
        helper.make_node("Softmax", ["scores"], ["p"], axis=-1),
        helper.make_node("MatMul", ["p", "v"], ["y"]),
    ]
    weights = {"three": np.array(flat), "four": np.array([2, 4, 16, 7])}
    model = model_of(nodes, inputs, {"y": np.float32}, weights)
    check(model, tmp_path, inputs, FUSED if fused else {}, TOLERANCE[np.float32])
