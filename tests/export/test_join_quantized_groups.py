"""Quantised products of a layer with a paged cache are joined with their gate or norm."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnxruntime_npu.onnx_models.join_groups import join_groups

from .joined_layers import (
    BITS,
    CPU,
    GATE,
    HEADS,
    OUTPUTS,
    PROVIDERS,
    TYPES,
    feeds,
    layer,
    model_of,
    npu,
    onnx_node,
    run,
    session_of,
)

SIZE, GROUP = 32, 32
ROWS, COLUMNS = HEADS * SIZE, 2 * GATE
SCALES = (ROWS // GROUP, COLUMNS)


def constants(dtype: str, int4: bool, scales: tuple[int, ...] = SCALES) -> list[onnx.TensorProto]:
    rng, kind = np.random.default_rng(3), TYPES[dtype]
    weight = rng.integers(-128, 128, (ROWS, COLUMNS), np.int8)
    if int4:
        weight = rng.integers(-(2**31), 2**31, (ROWS, COLUMNS // 8)).astype(np.int32)
    scale = rng.uniform(0.5, 1.5, scales) / (60 if int4 else 900)
    offset = rng.integers(-8, 8, scales).astype(np.float32)
    return [
        onnx.numpy_helper.from_array(weight, "integers"),
        onnx.helper.make_tensor("scale", kind, scale.shape, scale.ravel()),
        onnx.helper.make_tensor("offset", kind, offset.shape, offset.ravel()),
        onnx.helper.make_tensor("bias", kind, [COLUMNS], np.ones(COLUMNS)),
        onnx.numpy_helper.from_array(scale.astype(np.float32)[0], "column_scale"),
    ]


def product(inputs: str, **attributes: Any) -> onnx.NodeProto:
    options = {"antiquant_group_size": GROUP, "inner_precise": 1} | attributes
    given = f"attended integers {inputs}"
    return npu("NPUWeightQuantBatchMatmulV2", given, "halves", **options)


GATED = npu("NPUSwiGlu", "halves", "gated", dim=-1)
NORMED = [
    onnx_node("Identity", "weight", "computed"),
    onnx_node("MatMul", "attended computed", "residual"),
    npu("NPUAddRmsNorm", "residual halves gamma", "normed rstd sum", epsilon=1e-3),
]


CODES = {"float16": 1, "bfloat16": 27}
ROUNDED_TYPES = [
    onnx.helper.make_tensor_value_info("rounded", onnx.TensorProto.INT8, [1, "tokens", ROWS]),
    onnx.helper.make_tensor_value_info("row_scale", onnx.TensorProto.FLOAT, [1, "tokens"]),
]


def rounded_product(dtype: str) -> list[onnx.NodeProto]:
    given = "rounded integers column_scale - row_scale"
    return [
        npu("NPUDynamicQuant", "attended", "rounded row_scale", quant_mode="pertoken"),
        npu("NPUQuantMatmul", given, "halves", output_dtype=CODES[dtype]),
    ]


def check(
    folder: Any,
    dtype: str,
    int4: bool,
    nodes: list[onnx.NodeProto],
    outputs: list[str],
    joined: str,
) -> None:
    arrays, kept = feeds(SIZE), (*OUTPUTS, *outputs)
    model = model_of([*layer(), *nodes], SIZE, dtype, kept, constants(dtype, int4), ROUNDED_TYPES)
    expected = run(session_of(model, folder, PROVIDERS[0]), arrays)
    assert join_groups(model) == {"PagedSelfAttention": 1, joined: 1}
    for provider in PROVIDERS:
        if provider == CPU and dtype == "bfloat16":
            continue  # the CPU has no such MatMul
        found = run(session_of(model, folder, provider), arrays)
        for a, b in zip(found[3:], expected[3:], strict=True):
            # The product is rounded once less, and the CPU rounds each weight.
            bound = 8 * 2.0 ** -BITS[dtype] * max(1.0, float(np.abs(b).max()))
            np.testing.assert_allclose(a, b, rtol=0, atol=bound)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("int4", [True, False], ids=["int4", "int8"])
@pytest.mark.parametrize("inputs", ["scale offset", "scale"])
def test_a_gated_product_is_one_node(tmp_path, dtype, int4, inputs):
    nodes = [product(inputs), GATED]
    check(tmp_path, dtype, int4, nodes, ["gated"], "WeightQuantGatedMatMul")


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("inputs", ["scale offset", "scale"])
def test_a_normed_product_is_one_node(tmp_path, dtype, inputs):
    nodes = [product(inputs), *NORMED]
    check(tmp_path, dtype, True, nodes, ["normed", "sum"], "WeightQuantMatMulAddRmsNorm")


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_a_gate_of_rounded_rows_is_one_node(tmp_path, dtype):
    nodes = [*rounded_product(dtype), GATED]
    check(tmp_path, dtype, False, nodes, ["gated"], "QuantGatedMatMul")


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_a_norm_of_rounded_rows_is_one_node(tmp_path, dtype):
    nodes = [*rounded_product(dtype), *NORMED]
    check(tmp_path, dtype, False, nodes, ["normed", "sum"], "QuantMatMulAddRmsNorm")


@pytest.mark.parametrize(
    ("nodes", "outputs", "scales"),
    [
        ([product("scale offset"), GATED], ("gated", "halves"), SCALES),
        ([product("scale offset - - bias"), GATED], ("gated",), SCALES),
        ([product("scale", antiquant_group_size=0), GATED], ("gated",), (1,)),
        ([product("scale offset - - bias"), *NORMED], ("normed",), SCALES),
    ],
    ids=["halves are read", "a bias of the gate", "one scale", "a bias"],
)
def test_what_stays_apart(nodes, outputs, scales):
    more = constants("float16", True, scales)
    model = model_of([*layer(), *nodes], SIZE, "float16", (*OUTPUTS, *outputs), more)
    assert join_groups(model) == {"PagedSelfAttention": 1}
