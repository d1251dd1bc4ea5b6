"""``npu_quant_matmul``, and what reads its result, as one operator."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from fusion_models import check_float16, node, npu_node, run_used

GATED, NORMED = "npu.fused:QuantGatedMatMul", "npu.fused:QuantMatMulAddRmsNorm"
ROWS, COLUMNS = 96, 80
FLOAT16 = 1  # as output_dtype names it


def product(inputs: str = "q w scale - q_scale", **attributes: int) -> onnx.NodeProto:
    return npu_node("NPUQuantMatmul", inputs, "h", **({"output_dtype": FLOAT16} | attributes))


ROUND = npu_node("NPUDynamicQuant", "x", "q q_scale", quant_mode="pertoken")
ROUND_ALL = npu_node("NPUQuantize", "x one", "q", axis=-1, dtype=2)
GATE = npu_node("NPUSwiGlu", "h", "y", dim=-1)
NORM = npu_node("NPUAddRmsNorm", "r h gamma", "y rstd sum", epsilon=1e-3)


def run(rng, nodes, outputs=("y",), **more: np.ndarray):
    feeds = {
        "x": rng.standard_normal((2, 3, ROWS)).astype(np.float16),
        "r": rng.standard_normal((2, 3, COLUMNS)).astype(np.float16),
        "given": rng.uniform(0.01, 0.02, (2, 3)).astype(np.float32),
    }
    constants = {
        "w": rng.integers(-128, 128, (ROWS, COLUMNS), np.int8),
        "scale": (rng.uniform(0.5, 1.5, COLUMNS) / 900).astype(np.float32),
        "gamma": rng.standard_normal(COLUMNS).astype(np.float16),
        "one": np.full(1, 1 / 32, np.float32),
        "bias": np.ones(COLUMNS, np.float32),
    } | more
    return run_used(nodes, feeds, constants, outputs)


ROUNDED = [
    ([ROUND], product()),
    ([ROUND_ALL], product("q w scale")),
]


@pytest.mark.parametrize(("before", "multiply"), ROUNDED, ids=["by row", "by one scale"])
def test_a_gate_is_computed_in_its_product(rng, before, multiply):
    fused, plain, groups = run(rng, [*before, multiply, GATE])
    assert groups == {"h": GATED, "y": GATED}
    check_float16(fused, plain)


@pytest.mark.parametrize(("before", "multiply"), ROUNDED, ids=["by row", "by one scale"])
@pytest.mark.parametrize("order", ["r h gamma", "h r gamma"])
def test_a_residual_is_added_in_its_product(rng, before, multiply, order):
    norm = npu_node("NPUAddRmsNorm", order, "y rstd sum", epsilon=1e-3)
    fused, plain, groups = run(rng, [*before, multiply, norm], ("y", "sum"))
    assert groups == {"h": NORMED, "y": NORMED}
    check_float16(fused, plain)


@pytest.mark.parametrize(
    ("nodes", "outputs", "more"),
    [
        ([ROUND, product(), npu_node("NPUSwiGlu", "h", "y", dim=0)], ("y",), {}),
        ([ROUND, product(), GATE], ("y", "h"), {}),
        ([ROUND, product("q w scale - q_scale bias"), GATE], ("y",), {}),
        ([ROUND, product(), GATE], ("y",), {"scale": np.full(1, 1e-3, np.float32)}),
        ([ROUND, node("Identity", "w", "w2"), product("q w2 scale - q_scale"), GATE], ("y",), {}),
        # Scales of rows that are given may be of other axes than the rows.
        ([ROUND, product("q w scale - given"), GATE], ("y",), {}),
    ],
    ids=[
        *("another axis", "the halves are read", "a bias", "one scale", "a computed weight"),
        "scales of other rows",
    ],
)
def test_what_stays_apart(rng, nodes, outputs, more):
    fused, plain, groups = run(rng, nodes, outputs, **more)
    assert groups == {}
    for a, b in zip(fused, plain, strict=True):
        np.testing.assert_array_equal(a, b)
