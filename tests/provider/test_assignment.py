"""Claiming: which nodes run on the NPU, which stay on the CPU, and how both are reported."""

from __future__ import annotations

import numpy as np
import onnxruntime as ort
import onnxruntime_npu
import pytest
from onnx import TensorProto, helper
from provider_models import (
    CPU,
    NPU,
    add_model,
    left_to_the_cpu,
    make_model,
    npu_session,
    providers_of,
)

FLOAT, INT64, STRING = TensorProto.FLOAT, TensorProto.INT64, TensorProto.STRING


def node(op: str, inputs: str, outputs: str, name: str, **attributes) -> object:
    return helper.make_node(op, inputs.split(), outputs.split(), name, **attributes)


def unoptimized() -> ort.SessionOptions:
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    return options


def test_rows_have_the_documented_fields():
    rows = onnxruntime_npu.assignment(npu_session(add_model()))
    assert rows == [
        {"node": n, "op_type": op, "domain": "", "provider": NPU, "reason": "", "fused_into": ""}
        for n, op in (("add", "Add"), ("mul", "Mul"))
    ]


def test_every_way_to_create_a_session_has_a_record():
    options = ort.SessionOptions()
    options.add_provider_for_devices([d for d in ort.get_ep_devices() if d.ep_name == NPU], {})
    for session in (
        npu_session(add_model()),
        npu_session(add_model(), ort.SessionOptions()),
        ort.InferenceSession(add_model(), options),
    ):
        assert providers_of(session) == {"add": NPU, "mul": NPU}


def test_model_in_ort_format_has_a_record(tmp_path):
    options = ort.SessionOptions()
    options.log_severity_level = 3
    options.optimized_model_filepath = str(tmp_path / "model.ort")
    ort.InferenceSession(mixed_model(), options, providers=[CPU])
    session = npu_session(options.optimized_model_filepath)
    assert providers_of(session) == {"add": NPU, "left": CPU}
    reasons = {row["node"]: row["reason"] for row in onnxruntime_npu.assignment(session)}
    assert reasons["add"] == ""
    assert reasons["left"].startswith("no NPU kernel for ai.onnx.ml:Normalizer")


def mixed_model() -> bytes:
    return make_model(
        [node("Add", "x x", "s", "add"), left_to_the_cpu("s", "y")],
        [("x", FLOAT, [2, 2])],
        [("y", FLOAT, [2, 2])],
    )


def test_records_of_sessions_are_separate():
    first, second = npu_session(add_model()), npu_session(mixed_model())
    assert providers_of(first) == {"add": NPU, "mul": NPU}
    assert providers_of(second) == {"add": NPU, "left": CPU}
    assert {row["reason"] for row in onnxruntime_npu.assignment(first)} == {""}


def test_session_without_the_npu_has_no_record():
    session = ort.InferenceSession(add_model(), providers=[CPU])
    with pytest.raises(RuntimeError, match="expected a session made after"):
        onnxruntime_npu.assignment(session)


def test_unsupported_type_is_reported_with_the_reason():
    """Strings never have a kernel."""
    model = make_model(
        [node("Identity", "x", "y", "copy")], [("x", STRING, [2])], [("y", STRING, [2])]
    )
    session = npu_session(model, unoptimized())
    (row,) = onnxruntime_npu.assignment(session)
    assert row["provider"] == CPU and row["reason"]
    assert session.run(None, {"x": np.array(["a", "b"])})[0].tolist() == ["a", "b"]


def test_unknown_operator_on_the_cpu_is_reported_with_the_reason():
    model = mixed_model()
    session = npu_session(model)
    rows = {row["node"]: row for row in onnxruntime_npu.assignment(session)}
    assert rows["add"]["provider"] == NPU
    assert rows["left"]["provider"] == CPU
    assert rows["left"]["reason"].startswith(
        "no NPU kernel for ai.onnx.ml:Normalizer of operator set version"
    )
    x = np.array([[1, 2], [3, 4]], np.float32)
    expected = x / x.sum(1, keepdims=True)
    np.testing.assert_allclose(session.run(None, {"x": x})[0], expected, rtol=1e-6)
    with pytest.raises(
        Exception, match=r"cpu_fallback is 'refuse', but 1 nodes .*Normalizer 'left'"
    ):
        npu_session(model, cpu_fallback="refuse")


def test_operators_can_be_left_to_the_cpu():
    x, y = (np.full((2, 4), value, np.float32) for value in (2, 3))
    for names, left in (("Mul", {"mul"}), ("Mul,Add,com.microsoft:FusedMatMul", {"add", "mul"})):
        session = npu_session(add_model(), cpu_operators=names)
        rows = {row["node"]: row for row in onnxruntime_npu.assignment(session)}
        assert {name for name, row in rows.items() if row["provider"] == CPU} == left
        assert rows["mul"]["reason"] == "the option cpu_operators leaves Mul to the CPU"
        np.testing.assert_array_equal(session.run(None, {"x": x, "y": y})[0], (x + y) * y)
    assert providers_of(npu_session(add_model(), cpu_operators="none")) == {"add": NPU, "mul": NPU}
    with pytest.raises(Exception, match=r"cpu_fallback is 'refuse', but 1 nodes .*cpu_operators"):
        npu_session(add_model(), cpu_operators="Mul", cpu_fallback="refuse")


@pytest.mark.parametrize(
    "names", ["Mull", "mul", "Mul, Add", ",", "Mul,none", "microsoft:Gelu", ":"]
)
def test_operators_that_the_npu_does_not_have_cannot_be_left_out(names):
    with pytest.raises(Exception, match="'cpu_operators' expected none, or names of operators"):
        npu_session(add_model(), cpu_operators=names)


def test_a_group_with_an_operator_left_to_the_cpu_is_not_fused():
    weight = {"w": np.ones((1, 1, 1, 1), np.float32)}
    nodes = [node("Conv", "x w", "c", "conv"), node("Relu", "c", "y", "relu")]
    shape = [1, 1, 4, 4]
    model = make_model(nodes, [("x", FLOAT, shape)], [("y", FLOAT, shape)], weight)
    fused = [
        {row["op_type"]: (row["provider"], bool(row["fused_into"])) for row in rows}
        for rows in (
            onnxruntime_npu.assignment(npu_session(model, unoptimized(), cpu_operators=names))
            for names in ("none", "Relu")
        )
    ]
    assert fused == [
        {"Conv": (NPU, True), "Relu": (NPU, True)},
        {"Conv": (NPU, False), "Relu": (CPU, False)},
    ]


def test_shape_arithmetic_stays_on_the_cpu_and_data_does_not():
    """reshape(x, [batch * 2, dim / 2]) with the shape computed from x, as exporters write it."""
    nodes = [
        node("Shape", "x", "shape", "shape"),
        node("Gather", "shape zero", "batch", "batch"),
        node("Gather", "shape one", "dim", "dim"),
        node("Mul", "batch two", "rows", "rows"),
        node("Div", "dim two", "columns", "columns"),
        node("Unsqueeze", "rows axis", "rows1", "rows1"),
        node("Unsqueeze", "columns axis", "columns1", "columns1"),
        node("Concat", "rows1 columns1", "target", "target", axis=0),
        node("Add", "x x", "sum", "sum"),
        node("Reshape", "sum target", "y", "reshape"),
    ]
    constants = {
        "zero": np.array(0, np.int64),
        "one": np.array(1, np.int64),
        "two": np.array(2, np.int64),
        "axis": np.array([0], np.int64),
    }
    model = make_model(nodes, [("x", FLOAT, ["n", "d"])], [("y", FLOAT, ["m", "e"])], constants)
    session = npu_session(model)
    rows = {row["node"]: row for row in onnxruntime_npu.assignment(session)}
    for name in ("sum", "reshape", "shape"):
        assert rows[name]["provider"] == NPU, rows[name]
    for name in ("batch", "dim", "rows", "columns", "target"):
        if name in rows:  # ORT may have folded it
            assert rows[name]["provider"] == CPU
            assert rows[name]["reason"] == "shape arithmetic stays on the CPU"
    npu_session(model, cpu_fallback="refuse")
    x = np.arange(24, dtype=np.float32).reshape(4, 6)
    np.testing.assert_array_equal(session.run(None, {"x": x})[0], (x + x).reshape(8, 3))


def test_token_ids_and_positions_are_data():
    """Embedding look-up and position arithmetic run on the NPU although they are integers."""
    nodes = [
        node("Gather", "table ids", "embedded", "embed"),
        node("Add", "positions one", "next", "next"),
        node("Cast", "next", "scale", "cast", to=FLOAT),
        node("Unsqueeze", "scale axis", "scale1", "unsqueeze"),
        node("Mul", "embedded scale1", "y", "scaled"),
    ]
    table = np.arange(32, dtype=np.float32).reshape(8, 4)
    constants = {"table": table, "one": np.array(1, np.int64), "axis": np.array([-1], np.int64)}
    model = make_model(
        nodes,
        [("ids", INT64, ["b", "s"]), ("positions", INT64, ["b", "s"])],
        [("y", FLOAT, ["b", "s", 4])],
        constants,
    )
    session = npu_session(model)
    assert set(providers_of(session).values()) == {NPU}, onnxruntime_npu.assignment(session)
    ids, positions = np.array([[1, 7]]), np.array([[0, 3]])
    expected = table[ids] * (positions + 1)[..., None]
    np.testing.assert_array_equal(
        session.run(None, {"ids": ids, "positions": positions})[0], expected
    )


def test_length_as_graph_input_is_shape_arithmetic():
    """A scalar input that only determines a size is not copied to the device and back."""
    nodes = [
        node("Add", "length one", "end", "end"),
        node("Unsqueeze", "end axis", "end1", "end1"),
        node("Slice", "x axis end1 axis", "head", "slice"),
        node("Add", "head head", "y", "add"),
    ]
    constants = {"one": np.array(1, np.int64), "axis": np.array([0], np.int64)}
    model = make_model(
        nodes, [("x", FLOAT, ["n", 4]), ("length", INT64, [])], [("y", FLOAT, ["m", 4])], constants
    )
    session = npu_session(model)
    providers = providers_of(session)
    assert providers["end"] == CPU
    assert providers["slice"] == providers["add"] == NPU
    x = np.arange(20, dtype=np.float32).reshape(5, 4)
    np.testing.assert_array_equal(
        session.run(None, {"x": x, "length": np.array(2, np.int64)})[0], 2 * x[:3]
    )


def test_subgraph_nodes_are_claimed():
    branches = {}
    for name, op in (("then_branch", "Add"), ("else_branch", "Mul")):
        branches[name] = helper.make_graph(
            [helper.make_node(op, ["x", "x"], [name + "_y"], name)],
            name,
            [],
            [helper.make_tensor_value_info(name + "_y", FLOAT, [3])],
        )
    model = make_model(
        [helper.make_node("If", ["flag"], ["y"], "if", **branches)],
        [("flag", TensorProto.BOOL, []), ("x", FLOAT, [3])],
        [("y", FLOAT, [3])],
    )
    session = npu_session(model)
    x = np.array([1, 2, 3], np.float32)
    for flag, expected in ((True, x + x), (False, x * x)):
        out = session.run(None, {"flag": np.array(flag), "x": x})[0]
        np.testing.assert_array_equal(out, expected)
    rows = onnxruntime_npu.assignment(session)
    assert {row["op_type"] for row in rows} == {"If", "Add", "Mul"}
    assert {row["provider"] for row in rows} == {NPU}


def test_without_the_cpu_shape_arithmetic_runs_on_the_npu():
    model = make_model(
        [
            node("Shape", "x", "s", "shape"),
            node("Add", "s one", "t", "add"),
            node("Expand", "c t", "y", "expand"),
        ],
        [("x", FLOAT, ["a", "b"]), ("c", FLOAT, [1])],
        [("y", FLOAT, ["p", "q"])],
        {"one": np.array([1])},
    )
    assert providers_of(npu_session(model))["add"] == CPU
    options = ort.SessionOptions()
    options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
    session = npu_session(model, options)
    assert set(providers_of(session).values()) == {NPU}
    feeds = {"x": np.zeros((2, 3), np.float32), "c": np.full(1, 5, np.float32)}
    assert session.run(None, feeds)[0].tolist() == [[5.0] * 4] * 3


def test_a_session_without_the_cpu_says_what_it_would_have_left_to_it(capfd):
    """Onnxruntime's own error names nothing; in C++ the provider's warnings do."""
    options = unoptimized()
    options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
    nodes = [left_to_the_cpu("x", "a")]
    nodes += [node("Identity", "s", "t", "copy"), node("Add", "a a", "y", "add")]
    model = make_model(
        nodes,
        [("x", FLOAT, [2, 2]), ("s", STRING, [2])],
        [("y", FLOAT, [2, 2]), ("t", STRING, [2])],
    )
    why = r"Normalizer 'left': no NPU kernel .*; Identity 'copy': .*string"
    with pytest.raises(
        Exception, match=rf"explicitly disabled by the user\. .*2 nodes.*{why}"
    ) as e:
        npu_session(model, options)
    assert "'add'" not in str(e.value)
    log = capfd.readouterr().err
    for name in ("Normalizer 'left'", "Identity 'copy'"):
        assert log.count(f"left to the CPU: {name}: ") == 1


def test_an_operator_that_the_cpu_does_not_have_cannot_be_left_to_it():
    nodes = [
        node("Cast", "x", "a", "narrow", to=TensorProto.BFLOAT16),
        node("Mul", "a a", "b", "square"),
        node("Cast", "b", "y", "wide", to=FLOAT),
    ]
    model = make_model(nodes, [("x", FLOAT, [2])], [("y", FLOAT, [2])])
    with pytest.raises(Exception, match=r"Mul 'square': the option cpu_operators .* the CPU does"):
        npu_session(model, unoptimized(), cpu_operators="Mul")
