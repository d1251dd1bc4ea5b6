"""GatherBlockQuantized against the dequantised table that NumPy gathers, and against the CPU."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from onnx_nodes import Node, random, run_cpu, run_npu
from onnxruntime.capi.onnxruntime_pybind11_state import Fail, InvalidArgument, RuntimeException
from test_microsoft_matmul_nbits import packed

OP, MICROSOFT = "GatherBlockQuantized", "com.microsoft"


def spread(values: np.ndarray, shape: tuple, axis: int, block: int) -> np.ndarray:
    wide = np.repeat(values.astype(np.float64), block, axis)
    return np.take(wide, np.arange(shape[axis]), axis) * np.ones(shape)


def gathered(data, points, scales, indices, gather_axis, axis, block) -> np.ndarray:
    table = data.astype(np.float64) - spread(points, data.shape, axis, block)
    table = table * spread(scales, data.shape, axis, block)
    return np.take(table.astype(np.float32).astype(scales.dtype), indices, gather_axis)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("zeros", [False, True])
def test_bytes(zeros, bits, dtype) -> None:
    rng = np.random.default_rng(bits)
    data = rng.integers(0, 2**bits, (9, 80)).astype(np.uint8)
    scales = random(rng, dtype, 9, 3)
    points = rng.integers(0, 2**bits, (9, 3)).astype(np.uint8)
    indices = np.array([[3, -1], [0, 8]])
    given = [packed(data, bits), indices, scales, packed(points, bits) if zeros else None]
    fixed = (0, 2, 3) if zeros else (0, 2)
    options = {"block_size": 32, "bits": bits, "constant": fixed, "domain": MICROSOFT}
    (got,) = run_npu(OP, given, **options)
    meant = points if zeros else np.full_like(points, 2 ** (bits - 1))
    np.testing.assert_array_equal(got, gathered(data, meant, scales, indices, 0, 1, 32))
    if dtype != "bfloat16":
        np.testing.assert_array_equal(got, run_cpu(OP, given, **options)[0])


@pytest.mark.parametrize("element", ["int4", "uint4"])
@pytest.mark.parametrize("gather_axis, axis", [(0, 1), (1, 2), (2, 0), (-1, -1), (1, 1)])
def test_integers_of_four_bits_along_any_axes(gather_axis, axis, element) -> None:
    rng = np.random.default_rng(7)
    shape = (35, 18, 21)  # odd rows begin within a byte
    low = -8 if element == "int4" else 0
    kind = getattr(ml_dtypes, element)
    data = rng.integers(low, low + 16, shape).astype(kind)
    blocks = list(shape)
    blocks[axis] = -(-shape[axis] // 16)
    scales = random(rng, "float32", *blocks)
    points = rng.integers(low, low + 16, blocks).astype(kind)
    indices = np.array([4, 0, -2], np.int32)
    for given_points in (points, None):
        given = [data, indices, scales, given_points]
        fixed = (0, 2) if given_points is None else (0, 2, 3)
        (got,) = run_npu(OP, given, constant=fixed, block_size=16, gather_axis=gather_axis,
                         quantize_axis=axis, domain=MICROSOFT)  # fmt: skip
        meant = np.zeros(blocks) if given_points is None else points.astype(np.int32)
        wanted = gathered(data.astype(np.int32), meant, scales, indices, gather_axis, axis, 16)
        np.testing.assert_array_equal(got, wanted)


@pytest.mark.parametrize("element", ["float8_e4m3fn", "float8_e5m2", "float4_e2m1fn"])
@pytest.mark.parametrize("block, scales", [(16, (6, 3)), (0, (6, 1)), (0, (1, 1))])
def test_narrow_floats(block, scales, element) -> None:
    rng = np.random.default_rng(8)
    data = rng.uniform(-4, 4, (6, 48)).astype(getattr(ml_dtypes, element))
    steps, indices = random(rng, "float32", *scales), np.array([5, 0])
    (got,) = run_npu(
        OP, [data, indices, steps], constant=(0, 2), block_size=block, domain=MICROSOFT
    )
    meant = np.broadcast_to(steps, (6, scales[1]))
    wanted = gathered(data, np.zeros_like(meant), meant, indices, 0, 1, block or 48)
    np.testing.assert_array_equal(got, wanted)


@pytest.mark.parametrize("change, message", [
    ({"indices": np.array([9])}, r"expected an index in \[-9, 9\)"),
    ({"scales": np.ones((9, 2), np.float32)}, "expected scales of shape"),
    ({"scales": np.ones(3, np.float32)}, "expected scales of shape"),
    ({"points": np.ones((9, 3), np.uint8)}, "expected zero_points"),
    ({"block_size": 24}, "expected a block_size"),
    ({"block_size": 0}, "expected a block_size"),
    ({"bits": 3}, "expected bits"),
    ({"quantize_axis": 0}, "expected scales of shape"),
    ({"gather_axis": 1}, "expected gather_axis 0"),
    ({"gather_axis": 2}, r"\[GatherBlockQuantized\] expected"),
])  # fmt: skip
def test_hostile_tables(change, message) -> None:
    arrays = {"data": np.ones((9, 40), np.uint8), "indices": np.array([1]),
              "scales": np.ones((9, 3), np.float32), "points": None}  # fmt: skip
    options = {name: value for name, value in change.items() if name not in arrays}
    given = list((arrays | {n: v for n, v in change.items() if n in arrays}).values())
    with pytest.raises((Fail, InvalidArgument, RuntimeException), match=message):
        Node(OP, given, domain=MICROSOFT, **({"block_size": 32} | options))(*given)
