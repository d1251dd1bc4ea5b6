"""Matmuls of 4-bit and 8-bit weights: within the roundings of their types of the exact product."""

from __future__ import annotations

import numpy as np
import pytest
from comparison import DTYPES, MICROSOFT, PROVIDERS, converted, model_of, normal, run
from onnx import helper


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
