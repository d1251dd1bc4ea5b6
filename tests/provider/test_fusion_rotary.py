"""A rotary embedding in single operators, as transformers writes it."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from fusion_models import BFLOAT16, ONNX_TYPES, model_of, node, run_both

ROTARY = "npu:NPURotaryMul"
SIZE = 16
CONSTANTS = {
    name: np.array([value])
    for name, value in {"zero": 0, "half": SIZE // 2, "end": 2**62, "back": -SIZE // 2, "axes": -1,
                        "axis3": 3, "one": 1, "quarter": SIZE // 4}.items()
}  # fmt: skip
HALVES = {
    "slices": [node("Slice", "x zero half axes", "p"), node("Slice", "x half end axes", "q")],
    "slices from the end": [
        node("Slice", "x zero back axis3 one", "p"),
        node("Slice", "x back end axis3 one", "q"),
    ],
    "split": [node("Split", "x", "p q", axis=-1, num_outputs=2)],
    "split by sizes": [node("Split", "x sizes", "p q", axis=3)],
}


def rotary(halves: list, first: str = "p", second: str = "q", axis: int = -1) -> list:
    return [
        *halves,
        node("Neg", second, "negated"),
        node("Concat", f"negated {first}", "turned", axis=axis),
        node("Mul", "x cos", "straight"),
        node("Mul", "turned sin", "across"),
        node("Add", "straight across", "y"),
    ]


def feeds_of(rng, tables=(2, 1, 3, SIZE), dtype=np.float32) -> dict[str, np.ndarray]:
    angle = rng.uniform(0, 6, tables)
    given = {"x": rng.standard_normal((2, 4, 3, SIZE)), "cos": np.cos(angle), "sin": np.sin(angle)}
    return {name: value.astype(dtype) for name, value in given.items()}


def run(nodes, feeds, **options):
    constants = {**CONSTANTS, "sizes": np.array([SIZE // 2, SIZE // 2])}
    read = {name for n in nodes for name in n.input}
    used = {name: value for name, value in constants.items() if name in read}
    return run_both(model_of(nodes, feeds, used, **options), feeds)


@pytest.mark.parametrize("form", HALVES)
def test_rotary_is_fused(rng, form):
    """Both compute two products and a sum in float32; a fused multiply-add rounds once less."""
    nodes = rotary(HALVES[form])
    feeds = feeds_of(rng)
    (fused,), (plain,), groups = run(nodes, feeds)
    assert groups == {n.name: ROTARY for n in nodes}
    np.testing.assert_allclose(fused, plain, rtol=1e-6, atol=1e-6)
    x, half = feeds["x"], SIZE // 2
    turned = np.concatenate([-x[..., half:], x[..., :half]], -1)
    np.testing.assert_allclose(fused, x * feeds["cos"] + turned * feeds["sin"], atol=1e-6)


@pytest.mark.parametrize("order", ["operands", "sum"])
def test_operands_in_another_order(rng, order):
    nodes = rotary(HALVES["slices"])
    if order == "operands":
        nodes[-3:-1] = [node("Mul", "cos x", "straight"), node("Mul", "sin turned", "across")]
    else:
        nodes[-1] = node("Add", "across straight", "y")
    (fused,), (plain,), groups = run(nodes, feeds_of(rng))
    assert set(groups.values()) == {ROTARY}
    np.testing.assert_allclose(fused, plain, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("tables", [(3, SIZE), (1, 1, 3, SIZE), (2, 4, 3, SIZE), (3, 1)])
def test_tables_broadcast(rng, tables):
    (fused,), (plain,), groups = run(rotary(HALVES["slices"]), feeds_of(rng, tables))
    assert set(groups.values()) == {ROTARY}
    np.testing.assert_allclose(fused, plain, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("dtype", [np.float16, BFLOAT16], ids=str)
def test_types(rng, dtype):
    """Fused, a result is rounded once instead of three times: values are below 8."""
    nodes = rotary(HALVES["slices"])
    kind = ONNX_TYPES[np.dtype(dtype)]
    casts = [node("Cast", f"{name}32", name, to=kind) for name in ("x", "cos", "sin")]
    back = node("Cast", "r", "y", to=onnx.TensorProto.FLOAT)
    nodes[-1] = node("Add", "straight across", "r")
    feeds = {f"{name}32": value for name, value in feeds_of(rng).items()}
    (fused,), (plain,), groups = run([*casts, *nodes, back], feeds)
    assert groups == {n.name: ROTARY for n in nodes}
    assert np.abs(fused - plain).max() <= 3 * 8 * 2.0 ** (-8 if dtype == BFLOAT16 else -11)


NEAR_MISSES = {
    "the halves exchanged": (rotary(HALVES["slices"], first="q", second="p"), {}),
    "other parts": (
        rotary([node("Slice", "x zero half axes", "p"), node("Slice", "x zero half axes", "q")]),
        {},
    ),
    "parts of another value": (
        rotary([node("Slice", "z zero half axes", "p"), node("Slice", "z half end axes", "q")]),
        {"z": (2, 4, 3, SIZE)},
    ),
    "tables that widen the result": (rotary(HALVES["slices"]), {"cos": (5, 2, 4, 3, SIZE)}),
    "uneven parts": (
        [
            node("Slice", "x zero quarter axes", "p"),
            node("Slice", "x quarter end axes", "q"),
            *rotary([]),
        ],
        {},
    ),
}


@pytest.mark.parametrize("case", NEAR_MISSES)
def test_near_miss_is_not_fused(rng, case):
    nodes, shapes = NEAR_MISSES[case]
    feeds = feeds_of(rng)
    feeds |= {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    (fused,), (plain,), groups = run(nodes, feeds)
    assert groups == {}
    np.testing.assert_array_equal(fused, plain)


def test_sizes_that_differ_by_name_are_not_fused(rng):
    """The table might have another length than x, so that the sum broadcasts x."""
    (fused,), (plain,), groups = run(rotary(HALVES["slices"]), feeds_of(rng), dynamic=True)
    assert groups == {}
    np.testing.assert_array_equal(fused, plain)
