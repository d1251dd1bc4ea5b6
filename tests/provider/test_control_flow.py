"""If, Loop and Scan with their bodies on the NPU, against onnxruntime's CPU provider."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime as ort
import onnxruntime_npu
import pytest
from onnx import TensorProto, helper
from provider_models import CPU, NPU, make_model, npu_session

FLOAT, INT64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL
value = helper.make_tensor_value_info


def strict() -> ort.SessionOptions:
    """Options that refuse a session with a node on the CPU."""
    options = ort.SessionOptions()
    options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
    return options


def compare(model: bytes, *feeds: dict) -> None:
    """Runs a model that is on the NPU alone, and on the CPU."""
    session = npu_session(model, strict())
    assert {row["provider"] for row in onnxruntime_npu.assignment(session)} == {NPU}
    cpu = ort.InferenceSession(model, providers=[CPU])
    for feed in feeds:
        for got, expected in zip(session.run(None, feed), cpu.run(None, feed), strict=True):
            assert got.shape == expected.shape and got.dtype == expected.dtype
            np.testing.assert_allclose(got, expected, rtol=1e-6)


def loop_body(nodes, carried, scanned=(), constants=()) -> onnx.GraphProto:
    """(iteration, cond, carried…) -> (cond, carried…, scanned…)."""
    return helper.make_graph(
        nodes,
        "body",
        [value("i", INT64, []), value("c", BOOL, []), *(value(n, t, None) for n, _, t in carried)],
        [
            value("c_out", BOOL, []),
            *(value(n, t, None) for _, n, t in carried),
            *(value(n, t, None) for n, t in scanned),
        ],
        list(constants),
    )


def node(op: str, inputs: str, outputs: str, **attributes) -> onnx.NodeProto:
    return helper.make_node(op, inputs.split(), outputs.split(), **attributes)


def growing_loop() -> bytes:
    """x is doubled until its sum exceeds a bound; each iteration's value and count are kept."""
    body = loop_body(
        [
            node("Add", "x x", "x_out"),
            node("ReduceSum", "x_out", "sum", keepdims=0),
            node("Less", "sum bound", "c_out"),
            node("Identity", "x_out", "seen"),
            node("Mul", "i i", "square"),
        ],
        [("x", "x_out", FLOAT)],
        [("seen", FLOAT), ("square", INT64)],
    )
    return make_model(
        [helper.make_node("Loop", ["trips", "go", "start"], ["y", "all", "squares"], body=body)],
        [
            ("trips", INT64, []),
            ("go", BOOL, []),
            ("start", FLOAT, ["n", "m"]),
            ("bound", FLOAT, []),
        ],
        [("y", FLOAT, ["n", "m"]), ("all", FLOAT, ["t", "n", "m"]), ("squares", INT64, ["t"])],
    )


def test_loop_with_a_condition_and_outputs_of_each_iteration() -> None:
    start = np.arange(1, 7, dtype=np.float32).reshape(2, 3)
    compare(
        growing_loop(),
        *(
            {
                "trips": np.array(trips),
                "go": np.array(go),
                "start": start,
                "bound": np.array(bound, np.float32),
            }
            for trips, go, bound in [
                (10, True, 1000),
                (3, True, 1e9),
                (0, True, 1e9),
                (5, False, 1e9),
                (50, True, 1e9),
            ]
        ),
    )


def test_branches_of_several_shapes_and_values_of_the_outer_graph() -> None:
    def branch(name: str, nodes) -> onnx.GraphProto:
        return helper.make_graph(nodes, name, [], [value("out", FLOAT, None)])

    then = branch("then", [node("MatMul", "x w", "p"), node("Relu", "p", "out")])
    inner = {
        "then_branch": branch("inner_then", [node("Neg", "x", "out")]),
        "else_branch": branch("inner_else", [node("Concat", "x x", "out", axis=0)]),
    }
    other = branch(
        "else", [helper.make_node("If", ["b"], ["deep"], **inner), node("Abs", "deep", "out")]
    )
    model = make_model(
        [
            helper.make_node("If", ["a"], ["z"], then_branch=then, else_branch=other),
            node("Exp", "z", "y"),
        ],
        [("a", BOOL, []), ("b", BOOL, []), ("x", FLOAT, ["n", 3]), ("w", FLOAT, [3, 3])],
        [("y", FLOAT, ["p", "q"])],
    )
    rng = np.random.default_rng(1)
    x, w = (rng.uniform(-1, 1, shape).astype(np.float32) for shape in ((4, 3), (3, 3)))
    compare(
        model,
        *(
            {"a": np.array(a), "b": np.array(b), "x": x, "w": w}
            for a in (True, False)
            for b in (True, False)
        ),
    )


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("direction", [0, 1])
def test_scan(direction, axis) -> None:
    body = helper.make_graph(
        [node("Add", "state x", "next"), node("Mul", "next next", "out")],
        "body",
        [value("state", FLOAT, [4]), value("x", FLOAT, [4])],
        [value("next", FLOAT, [4]), value("out", FLOAT, [4])],
    )
    scan = helper.make_node(
        "Scan", ["s", "xs"], ["last", "ys"], body=body, num_scan_inputs=1,
        scan_input_axes=[axis], scan_output_axes=[axis], scan_input_directions=[direction],
    )  # fmt: skip
    shape = ["t", 4] if axis == 0 else [4, "t"]
    model = make_model(
        [scan],
        [("s", FLOAT, [4]), ("xs", FLOAT, shape)],
        [("last", FLOAT, [4]), ("ys", FLOAT, shape)],
    )
    rng = np.random.default_rng(2)
    for steps in (1, 7):
        xs = rng.uniform(-1, 1, (steps, 4)).astype(np.float32)
        compare(model, {"s": np.ones(4, np.float32), "xs": xs if axis == 0 else xs.T.copy()})


def test_an_error_in_a_body_fails_the_run_and_not_the_session() -> None:
    body = loop_body(
        [node("Gather", "table i", "x_out"), node("Identity", "c", "c_out")],
        [("x", "x_out", FLOAT)],
    )
    model = make_model(
        [helper.make_node("Loop", ["trips", "", "start"], ["y"], body=body)],
        [("trips", INT64, []), ("start", FLOAT, [2]), ("table", FLOAT, [3, 2])],
        [("y", FLOAT, [2])],
    )
    session = npu_session(model, strict())
    feed = {"start": np.zeros(2, np.float32), "table": np.arange(6, dtype=np.float32).reshape(3, 2)}
    with pytest.raises(Exception, match="Gather"):
        session.run(None, feed | {"trips": np.array(4)})
    assert session.run(None, feed | {"trips": np.array(3)})[0].tolist() == [4.0, 5.0]


def test_a_body_with_a_node_of_the_cpu_runs_across_both() -> None:
    names = helper.make_tensor("names", TensorProto.STRING, [2], [b"b", b"a"])
    body = loop_body(
        [
            node(
                "LabelEncoder",
                "names",
                "codes",
                domain="ai.onnx.ml",
                keys_strings=["a", "b"],
                values_floats=[1.0, 2.0],
            ),
            node("Add", "x codes", "x_out"),
            node("Identity", "c", "c_out"),
        ],
        [("x", "x_out", FLOAT)],
        constants=[names],
    )
    graph = helper.make_graph(
        [helper.make_node("Loop", ["trips", "", "start"], ["y"], body=body)],
        "g",
        [value("trips", INT64, []), value("start", FLOAT, [2])],
        [value("y", FLOAT, [2])],
    )
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("ai.onnx.ml", 4)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10).SerializeToString()
    session = npu_session(model)
    providers = {r["op_type"]: r["provider"] for r in onnxruntime_npu.assignment(session)}
    assert providers["Loop"] == NPU and providers["Add"] == NPU and providers["LabelEncoder"] == CPU
    feed = {"trips": np.array(3), "start": np.zeros(2, np.float32)}
    assert session.run(None, feed)[0].tolist() == [6.0, 3.0]


def test_control_flow_is_not_captured_in_graphs() -> None:
    options = [{"enable_npu_graph": "1"}]
    with pytest.raises(Exception, match=r"graph|Graph"):
        ort.InferenceSession(growing_loop(), providers=[NPU], provider_options=options)


@pytest.mark.parametrize("flag", [True, False])
def test_a_node_of_the_cpu_in_a_branch_reads_what_the_npu_has_in_the_other(flag: bool) -> None:
    """Onnxruntime copies x to the NPU for the If, and back for the branch, without a stream."""
    rng = np.random.default_rng(0)
    x, w = (rng.normal(size=(16, 16)).astype(np.float32) for _ in range(2))
    there = helper.make_graph(
        [
            node("Normalizer", "x", "a", domain="ai.onnx.ml", norm="L2"),
            node("MatMul", "a w", "product"),
        ],
        "there",
        [],
        [value("product", FLOAT, None)],
    )
    here = helper.make_graph([node("MatMul", "x w", "y1")], "here", [], [value("y1", FLOAT, None)])
    model = make_model(
        [helper.make_node("If", ["flag"], ["y"], then_branch=there, else_branch=here)],
        [("x", FLOAT, [16, 16]), ("flag", BOOL, [])],
        [("y", FLOAT, None)],
        {"w": w},
    )
    session = npu_session(model)
    placed = {row["op_type"]: row["provider"] for row in onnxruntime_npu.assignment(session)}
    assert placed["If"] == NPU and placed["Normalizer"] == CPU
    expected = (x / np.linalg.norm(x, axis=1, keepdims=True) if flag else x) @ w
    for _ in range(3):
        (got,) = session.run(None, {"x": x, "flag": np.array(flag)})
        np.testing.assert_allclose(got, expected, rtol=0, atol=1e-5)  # sums of 16 products


@pytest.mark.parametrize("flow", ["If", "Loop"])
def test_bodies_on_the_npu_of_a_node_on_the_cpu(flow: str) -> None:
    """Onnxruntime gives such a body a stream of its own, behind which it orders nothing."""
    rng = np.random.default_rng(0)
    x, w = ((rng.normal(size=(160, 160)) / 12).astype(np.float32) for _ in range(2))
    before, inside, after = (
        [node("MatMul", f"{name}{i} w", f"{name}{i + 1}") for i in range(6)] for name in "xyz"
    )
    if flow == "If":
        inside += [node("Add", "x6 x6", "y0"), node("Neg", "y6", "z0")]
        inside = [inside[6], *inside[:6], inside[7]]
        there = helper.make_graph(inside, "there", [], [value("z0", FLOAT, None)])
        here = helper.make_graph([node("Abs", "x6", "z")], "here", [], [value("z", FLOAT, None)])
        flowing = helper.make_node("If", ["go"], ["z0"], then_branch=there, else_branch=here)
    else:
        body = [*inside, node("Identity", "c", "c_out")]
        graph = loop_body(body, [("y0", "y6", FLOAT)])
        flowing = helper.make_node("Loop", ["three", "go", "x6"], ["z0"], body=graph)
    model = make_model(
        [*before, flowing, *after],
        [("x0", FLOAT, [160, 160]), ("go", BOOL, [])],
        [("z6", FLOAT, None)],
        {"w": w, "three": np.array(3)},
    )
    session = npu_session(model, cpu_operators=flow)
    placed = {row["op_type"]: row["provider"] for row in onnxruntime_npu.assignment(session)}
    assert placed[flow] == CPU and placed["MatMul"] == NPU
    cpu = ort.InferenceSession(model, providers=[CPU])
    for scale in range(1, 9):
        feed = {"x0": x * np.float32(scale), "go": np.array(True)}
        np.testing.assert_allclose(
            session.run(None, feed)[0], cpu.run(None, feed)[0], rtol=0, atol=1e-3
        )
