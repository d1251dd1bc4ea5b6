"""Small values in host memory, which nodes of the NPU and of the CPU hand to each other."""

from __future__ import annotations

import numpy as np
import onnxruntime as ort
from onnx import TensorProto, helper
from provider_models import CPU, NPU, make_model, npu_session, providers_of

FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64


def length_model(sums: int) -> bytes:
    """y = ids + n and ones of shape [n + 1, …, n + sums], for a vector's length n.

    The NPU's Shape of `e` may write where its Shape of `x` has written, and the CPU's Squeeze
    hands that memory on as `n`, so the memory must last until the last reader of `n`. The sums,
    which the CPU keeps until it has them all, would take it if it were free.
    """
    sums_of = [f"sum{i}" for i in range(sums)]
    nodes = [
        helper.make_node("Shape", ["x"], ["r"], "shape_of_x", start=0, end=1),
        helper.make_node("Expand", ["one", "r"], ["e"], "e"),
        helper.make_node("Shape", ["e"], ["s"], "shape_of_e"),
        helper.make_node("Squeeze", ["s"], ["n"], "n"),
        *(helper.make_node("Add", ["n", f"c{i}"], [name], name) for i, name in enumerate(sums_of)),
        helper.make_node("Concat", sums_of, ["all"], "all", axis=0),
        helper.make_node("Expand", ["one", "all"], ["z"], "z"),
        helper.make_node("Add", ["ids", "n"], ["y"], "y"),
    ]
    constants = {f"c{i}": np.array([i + 1]) for i in range(sums)} | {"one": np.ones(1, np.float32)}
    return make_model(
        nodes,
        [("x", FLOAT, ["n", "m"]), ("ids", INT64, ["b", "t"])],
        [("z", FLOAT, [None] * sums), ("y", INT64, ["b", "t"])],
        constants,
    )


def expect_right(session: ort.InferenceSession) -> None:
    for rows in (2, 1):
        feeds = {"x": np.zeros((rows, 5), np.float32), "ids": np.arange(4)[None]}
        z, y = session.run(None, feeds)
        assert z.shape == tuple(rows + 1 + i for i in range(6))
        np.testing.assert_array_equal(y, feeds["ids"] + rows)


def test_value_keeps_its_memory_while_it_is_read():
    session = npu_session(length_model(6))
    placed = providers_of(session)
    assert [placed[name] for name in ("shape_of_e", "n", "y")] == [NPU, CPU, NPU]
    expect_right(session)


def test_value_keeps_its_memory_where_the_package_does_not_set_the_options(monkeypatch):
    """As with onnxruntime's C++ interface and with onnxruntime-genai."""
    stock = ort.InferenceSession._create_inference_session.__wrapped__
    monkeypatch.setattr(ort.InferenceSession, "_create_inference_session", stock)
    options = ort.SessionOptions()
    expect_right(npu_session(length_model(6), options))
    assert options.enable_mem_reuse


def test_options_of_the_caller_stay_as_they_were():
    options = ort.SessionOptions()
    npu_session(length_model(1), options)
    assert options.enable_mem_reuse
