"""MatMulNBits against the dequantised product in float64."""

from __future__ import annotations

import numpy as np
import pytest
from onnx_nodes import Node, make_model, make_session, npu_nodes, random, run_cpu, run_npu

MICROSOFT = "com.microsoft"
# Weights dequantised in A's type and sums of up to 300 terms of up to 8, relative to the largest.
NEAR = {"float32": 2e-6, "float16": 3e-3, "bfloat16": 2e-2}


def packed(values: np.ndarray, bits: int) -> np.ndarray:
    """Integers along the last axis, the first in the lowest bits of a byte."""
    each = 8 // bits
    padded = np.zeros((*values.shape[:-1], -(-values.shape[-1] // each) * each), np.uint8)
    padded[..., : values.shape[-1]] = values
    parts = padded.reshape(*padded.shape[:-1], -1, each).astype(np.uint32)
    return (parts << (bits * np.arange(each))).sum(-1).astype(np.uint8)


def weight(rng, k: int, n: int, bits: int, block: int):
    """B and zero points as a node takes them, and the integers and zero points that they hold."""
    blocks = -(-k // block)
    values = rng.integers(0, 2**bits, (n, blocks * block)).astype(np.uint8)
    points = rng.integers(0, 2**bits, (n, blocks)).astype(np.uint8)
    b = packed(values, bits).reshape(n, blocks, block * bits // 8)
    return b, packed(points, bits).reshape(-1), values, points


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("bits", [2, 4, 8])
def test_bits_blocks_and_zero_points(bits, dtype) -> None:
    rng = np.random.default_rng(bits)
    for rows, k, n, block in [((3,), 64, 5, 16), ((2, 9), 100, 70, 32), ((1,), 257, 33, 128)]:
        b, points, values, zero = weight(rng, k, n, bits, block)
        scales = random(rng, dtype, n * zero.shape[1], low=0.5, high=1)
        a = random(rng, dtype, *rows, k, low=-1, high=1)
        bias = random(rng, dtype, n)
        given = {"none": None, "packed": points, "floats": zero.reshape(-1).astype(a.dtype)}
        for form, given_points in given.items():
            middle = np.full_like(zero, 2 ** (bits - 1)) if form == "none" else zero
            steps = scales.astype(np.float64).reshape(n, -1)
            wide = values.reshape(n, -1, block).astype(np.float64) - middle[..., None]
            wide = (wide * steps[..., None]).reshape(n, -1)[:, :k]
            expected = a.astype(np.float64) @ wide.T + bias.astype(np.float64)
            for constant in ((1, 2, 3, 5), (1, 5)):  # onnxruntime wants the bias known
                constant = tuple(i for i in constant if i != 3 or given_points is not None)
                got = run_npu(
                    "MatMulNBits", [a, b, scales, given_points, None, bias], domain=MICROSOFT,
                    constant=constant, K=k, N=n, bits=bits, block_size=block,
                )[0]  # fmt: skip
                assert got.dtype == a.dtype and got.shape == expected.shape
                near = NEAR[dtype] * np.abs(expected).max()
                np.testing.assert_allclose(got.astype(np.float64), expected, rtol=0, atol=near)


def test_accuracy_level_4_rounds_the_first_operand_to_integers() -> None:
    rng = np.random.default_rng(9)
    b, _, values, zero = weight(rng, 128, 40, 4, 32)
    scales = random(rng, "float32", zero.size, low=0.5, high=1)
    a = random(rng, "float32", 6, 128, low=-1, high=1)
    options = {"K": 128, "N": 40, "bits": 4, "block_size": 32, "constant": (1, 2)}
    got = run_npu("MatMulNBits", [a, b, scales], domain=MICROSOFT, accuracy_level=4, **options)[0]
    wide = (values.reshape(40, 4, 32) - 8.0) * scales.reshape(40, 4, 1)
    expected = a @ wide.reshape(40, 128).T
    # 128 terms, each off by half of a step of 1 / 127 of the largest in its block, times up to 8.
    bound = 0.5 / 127 * np.abs(wide).sum() / 40
    np.testing.assert_allclose(got, expected, rtol=0, atol=bound)
    exact = run_npu("MatMulNBits", [a, b, scales], domain=MICROSOFT, **options)[0]
    assert np.abs(exact - expected).max() < np.abs(got - expected).max()


@pytest.mark.parametrize("sizes", ["equal", "any"])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("bits", [2, 4, 8])
def test_groups_given_row_by_row(bits, dtype, sizes) -> None:
    """As GPTQ's act_order gives them; groups of any size, of which some may be empty."""
    rng = np.random.default_rng(12)
    for rows, k, n, block in [((3,), 96, 5, 16), ((2, 9), 100, 70, 32)]:
        b, points, values, zero = weight(rng, k, n, bits, block)
        blocks = zero.shape[1]
        groups = rng.permutation(np.arange(k) // block).astype(np.int32)
        if sizes == "any":
            groups = rng.integers(0, max(blocks - 1, 1), k).astype(np.int32)
        scales = random(rng, dtype, n * blocks, low=0.5, high=1)
        a = random(rng, dtype, *rows, k, low=-1, high=1)
        options = {"K": k, "N": n, "bits": bits, "block_size": block, "domain": MICROSOFT}
        steps = scales.astype(np.float64).reshape(n, -1)[:, groups]
        for given_points in (points, zero.reshape(-1).astype(a.dtype), None):
            middle = np.full_like(zero, 2 ** (bits - 1)) if given_points is None else zero
            wide = (values[:, :k].astype(np.float64) - middle[:, groups]) * steps
            expected = a.astype(np.float64) @ wide.T
            given = [a, b, scales, given_points, groups]
            for constant in ((1, 2, 3, 4), (1, 4)):
                constant = tuple(i for i in constant if given[i] is not None)
                got = run_npu("MatMulNBits", given, constant=constant, **options)[0]
                near = NEAR[dtype] * np.abs(expected).max()
                np.testing.assert_allclose(got.astype(np.float64), expected, rtol=0, atol=near)


def test_groups_against_the_cpu() -> None:
    rng = np.random.default_rng(13)
    b, _, _, zero = weight(rng, 128, 40, 4, 32)
    points = zero.reshape(-1).astype(np.float32)  # beside g_idx, the CPU ignores those of uint8
    groups = rng.permutation(np.arange(128) // 32).astype(np.int32)
    scales = random(rng, "float32", zero.size, low=0.5, high=1)
    a = random(rng, "float32", 6, 128, low=-1, high=1)
    options = {"K": 128, "N": 40, "bits": 4, "block_size": 32, "domain": MICROSOFT}
    given = [a, b, scales, points, groups]
    got = run_npu("MatMulNBits", given, constant=(1, 2, 3, 4), **options)[0]
    expected = run_cpu("MatMulNBits", given, constant=(1, 2, 3, 4), **options)[0]
    near = NEAR["float32"] * np.abs(expected).max()
    np.testing.assert_allclose(got, expected, rtol=0, atol=near)


@pytest.mark.parametrize("level", range(5))
def test_every_accuracy_level(level) -> None:
    """A level is the least accuracy: below 4 products are of floats."""
    rng = np.random.default_rng(14)
    b, points, _, zero = weight(rng, 64, 33, 4, 16)
    given = [random(rng, "float32", 6, 64), b, random(rng, "float32", zero.size), points]
    options = {"K": 64, "N": 33, "bits": 4, "block_size": 16, "domain": MICROSOFT}
    exact = run_npu("MatMulNBits", given, constant=(1, 2, 3), **options)[0]
    got = run_npu("MatMulNBits", given, constant=(1, 2, 3), accuracy_level=level, **options)[0]
    if level < 4:
        np.testing.assert_array_equal(got, exact)
    else:
        # A is rounded to steps of 1 / 127 of the largest of 16.
        assert 0 < np.abs(got - exact).max() < 0.02 * np.abs(exact).max()


@pytest.mark.parametrize("group", [-1, 4, 2**31 - 1])
def test_wrong_groups_are_refused(group) -> None:
    rng = np.random.default_rng(15)
    b, _, _, zero = weight(rng, 64, 5, 4, 16)
    a, scales = random(rng, "float32", 3, 64), random(rng, "float32", zero.size)
    options = {"domain": MICROSOFT, "K": 64, "N": 5, "bits": 4, "block_size": 16}
    groups = np.zeros(64, np.int32)
    groups[7] = group
    for order, message in [(groups, r"expected g_idx in \[0, 4\)"), (groups[:63], "g_idx with 64")]:
        with pytest.raises(Exception, match=message):
            Node("MatMulNBits", [a, b, scales, None, order], constant=(1, 2, 4), **options)


def test_forms_that_stay_on_the_cpu() -> None:
    rng = np.random.default_rng(10)
    b, _, _, zero = weight(rng, 64, 5, 4, 16)
    a, scales = random(rng, "float32", 3, 64), random(rng, "float32", zero.size)
    options = {"domain": MICROSOFT, "K": 64, "N": 5, "bits": 4, "block_size": 16}
    order = np.zeros(64, np.int32)
    with_index = make_model("MatMulNBits", [a, b, scales, None, order], constant=(1,), **options)
    assert npu_nodes(make_session(with_index)) == []
    variable = make_model("MatMulNBits", [a, b, scales], **options)
    assert npu_nodes(make_session(variable)) == []
    prepacked = make_model(
        "MatMulNBits", [a, b, scales], constant=(1,), weight_prepacked=1, **options
    )
    assert npu_nodes(make_session(prepacked)) == []


WRONG = [
    ({"K": 65}, r"expected A \[.., 65\]|B of|scales"),
    ({"N": 6}, "expected B of 6 columns"),
    ({"block_size": 24}, "a power of 2 from 16 on"),
    ({"block_size": 32}, "scales"),
]


@pytest.mark.parametrize("attributes, message", WRONG, ids=str)
def test_wrong_attributes_are_refused(attributes, message) -> None:
    rng = np.random.default_rng(11)
    b, _, _, zero = weight(rng, 64, 5, 4, 16)
    given = [random(rng, "float32", 3, 64), b, random(rng, "float32", zero.size)]
    options = {"K": 64, "N": 5, "bits": 4, "block_size": 16} | attributes
    with pytest.raises(Exception, match=message):
        Node("MatMulNBits", given, domain=MICROSOFT, constant=(1,), **options)(*given)
