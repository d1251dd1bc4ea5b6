"""GatherBlockQuantized becomes a gather of bytes and arithmetic that is exact."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import onnx
import onnxruntime_npu
import pytest
from comparison import MICROSOFT, PROVIDERS, check, converted, model_of
from onnx import helper
from onnxruntime import InferenceSession

ROWS, WIDTH, BLOCK = 9, 96, 32


def table(bits, zeros, dtype):
    """Return bytes, scales and zero points of a table [ROWS, WIDTH]."""
    generator = np.random.default_rng(5)
    blocks, per_byte = WIDTH // BLOCK, 8 // bits
    weights = {
        "data": generator.integers(0, 256, (ROWS, WIDTH // per_byte)).astype(np.uint8),
        "scales": generator.uniform(0.5, 1, (ROWS, blocks)).astype(dtype),
    }
    if zeros:
        weights["zeros"] = generator.integers(0, 256, (ROWS, -(-blocks // per_byte))).astype(
            np.uint8
        )
    return weights


def gather(weights, indices, bits=4, **attributes):
    """Return a model of one node, and its inputs."""
    names = ["data", "indices", *list(weights)[1:]]
    attributes = {"bits": bits, "block_size": BLOCK, "quantize_axis": 1, **attributes}
    node = helper.make_node(
        "GatherBlockQuantized", names, ["y"], name="it", domain=MICROSOFT, **attributes
    )
    inputs = {"indices": np.array(indices)}
    return model_of([node], inputs, {"y": weights["scales"].dtype}, weights), inputs


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize("indices", [[[1, 8, -9], [0, 3, 3]], [7], np.zeros((0, 1), np.int64)])
def test_gather_of_bytes(tmp_path, indices, zeros, bits, dtype):
    model, inputs = gather(table(bits, zeros, dtype), indices, bits)
    check(model, tmp_path, inputs, {}, 0)  # one rounding, of the product
    session = InferenceSession(tmp_path / "converted.onnx", providers=[PROVIDERS[0]])
    rows = onnxruntime_npu.assignment(session)
    assert {row["provider"] for row in rows} == {PROVIDERS[0]}, rows


@pytest.mark.parametrize("dtype", [ml_dtypes.int4, ml_dtypes.uint4])
@pytest.mark.parametrize("zeros", [False, True])
def test_gather_of_types_of_4_bits(tmp_path, zeros, dtype):
    generator = np.random.default_rng(6)
    blocks, low = WIDTH // BLOCK, int(ml_dtypes.iinfo(dtype).min)
    weights = {
        "data": generator.integers(low, low + 16, (ROWS, WIDTH)).astype(dtype),
        "scales": generator.uniform(0.5, 1, (ROWS, blocks)).astype(np.float32),
    }
    if zeros:
        weights["zeros"] = generator.integers(low, low + 16, (ROWS, blocks)).astype(dtype)
    model, inputs = gather(weights, [[1, 8], [0, 3]])
    check(model, tmp_path, inputs, {}, 0)


@pytest.mark.parametrize(
    ("attributes", "reason"),
    [
        ({"bits": 2}, "its table has 2 bits"),
        ({"block_size": 64}, "its rows are no whole blocks"),
        ({"quantize_axis": 0, "gather_axis": 1}, "its blocks are not parts of rows"),
    ],
)
def test_tables_of_other_forms_stay(tmp_path, attributes, reason):
    model, _ = gather(table(4, False, np.float32), [[1, 2]], **attributes)
    report, path = converted(model, tmp_path)
    assert list(report.left) == ["it"] and reason in report.left["it"]
    assert [node.op_type for node in onnx.load(path).graph.node] == ["GatherBlockQuantized"]
