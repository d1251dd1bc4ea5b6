"""If, Loop and Scan in parallel mode, where onnxruntime's own threads run them.

Onnxruntime keeps the streams of a run as long as the thread that called it, and those of a body as
long as its own thread: on the NPU a body would get the stream of a run whose thread has ended.
"""

from __future__ import annotations

import threading

import numpy as np
import onnx
import onnxruntime as ort
import onnxruntime_npu
import pytest
from onnx import TensorProto, helper
from onnxruntime_npu.session import session_hook
from provider_models import CPU, NPU, make_model, npu_session

FLOAT, INT64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL
SIZE = 192
value = helper.make_tensor_value_info


def parallel() -> ort.SessionOptions:
    options = ort.SessionOptions()
    options.execution_mode = ort.ExecutionMode.ORT_PARALLEL
    options.inter_op_num_threads = 3
    return options


def branching_model() -> bytes:
    """Products, then a branch with a node of the CPU, which reads the last one."""

    def branch(name: str, *nodes: onnx.NodeProto) -> onnx.GraphProto:
        return helper.make_graph(nodes, name, [], [value(name, FLOAT, None)])

    products = [
        helper.make_node("MatMul", [f"h{i}", "w"], [f"h{i + 1}"]) for i in range(8)
    ]  # fmt: skip
    there = branch(
        "there", helper.make_node("Normalizer", ["h8"], ["there"], domain="ai.onnx.ml", norm="L2")
    )
    here = branch("here", helper.make_node("Neg", ["h8"], ["here"]))
    chosen = helper.make_node("If", ["flag"], ["y"], then_branch=there, else_branch=here)
    return make_model(
        [*products, chosen],
        [("h0", FLOAT, [SIZE, SIZE]), ("w", FLOAT, [SIZE, SIZE]), ("flag", BOOL, [])],
        [("y", FLOAT, None)],
    )


def looping_model() -> bytes:
    """The value of each iteration of a Loop."""
    body = helper.make_graph(
        [
            helper.make_node("MatMul", ["s", "w"], ["s_out"]),
            helper.make_node("Identity", ["c"], ["c_out"]),
            helper.make_node("Tanh", ["s_out"], ["seen"]),
        ],
        "body",
        [value("i", INT64, []), value("c", BOOL, []), value("s", FLOAT, None)],
        [value("c_out", BOOL, []), value("s_out", FLOAT, None), value("seen", FLOAT, None)],
    )
    return make_model(
        [helper.make_node("Loop", ["trips", "", "x"], ["last", "y"], body=body)],
        [("trips", INT64, []), ("x", FLOAT, [SIZE, SIZE]), ("w", FLOAT, [SIZE, SIZE])],
        [("y", FLOAT, None)],
    )


def matrices(count: int) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return [(rng.normal(size=(SIZE, SIZE)) / 14).astype(np.float32) for _ in range(count)]


def placed(session: ort.InferenceSession) -> dict[str, str]:
    return {row["op_type"]: row["provider"] for row in onnxruntime_npu.assignment(session)}


@pytest.fixture(params=["python", "c"])
def interface(request, monkeypatch) -> str:
    """A session of C or C++ does not tell the provider that it is in parallel mode."""
    if request.param == "c":
        monkeypatch.setattr(session_hook, "_PARALLEL_KEY", "not.told")
    return request.param


def test_a_branch_reads_what_the_npu_computes(interface: str) -> None:
    session = npu_session(branching_model(), parallel())
    assert placed(session)["If"] == (CPU if interface == "python" else NPU)
    cpu = ort.InferenceSession(branching_model(), providers=[CPU])
    x, *weights = matrices(6)
    for w in weights:
        feeds = {"h0": x, "w": w, "flag": np.array(True)}
        np.testing.assert_allclose(
            session.run(None, feeds)[0], cpu.run(None, feeds)[0], rtol=0, atol=1e-4
        )


def test_values_of_each_iteration_are_there_after_runs_that_nobody_waits_for(interface: str):
    session = npu_session(looping_model(), parallel())
    assert placed(session)["Loop"] == (CPU if interface == "python" else NPU)
    cpu = ort.InferenceSession(looping_model(), providers=[CPU])
    w, *inputs = matrices(5)
    expected = [cpu.run(None, {"x": x, "w": w, "trips": np.array(4)})[0] for x in inputs]
    wrong: list[str] = []
    ended = threading.Barrier(len(inputs))  # the streams of a run live as long as its thread

    def work(x: np.ndarray, y: np.ndarray) -> None:
        for _ in range(12):
            try:
                binding = session.io_binding()
                for name, given in (("x", x), ("w", w)):
                    binding.bind_ortvalue_input(name, onnxruntime_npu.ortvalue_from_numpy(given))
                binding.bind_cpu_input("trips", np.array(4))
                binding.bind_output("y", "npu", 0)
                options = ort.RunOptions()
                options.add_run_config_entry("disable_synchronize_execution_providers", "1")
                session.run_with_iobinding(binding, options)
                got = onnxruntime_npu.ortvalue_to_numpy(binding.get_outputs()[0])
            except Exception as error:
                wrong.append(str(error))
                break
            if not np.allclose(got, y, rtol=0, atol=1e-4):
                wrong.append("a value")
        ended.wait()

    threads = [
        threading.Thread(target=work, args=(x, y)) for x, y in zip(inputs, expected, strict=True)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_callers_threads_may_end() -> None:
    session = npu_session(looping_model(), parallel())
    x, w = matrices(2)
    feeds = {"x": x, "w": w, "trips": np.array(2)}
    expected = ort.InferenceSession(looping_model(), providers=[CPU]).run(None, feeds)[0]
    wrong: list[int] = []

    def work(number: int) -> None:
        if not np.allclose(session.run(None, feeds)[0], expected, rtol=0, atol=1e-4):
            wrong.append(number)

    for number in range(10):
        threads = [threading.Thread(target=work, args=(number,)) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert wrong == []


def test_the_reason_says_how_to_mend_it() -> None:
    options = parallel()
    options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
    with pytest.raises(Exception, match=r"Loop '.*': .*ORT_SEQUENTIAL only, got ORT_PARALLEL"):
        npu_session(looping_model(), options)


def test_options_that_become_sequential() -> None:
    options = parallel()
    assert placed(npu_session(looping_model(), options))["Loop"] == CPU
    options.execution_mode = ort.ExecutionMode.ORT_SEQUENTIAL
    assert placed(npu_session(looping_model(), options))["Loop"] == NPU
