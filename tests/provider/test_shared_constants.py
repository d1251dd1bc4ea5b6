"""A tied embedding table is stored once; its other uses are unaffected."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import onnxruntime as ort
import onnxruntime_npu
import pytest
from onnx import TensorProto, helper
from provider_models import make_model, npu_session

ROWS, COLUMNS = 4096, 64
ELEMENTS = {
    np.float32: TensorProto.FLOAT,
    np.float16: TensorProto.FLOAT16,
    ml_dtypes.bfloat16: TensorProto.BFLOAT16,
}


def tied_model(table: np.ndarray, readers: str = "", last: str = "Gemm") -> bytes:
    """y = table[ids] @ table.T, and other `readers` of the table."""
    rows, element = table.shape[0], ELEMENTS[table.dtype.type]
    nodes = [
        helper.make_node("Gather", ["table", "ids"], ["x"], "look-up"),
        helper.make_node(last, ["x", "table"], ["y"], "project", transB=1)
        if last == "Gemm"
        else helper.make_node("NPULinear", ["x", "table"], ["y"], "project", domain="npu"),
    ]
    outputs = [("x", element, ["n", COLUMNS]), ("y", element, ["n", rows])]
    if readers == "node":
        nodes += [
            helper.make_node("Cast", ["ids"], ["numbers"], to=element),
            helper.make_node("ReduceMax", ["numbers"], ["most"], keepdims=0),
            helper.make_node("Add", ["table", "most"], ["z"], "add"),
        ]
        outputs.append(("z", element, [rows, COLUMNS]))
    elif readers == "output":
        outputs.append(("table", element, [rows, COLUMNS]))
    elif readers == "columns":
        nodes.append(helper.make_node("Gather", ["table", "ids"], ["z"], "column", axis=1))
        outputs.append(("z", element, [rows, "n"]))
    return make_model(nodes, [("ids", TensorProto.INT64, ["n"])], outputs, {"table": table})


def check(session: ort.InferenceSession, table: np.ndarray, element: int) -> None:
    """Rows equal the table's, matmul results are within a rounding of their type."""
    wide = table.astype(np.float32)
    for count in (1, 5, 40):
        ids = np.arange(count, dtype=np.int64) * 97 % COLUMNS
        binding = session.io_binding()
        binding.bind_cpu_input("ids", ids)
        buffers = {}
        for name, columns in (("x", COLUMNS), ("y", table.shape[0])):
            buffers[name] = np.empty((count, columns), table.dtype)
            binding.bind_output(
                name, "cpu", 0, element, (count, columns), buffers[name].ctypes.data
            )
        for output in session.get_outputs()[2:]:
            binding.bind_output(output.name, "cpu")
        session.run_with_iobinding(binding)
        np.testing.assert_array_equal(buffers["x"], table[ids])
        exact = wide[ids] @ wide.T
        rounding = {1: 1e-6, 10: 2.0**-10, 16: 2.0**-7}[element]
        bound = rounding * np.abs(exact) + 64 * 2.0**-22  # sums of 64 products of [-1, 1]
        if element == TensorProto.FLOAT16:
            # Tiles without an instruction for float16 multiply it in parts (decision 20).
            bound += 2.0**-16 * (np.abs(wide[ids]) @ np.abs(wide).T)
        error = np.abs(buffers["y"].astype(np.float32) - exact)
        assert (error <= bound).all(), f"{(error / bound).max()} of the bound"


def growth(model: bytes) -> tuple[ort.InferenceSession, int]:
    """A session, and the device memory that it holds."""
    before = onnxruntime_npu.npu.memory_allocated()
    session = npu_session(model)
    return session, onnxruntime_npu.npu.memory_allocated() - before


@pytest.mark.parametrize("last", ["Gemm", "NPULinear"])
@pytest.mark.parametrize("dtype", list(ELEMENTS))
@pytest.mark.usefixtures("still_memory")
def test_tied_table_is_stored_once(dtype, last, rng):
    table = rng.uniform(-1, 1, (ROWS, COLUMNS)).astype(dtype)
    session, held = growth(tied_model(table, last=last))
    assert held < 1.5 * table.nbytes
    check(session, table, ELEMENTS[dtype])


@pytest.mark.parametrize("readers", ["node", "output", "columns"])
@pytest.mark.usefixtures("still_memory")
def test_other_consumer_reads_the_unpacked_table(readers, rng):
    table = rng.uniform(-1, 1, (ROWS, COLUMNS)).astype(np.float32)
    session, held = growth(tied_model(table, readers))
    assert held >= 2 * table.nbytes  # the projection has a packed copy
    check(session, table, TensorProto.FLOAT)
    ids = np.array([3, 1], np.int64)
    third = session.run(None, {"ids": ids})[2]
    expected = {"node": table + np.float32(3), "output": table, "columns": table[:, ids]}[readers]
    np.testing.assert_array_equal(third, expected)


@pytest.mark.usefixtures("still_memory")
def test_partial_last_panel_is_not_shared(rng):
    table = rng.uniform(-1, 1, (ROWS + 1, COLUMNS)).astype(np.float32)
    session, held = growth(tied_model(table))
    assert held >= 2 * table.nbytes
    check(session, table, TensorProto.FLOAT)


def test_sessions_do_not_share_constants(rng):
    tables = [rng.uniform(-1, 1, (ROWS, COLUMNS)).astype(np.float32) for _ in range(2)]
    sessions = [npu_session(tied_model(table)) for table in tables]
    for session, table in zip(sessions, tables, strict=True):
        check(session, table, TensorProto.FLOAT)
