"""Attention that is spelled out in products and a softmax."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from fusion_models import fused_nodes, model_of, node, run_both
from provider_models import npu_session

ATTENTION = "Attention"
B, N, S, T, D = 2, 3, 5, 7, 8
SCALE = D**-0.25  # of Q and of K


def operands(rng, keys: int = T) -> dict[str, np.ndarray]:
    def of(rows: int) -> np.ndarray:
        return rng.standard_normal((B, N, rows, D)).astype(np.float32)

    mask = np.where(rng.random((B, 1, S, keys)) < 0.3, -np.inf, 0).astype(np.float32)
    mask[0, 0, 1] = -np.inf  # a row that sees nothing
    return {"q": of(S), "k": of(keys), "v": of(keys), "mask": mask}


CONSTANTS = {
    "scale": np.array(SCALE, np.float32),
    "whole": np.array(SCALE * SCALE, np.float32),
    "root": np.array(1 / SCALE**2, np.float32),
    "zero": np.array(0, np.float32),
    "matrices": np.array([B * N, T, D]),
    "turned": np.array([B, N, D, T]),
    "wrongly_turned": np.array([B, N, T, D]),
    "any": np.array([-1]),
    "c0": np.array([0]),
    "c2": np.array([2]),
    "c3": np.array([3]),
    "c9": np.array([9]),
    "per_head": np.ones((N, 1, 1), np.float32),
}
TURN = node("Transpose", "k", "t", perm=[0, 1, 3, 2])
TURN_MATRICES = [
    node("Reshape", "k matrices", "three"),
    node("Transpose", "three", "swapped", perm=[0, 2, 1]),
    node("Reshape", "swapped turned", "t"),
]
# The shapes as torch.onnx computes them.
TURN_BY_SHAPES = [
    node("Shape", "k", "all"),
    node("Slice", "all c0 c2", "first"),
    node("Slice", "all c2 c3", "rows"),
    node("Slice", "all c3 c9", "size"),
    node("Concat", "any rows size", "matrices", axis=0),
    node("Concat", "first size rows", "turned", axis=0),
    *TURN_MATRICES,
]
SCALED = [node("Mul", "q scale", "qs"), node("Mul", "t scale", "ts"), node("MatMul", "qs ts", "p")]
MASKED = [node("Add", "p mask", "a"), node("Softmax", "a", "s", axis=-1)]
REPLACED = [
    node("IsNaN", "s", "n"),
    node("Where", "n zero s", "w"),
    node("MatMul", "w v", "y"),
]
PLAIN = [node("Softmax", "p", "s", axis=-1), node("MatMul", "s v", "y")]
FORMS = {
    "with a mask": [TURN, *SCALED, *MASKED, *REPLACED],
    "with matrices": [*TURN_MATRICES, *SCALED, *MASKED, *REPLACED],
    "with computed shapes": [*TURN_BY_SHAPES, *SCALED, *MASKED, *REPLACED],
    "with the mask first": [
        TURN,
        *SCALED,
        node("Add", "mask p", "a"),
        node("Softmax", "a", "s", axis=3),
        *REPLACED,
    ],
    "without a mask": [TURN, *SCALED, *PLAIN],
    "with scaled scores": [
        TURN,
        node("MatMul", "q t", "m"),
        node("Mul", "m whole", "p"),
        *PLAIN,
    ],
    "with a quotient": [TURN, node("MatMul", "q t", "m"), node("Div", "m root", "p"), *PLAIN],
    "without a scale": [TURN, node("MatMul", "q t", "p"), *PLAIN],
}


def run(nodes, feeds, names=None, **options):
    """`names`: of the dimensions of each input, without which all sizes are known."""
    written = {name for n in nodes for name in n.output}
    read = {name for n in nodes for name in n.input}
    feeds = {name: value for name, value in feeds.items() if name in read}
    constants = {k: v for k, v in CONSTANTS.items() if k in read - written}
    model = onnx.load_from_string(model_of(nodes, feeds, constants, **options))
    for value in model.graph.input if names else []:
        for dim, name in zip(value.type.tensor_type.shape.dim, names[value.name], strict=True):
            if name:
                dim.dim_param = name
    return run_both(model.SerializeToString(), feeds)


def close(fused: np.ndarray, plain: np.ndarray) -> None:
    """The core's exponentials are within 1e-6, its sums in another order; values are about 1."""
    np.testing.assert_allclose(fused, plain, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("form", FORMS)
def test_form_is_fused(rng, form):
    nodes = FORMS[form]
    (fused,), (plain,), groups = run(nodes, operands(rng))
    assert groups == {n.name: ATTENTION for n in nodes}
    close(fused, plain)
    if "mask" in {name for n in nodes for name in n.input}:
        assert (fused[0, :, 1] == 0).all()  # the row that sees nothing


def test_dimensions_with_names_are_enough(rng):
    names = {x: ("b", "", "t", "") for x in "kv"} | {"q": ("b", "", "s", "")}
    names["mask"] = ("b", "", "s", "t")
    nodes = FORMS["with computed shapes"]
    (fused,), (plain,), groups = run(nodes, operands(rng), names)
    assert groups == {n.name: ATTENTION for n in nodes}
    close(fused, plain)


@pytest.mark.parametrize("mask_shape", [(S, T), (1, 1, 1, T), (B, N, S, T), (N, 1, T)])
def test_masks_that_broadcast(rng, mask_shape):
    feeds = operands(rng) | {"mask": rng.standard_normal(mask_shape).astype(np.float32)}
    (fused,), (plain,), groups = run(FORMS["with a mask"], feeds)
    assert set(groups.values()) == {ATTENTION}
    close(fused, plain)


def test_rows_that_a_finite_mask_hides_are_means(rng):
    """torch.onnx writes the lowest float for minus infinity: such a row weighs all keys alike."""
    feeds = operands(rng)
    lowest = np.finfo(np.float32).min
    for low in (lowest, lowest * np.float32(0.75), np.float32(-1e4)):
        feeds["mask"][np.isinf(feeds["mask"])] = low
        (fused,), (plain,), groups = run(FORMS["with a mask"], feeds)
        assert set(groups.values()) == {ATTENTION}
        np.testing.assert_allclose(fused, plain, rtol=1e-5, atol=1e-3 if low == -1e4 else 1e-5)
        if low != -1e4:  # where the scores still count, rounded to 2^-10 beside it
            close(fused[0, :, 1], feeds["v"][0].mean(1))
        feeds["mask"][feeds["mask"] == low] = -np.inf


FINITE_MASKS = {
    # As transformers' exporter writes it for "eager" and "sdpa".
    "a product": [
        node("Not", "seen", "hidden"),
        node("Cast", "hidden", "number", to=1),
        node("Mul", "number lowest", "mask"),
    ],
    "a choice": [node("Where", "seen zero lowest", "mask")],
}


@pytest.mark.parametrize("form", FINITE_MASKS)
def test_finite_masks_need_no_replacement(rng, monkeypatch, form):
    monkeypatch.setitem(CONSTANTS, "lowest", np.array(np.finfo(np.float32).min))
    feeds = operands(rng)
    feeds["seen"] = np.isfinite(feeds.pop("mask"))
    nodes = [TURN, *SCALED, *MASKED, node("MatMul", "s v", "y")]
    (fused,), (plain,), groups = run([*FINITE_MASKS[form], *nodes], feeds)
    assert groups == {n.name: ATTENTION for n in nodes}
    close(fused, plain)
    close(fused[0, :, 1], feeds["v"][0].mean(1))  # the row that sees nothing
    for infinite in (np.inf, -np.inf, np.nan):
        monkeypatch.setitem(CONSTANTS, "lowest", np.array(infinite, np.float32))
        assert run([*FINITE_MASKS[form], *nodes], feeds)[2] == {}


NEAR_MISSES = {
    "a softmax over another axis": [
        TURN,
        *SCALED,
        node("Softmax", "p", "s", axis=2),
        node("MatMul", "s v", "y"),
    ],
    "a mask whose hidden rows are not replaced": [
        TURN,
        *SCALED,
        *MASKED,
        node("MatMul", "s v", "y"),
    ],
    "a replacement by another number": [
        TURN,
        *SCALED,
        *MASKED,
        node("IsNaN", "s", "n"),
        node("Where", "n whole s", "w"),
        node("MatMul", "w v", "y"),
    ],
    "a scale per head": [TURN, node("MatMul", "q t", "m"), node("Mul", "m per_head", "p"), *PLAIN],
    "weights that are multiplied": [
        TURN,
        *SCALED,
        node("Softmax", "p", "s", axis=-1),
        node("Mul", "s per_head", "w"),
        node("MatMul", "w v", "y"),
    ],
}


@pytest.mark.parametrize("case", NEAR_MISSES)
def test_near_miss_is_not_fused(rng, case):
    (fused,), (plain,), groups = run(NEAR_MISSES[case], operands(rng))
    assert groups == {}
    np.testing.assert_array_equal(fused, plain)


def test_a_reshape_that_moves_elements_is_no_transposition(rng):
    """As many keys as a head has elements, so that the shapes alone could be those of another."""
    nodes = [
        node("Reshape", "k wrongly_turned", "three"),
        node("Transpose", "three", "swapped", perm=[0, 1, 3, 2]),
        node("Reshape", "swapped turned", "t"),
        *SCALED,
        *PLAIN,
    ]
    (fused,), (plain,), groups = run(nodes, operands(rng))
    assert groups == {}
    np.testing.assert_array_equal(fused, plain)


@pytest.mark.parametrize("name", ["k", "v", "q"])
def test_operands_that_broadcast_are_not_fused(rng, name):
    """MatMul repeats a batch of one; Attention does not."""
    feeds = operands(rng)
    feeds[name] = feeds[name][:1]
    (fused,), (plain,), groups = run(FORMS["without a mask"], feeds)
    assert groups == {}
    np.testing.assert_array_equal(fused, plain)


def test_number_of_values_needs_no_name(rng):
    """torch.export names the rows of each cache by itself, unless a user gives them one name."""
    names = {"q": ("b", "", "s", ""), "k": ("b", "", "t", ""), "v": ("b", "", "u", "")}
    names["mask"] = ("b", "", "s", "t")
    nodes = FORMS["with computed shapes"]
    (fused,), (plain,), groups = run(nodes, operands(rng), names)
    assert groups == {n.name: ATTENTION for n in nodes}
    close(fused, plain)


SHARED = 2  # heads of keys and values, each of which TIMES heads of queries read
TIMES = 3


def repeated(x: str, y: str) -> list[onnx.NodeProto]:
    """As torch.onnx writes transformers' `repeat_kv`."""
    return [
        node("Unsqueeze", f"{x} c2", f"{x}_single"),
        node("Expand", f"{x}_single copies", f"{x}_copies"),
        node("Reshape", f"{x}_copies all_heads", y),
    ]


def shared_operands(rng) -> dict[str, np.ndarray]:
    feeds = operands(rng)
    feeds["q"] = rng.standard_normal((B, SHARED * TIMES, S, D)).astype(np.float32)
    few = {f"few_{x}": rng.standard_normal((B, SHARED, T, D)).astype(np.float32) for x in "kv"}
    return {"q": feeds["q"], "mask": feeds["mask"], **few}


SHARED_CONSTANTS = {
    "copies": np.array([1, 1, TIMES, 1, 1]),
    "all_heads": np.array([B, SHARED * TIMES, T, D]),
}
STANDARD = [node("Attention", "q k v mask", "y", scale=SCALE * SCALE)]


@pytest.mark.parametrize("form", ["with a mask", "with computed shapes", "without a mask", None])
def test_heads_that_queries_share_are_not_copied(rng, monkeypatch, form):
    for name, value in SHARED_CONSTANTS.items():
        monkeypatch.setitem(CONSTANTS, name, value)
    if form is not None and "computed" not in form:
        monkeypatch.setitem(CONSTANTS, "turned", np.array([B, SHARED * TIMES, D, T]))
    nodes = [*repeated("few_k", "k"), *repeated("few_v", "v"), *(FORMS.get(form) or STANDARD)]
    (fused,), (plain,), groups = run(nodes, shared_operands(rng), opset=23)
    assert groups == {n.name: ATTENTION for n in nodes}
    close(fused, plain)


def test_copies_that_are_read_elsewhere_are_made(rng, monkeypatch):
    for name, value in SHARED_CONSTANTS.items():
        monkeypatch.setitem(CONSTANTS, name, value)
    nodes = [*repeated("few_k", "k"), *repeated("few_v", "v"), *FORMS["without a mask"]]
    nodes.append(node("Neg", "v", "z"))
    fused, plain, groups = run(nodes, shared_operands(rng), outputs=["y", "z"])
    assert groups == {n.name: ATTENTION for n in FORMS["without a mask"]}
    for got, wanted in zip(fused, plain, strict=True):
        close(got, wanted)


def test_copies_in_another_order_are_made(rng, monkeypatch):
    """Heads 0, 1, 0, 1, ... instead of 0, 0, ..., 1, 1, ..."""
    changed = {"copies": np.array([1, TIMES, 1, 1, 1]), "c2": np.array([1])}
    for name, value in (SHARED_CONSTANTS | changed).items():
        monkeypatch.setitem(CONSTANTS, name, value)
    nodes = [*repeated("few_k", "k"), *repeated("few_v", "v"), *FORMS["without a mask"]]
    (fused,), (plain,), groups = run(nodes, shared_operands(rng))
    assert groups == {n.name: ATTENTION for n in FORMS["without a mask"]}
    close(fused, plain)


def test_unknown_dimensions_are_not_fused(rng):
    (fused,), (plain,), groups = run(FORMS["without a mask"], operands(rng), dynamic=True)
    assert groups == {}
    np.testing.assert_array_equal(fused, plain)


def test_float64_stays_in_single_operators(rng):
    """The attention core has no float64."""
    feeds = {name: value.astype(np.float64) for name, value in operands(rng).items()}
    nodes = FORMS["without a scale"]
    (fused,), (plain,), groups = run(nodes, feeds)
    assert groups == {}
    np.testing.assert_array_equal(fused, plain)


def permuted_keys(
    feeds: dict[str, np.ndarray], order: tuple[int, ...]
) -> tuple[dict, onnx.NodeProto]:
    """The keys with their axes in this order, and the Transpose that gives [B, N, D, T]."""
    perm = [order.index(axis) for axis in (0, 1, 3, 2)]
    return {**feeds, "k": feeds["k"].transpose(order).copy()}, node(
        "Transpose", "k", "t", perm=perm
    )


@pytest.mark.parametrize("order", [(0, 2, 1, 3), (2, 0, 1, 3), (3, 1, 0, 2)])
@pytest.mark.parametrize("masked", [False, True])
def test_keys_whose_axes_are_in_another_order(rng, order, masked):
    """As onnxruntime leaves them, which joins two transpositions to one."""
    feeds, turn = permuted_keys(operands(rng), order)
    nodes = [turn, *SCALED, *(MASKED + REPLACED if masked else PLAIN)]
    (fused,), (plain,), groups = run(nodes, feeds)
    assert set(groups.values()) == {"npu.fused:Attention"}
    assert set(groups) == {n.name for n in nodes}
    close(fused, plain)
    if not masked:
        names = {"q": "bnsd", "v": "bntd", "k": ["bntd"[axis] for axis in order]}
        names = {name: list(dims) for name, dims in names.items()}
        names = {n: [d if d in "st" else "" for d in dims] for n, dims in names.items()}
        (fused,), (plain,), groups = run(nodes, feeds, names)
        assert set(groups.values()) == {"npu.fused:Attention"}
        close(fused, plain)


def test_attention_is_fused_behind_onnxruntimes_own_optimizations(rng):
    feeds, _ = permuted_keys(operands(rng), (0, 2, 1, 3))
    nodes = [
        node("Transpose", "k", "heads", perm=[0, 2, 1, 3]),
        node("Transpose", "heads", "t", perm=[0, 1, 3, 2]),
        *SCALED,
        *PLAIN,
    ]
    used = {name: value for name, value in CONSTANTS.items() if name == "scale"}
    feeds.pop("mask")
    model = model_of(nodes, feeds, used)
    session, plain = npu_session(model), npu_session(model, fusion=0)
    assert set(fused_nodes(session).values()) == {"npu.fused:Attention"}
    close(session.run(None, feeds)[0], plain.run(None, feeds)[0])
