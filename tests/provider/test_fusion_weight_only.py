"""``npu_weight_quant_batchmatmul``, and what reads its result, as one operator."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from fusion_models import check_float16, node, npu_node, run_used

GATED, NORMED = "npu.fused:WeightQuantGatedMatMul", "npu.fused:WeightQuantMatMulAddRmsNorm"
ROWS, COLUMNS, GROUP = 96, 80, 32


def product(inputs: str = "x w scale offset", **attributes: int) -> onnx.NodeProto:
    options = {"antiquant_group_size": GROUP, "inner_precise": 1} | attributes
    return npu_node("NPUWeightQuantBatchMatmulV2", inputs, "h", **options)


GATE = npu_node("NPUSwiGlu", "h", "y", dim=-1)
NORM = npu_node("NPUAddRmsNorm", "r h gamma", "y rstd sum", epsilon=1e-3)


def run(rng, nodes, outputs=("y",), int4: bool = True, **more: np.ndarray):
    feeds = {
        "x": rng.standard_normal((2, 3, ROWS)).astype(np.float16),
        "r": rng.standard_normal((2, 3, COLUMNS)).astype(np.float16),
    }
    weight = rng.integers(-128, 128, (ROWS, COLUMNS), np.int8)
    if int4:
        weight = rng.integers(-(2**31), 2**31, (ROWS, COLUMNS // 8)).astype(np.int32)
    groups = (ROWS // GROUP, COLUMNS)
    constants = {
        "w": weight,
        "scale": (rng.uniform(0.5, 1.5, groups) / (60 if int4 else 900)).astype(np.float16),
        "offset": rng.integers(-8, 8, groups).astype(np.float16),
        "gamma": rng.standard_normal(COLUMNS).astype(np.float16),
    } | more
    return run_used(nodes, feeds, constants, outputs)


@pytest.mark.parametrize("int4", [True, False], ids=["int4", "int8"])
@pytest.mark.parametrize("inputs", ["x w scale offset", "x w scale"])
def test_a_gate_is_computed_in_its_product(rng, int4, inputs):
    fused, plain, groups = run(rng, [product(inputs), GATE], int4=int4)
    assert groups == {"h": GATED, "y": GATED}
    check_float16(fused, plain)


@pytest.mark.parametrize("inputs", ["x w scale offset", "x w scale"])
@pytest.mark.parametrize("order", ["r h gamma", "h r gamma"])
def test_a_residual_is_added_in_its_product(rng, inputs, order):
    norm = npu_node("NPUAddRmsNorm", order, "y rstd sum", epsilon=1e-3)
    fused, plain, groups = run(rng, [product(inputs), norm], ("y", "sum"))
    assert groups == {"h": NORMED, "y": NORMED}
    check_float16(fused, plain)


def test_one_scale_for_each_column(rng):
    nodes = [product("x w scale", antiquant_group_size=0), GATE]
    scale = (rng.uniform(0.5, 1.5, COLUMNS) / 60).astype(np.float16)
    fused, plain, groups = run(rng, nodes, scale=scale)
    assert groups == {"h": GATED, "y": GATED}
    check_float16(fused, plain)


BIAS = {"bias": np.ones(COLUMNS, np.float16)}
SCALAR = {"scale": np.full(1, 0.01, np.float16)}


@pytest.mark.parametrize(
    ("nodes", "outputs", "more"),
    [
        ([product(), npu_node("NPUSwiGlu", "h", "y", dim=0)], ("y",), {}),
        ([product(), GATE], ("y", "h"), {}),
        ([product("x w scale offset - - bias"), GATE], ("y",), BIAS),
        ([product("x w scale offset - - bias"), NORM], ("y",), BIAS),
        ([product("x w scale", antiquant_group_size=0), GATE], ("y",), SCALAR),
        ([node("Identity", "scale", "s2"), product("x w s2 offset"), GATE], ("y",), {}),
        ([product(), NORM], ("y", "rstd"), {}),
    ],
    ids=[
        *("another axis", "the halves are read", "a bias of the gate", "a bias", "one scale"),
        *("a computed scale", "rstd is read"),
    ],
)
def test_what_stays_apart(rng, nodes, outputs, more):
    if "rstd" in outputs:
        nodes = [*nodes, node("Cast", "rstd", "rstd16", to=onnx.TensorProto.FLOAT16)]
        outputs = ("y", "rstd16")
    fused, plain, groups = run(rng, nodes, outputs, **more)
    assert groups == {}
    for a, b in zip(fused, plain, strict=True):
        np.testing.assert_array_equal(a, b)
