"""Failing backend calls while a session is created, runs and is destroyed."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import fault_trials
import numpy as np
import onnxruntime as ort
import onnxruntime_npu
import pytest
from onnx import TensorProto, helper
from provider_models import NPU, left_to_the_cpu, make_model, npu_session

X = np.arange(24, dtype=np.float32).reshape(3, 8) / 8
WEIGHT = np.sin(np.arange(8 * 16, dtype=np.float32)).reshape(8, 16)
EXPECTED = np.exp(-np.abs((X + X) @ WEIGHT))


def model() -> bytes:
    """A model of exp(-|(x + x) W|): a packed constant, scratch memory and several kernels."""
    nodes = [
        helper.make_node("Add", ["x", "x"], ["s"], "add"),
        helper.make_node("MatMul", ["s", "w"], ["p"], "matmul"),
        helper.make_node("Abs", ["p"], ["a"], "abs"),
        helper.make_node("Neg", ["a"], ["n"], "neg"),
        helper.make_node("Exp", ["n"], ["y"], "exp"),
    ]
    floats = TensorProto.FLOAT
    return make_model(nodes, [("x", floats, [3, 8])], [("y", floats, [3, 16])], {"w": WEIGHT})


def check(result: np.ndarray) -> None:
    np.testing.assert_allclose(result, EXPECTED, rtol=1e-5)


def bound(session: ort.InferenceSession) -> tuple[Any, Any, Any]:
    """Return a binding of NPU memory, and the input and the output."""
    x = onnxruntime_npu.ortvalue_from_numpy(X)
    y = onnxruntime_npu.ortvalue_from_numpy(np.full_like(EXPECTED, np.nan))
    binding = session.io_binding()
    binding.bind_ortvalue_input("x", x)
    binding.bind_ortvalue_output("y", y)
    return binding, x, y


def creation() -> Callable[[], Any]:
    def work() -> None:
        session = npu_session(model())
        check(session.run(None, {"x": X})[0])
        del session
        gc.collect()

    return work


def run() -> Callable[[], Any]:
    session = npu_session(model())
    return lambda: check(session.run(None, {"x": X})[0])


def run_in_host_memory() -> Callable[[], Any]:
    session = npu_session(model(), host_memory="1")
    return lambda: check(session.run(None, {"x": X})[0])


def bound_run() -> Callable[[], Any]:
    session = npu_session(model())

    def work() -> None:
        binding, _, y = bound(session)
        session.run_with_iobinding(binding)
        check(onnxruntime_npu.ortvalue_to_numpy(y))

    return work


def unsynchronised_run() -> Callable[[], Any]:
    session = npu_session(model())
    options = ort.RunOptions()
    options.add_run_config_entry("disable_synchronize_execution_providers", "1")

    def work() -> None:
        binding, _, y = bound(session)
        session.run_with_iobinding(binding, options)
        session.run_with_iobinding(binding, options)
        binding.synchronize_outputs()
        check(onnxruntime_npu.ortvalue_to_numpy(y))

    return work


def destruction_behind_unsynchronised_run() -> Callable[[], Any]:
    options = ort.RunOptions()
    options.add_run_config_entry("disable_synchronize_execution_providers", "1")

    def work() -> None:
        session = npu_session(model())
        binding, _, y = bound(session)
        session.run_with_iobinding(binding, options)
        del session, binding
        gc.collect()
        check(onnxruntime_npu.ortvalue_to_numpy(y))

    return work


def device_outputs() -> Callable[[], Any]:
    session = npu_session(model())

    def work() -> None:
        binding = session.io_binding()
        binding.bind_ortvalue_input("x", onnxruntime_npu.ortvalue_from_numpy(X))
        binding.bind_output("y", "npu", 0)
        session.run_with_iobinding(binding)
        check(onnxruntime_npu.ortvalue_to_numpy(binding.get_outputs()[0]))

    return work


def graph_session() -> Callable[[], Any]:
    def work() -> None:
        session = npu_session(model(), enable_npu_graph="1")
        binding, x, y = bound(session)
        for scale in (0, 1):  # captured, then replayed with another content
            content = ort.OrtValue.ortvalue_from_numpy(X * np.float32(scale))
            ort.copy_tensors([content], [x])
            session.run_with_iobinding(binding)
        check(onnxruntime_npu.ortvalue_to_numpy(y))

    return work


def graph_replay() -> Callable[[], Any]:
    session = npu_session(model(), enable_npu_graph="1")
    binding, x, y = bound(session)

    def work() -> None:
        for scale in (0, 1):
            content = ort.OrtValue.ortvalue_from_numpy(X * np.float32(scale))
            ort.copy_tensors([content], [x])
            session.run_with_iobinding(binding)
        check(onnxruntime_npu.ortvalue_to_numpy(y))

    return work


def parallel_run() -> Callable[[], Any]:
    """Onnxruntime's own threads launch work, too."""
    options = ort.SessionOptions()
    options.execution_mode = ort.ExecutionMode.ORT_PARALLEL
    session = npu_session(model(), options)
    return lambda: check(session.run(None, {"x": X})[0])


def node_on_the_host() -> Callable[[], Any]:
    """A CPU node waits for the NPU: it reports the failure, not the end of the run."""
    floats = TensorProto.FLOAT
    nodes = [
        helper.make_node("Add", ["x", "x"], ["s"], "add"),
        left_to_the_cpu("s", "y"),
    ]
    session = npu_session(make_model(nodes, [("x", floats, [4, 4])], [("y", floats, [4, 4])]))
    x = np.eye(4, dtype=np.float32)

    def work() -> None:
        y = session.run(None, {"x": x})[0]
        onnxruntime_npu.npu.synchronize()
        np.testing.assert_array_equal(y, x)

    return work


SCENARIOS = {
    f.__name__: f
    for f in (
        creation,
        run,
        run_in_host_memory,
        bound_run,
        unsynchronised_run,
        destruction_behind_unsynchronised_run,
        device_outputs,
        graph_session,
        graph_replay,
        node_on_the_host,
        parallel_run,
    )
}


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_every_injected_fault_is_reported_and_recovered(scenario):
    fault_trials.in_a_process(__file__, scenario)


def test_faults_require_fault_injection_to_be_enabled():
    with pytest.raises(onnxruntime_npu.errors.UnsupportedError, match="ORT_NPU_FAULT_INJECTION=1"):
        onnxruntime_npu._C.arm_fault("Launch", 1)
    assert NPU in ort.get_available_providers()


if __name__ == "__main__":
    fault_trials.main(SCENARIOS)
