"""Each run raises its own errors, also with concurrent waits: docs/decisions/0012."""

from __future__ import annotations

import threading

import numpy as np
import onnxruntime as ort
import onnxruntime_npu
import pytest
from onnx import TensorProto, helper
from onnxruntime_npu import npu
from provider_models import add_model, make_model, npu_session, run_python

FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64
ROWS = 50


def gather_session(depth: int = 1, **settings):
    """y = exp(… table[i] …) with enough nodes for the first one's failure to be known early."""
    nodes, last = [helper.make_node("Gather", ["table", "i"], ["z0"])], "z0"
    for n in range(1, depth):
        nodes.append(helper.make_node("Tanh", [last], [f"z{n}"]))
        last = f"z{n}"
    model = make_model(
        nodes, [("table", FLOAT, [ROWS, 8]), ("i", INT64, [1])], [(last, FLOAT, [1, 8])]
    )
    return npu_session(model, **settings), last


def feeds(index: int) -> dict[str, np.ndarray]:
    return {"table": np.ones((ROWS, 8), np.float32), "i": np.array([index])}


def unsynchronised() -> ort.RunOptions:
    options = ort.RunOptions()
    options.add_run_config_entry("disable_synchronize_execution_providers", "1")
    return options


def bound(session, output: str, index: int):
    binding = session.io_binding()
    for name, value in feeds(index).items():
        binding.bind_ortvalue_input(name, onnxruntime_npu.ortvalue_from_numpy(value))
    binding.bind_output(output, "npu", 0)
    return binding


def test_run_raises_its_own_error_while_others_synchronise():
    session, _ = gather_session(depth=40)
    stop = threading.Event()

    def wait_for_the_device():
        while not stop.is_set():
            try:
                npu.synchronize()
            except RuntimeError as error:
                assert "[Gather]" in str(error)

    others = [threading.Thread(target=wait_for_the_device) for _ in range(2)]
    for other in others:
        other.start()
    try:
        for n in range(60):
            with pytest.raises(Exception, match=rf"\[Gather\].*got {ROWS + n} "):
                session.run(None, feeds(ROWS + n))
            np.testing.assert_array_equal(session.run(None, feeds(n % ROWS))[0].shape, (1, 8))
    finally:
        stop.set()
        for other in others:
            other.join()


def test_runs_on_several_threads_raise_their_own_errors():
    session, _ = gather_session(depth=10)
    wrong: list[str] = []

    def run(first: int) -> None:
        for n in range(first, first + 40):
            try:
                session.run(None, feeds(n))
                told = ""
            except Exception as error:
                told = str(error)
            if (f"got {n} " in told) != (n >= ROWS):
                wrong.append(f"index {n}: {told!r}")

    threads = [threading.Thread(target=run, args=(first,)) for first in (0, 10, 500, 900)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_run_that_fails_on_the_host_leaves_no_device_error_to_the_next_run():
    nodes = [
        helper.make_node("Gather", ["table", "i"], ["row"]),  # fails on the device
        helper.make_node("Add", ["row", "other"], ["sum"]),  # its shapes are refused on the host
    ]
    model = make_model(
        nodes,
        [("table", FLOAT, [ROWS, 8]), ("i", INT64, [1]), ("other", FLOAT, ["n"])],
        [("sum", FLOAT, None)],
    )
    session = npu_session(model)
    fits = {**feeds(1), "other": np.ones(8, np.float32)}
    session.run(None, fits)
    for n in range(30):
        with pytest.raises(Exception, match=r"expected broadcastable shapes"):
            session.run(None, {**feeds(ROWS + n), "other": np.ones(3, np.float32)})
        np.testing.assert_array_equal(session.run(None, fits)[0], np.full((1, 8), 2, np.float32))


def test_a_run_in_a_forked_process_says_how_to_start_processes():
    done = run_python("""
        import os
        from test_run_errors import feeds, gather_session

        session, _ = gather_session()
        session.run(None, feeds(1))
        child = os.fork()
        if child == 0:
            try:
                session.run(None, feeds(1))
            except Exception as error:
                os._exit(7 if "start processes with 'spawn'" in str(error) else 1)
            os._exit(2)
        raise SystemExit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    """)
    assert done.returncode == 7, done.stderr


def test_unsynchronised_failure_is_raised_by_synchronize_outputs():
    session, output = gather_session()
    bad, good = bound(session, output, ROWS + 1), bound(session, output, 1)
    session.run_with_iobinding(bad, unsynchronised())
    with pytest.raises(RuntimeError, match=rf"\[Gather\].*got {ROWS + 1} "):
        bad.synchronize_outputs()
    session.run_with_iobinding(good)
    np.testing.assert_array_equal(
        onnxruntime_npu.ortvalue_to_numpy(good.get_outputs()[0]), np.ones((1, 8), np.float32)
    )


def test_reported_failure_is_not_raised_again_by_a_later_run():
    session, output = gather_session()
    bad, good = bound(session, output, ROWS + 4), bound(session, output, 1)
    session.run_with_iobinding(bad, unsynchronised())
    with pytest.raises(RuntimeError, match=f"got {ROWS + 4} "):
        npu.current_stream().synchronize()
    session.run_with_iobinding(good, unsynchronised())
    good.synchronize_outputs()
    np.testing.assert_array_equal(
        onnxruntime_npu.ortvalue_to_numpy(good.get_outputs()[0]), np.ones((1, 8), np.float32)
    )


def test_outputs_of_a_failed_unsynchronised_run_are_not_returned():
    session, output = gather_session()
    bad = bound(session, output, ROWS + 2)
    session.run_with_iobinding(bad, unsynchronised())
    with pytest.raises(RuntimeError, match=rf"\[Gather\].*got {ROWS + 2} "):
        onnxruntime_npu.ortvalue_to_numpy(bad.get_outputs()[0])
    np.testing.assert_array_equal(session.run(None, feeds(0))[0], np.ones((1, 8), np.float32))


def test_unsynchronised_failure_stays_with_its_thread():
    session, output = gather_session()
    bad = bound(session, output, ROWS + 3)
    done, told = threading.Event(), []

    def leave_a_failure():
        session.run_with_iobinding(bad, unsynchronised())
        done.set()
        try:
            npu.current_stream().synchronize()
        except RuntimeError as error:
            told.append(str(error))

    other = threading.Thread(target=leave_a_failure)
    other.start()
    done.wait()
    session.run(None, feeds(1))
    other.join()
    assert len(told) == 1 and f"got {ROWS + 3} " in told[0]


def test_unsynchronised_failure_fails_later_runs_of_its_thread_only():
    session, output = gather_session()
    bad = bound(session, output, ROWS + 5)
    left, passed = threading.Event(), threading.Event()
    told = []

    def leave_a_failure_and_go_on():
        session.run_with_iobinding(bad, unsynchronised())
        try:
            session.run(None, feeds(1))
        except Exception as error:
            told.append(str(error))
        left.set()
        passed.wait()
        npu.current_stream().synchronize()  # already reported
        told.append("went on")

    other = threading.Thread(target=leave_a_failure_and_go_on)
    other.start()
    left.wait()
    np.testing.assert_array_equal(session.run(None, feeds(1))[0], np.ones((1, 8), np.float32))
    npu.current_stream().synchronize()
    passed.set()
    other.join()
    assert len(told) == 2 and f"got {ROWS + 5} " in told[0] and told[1] == "went on"


def test_graph_replay_reports_no_failure_of_another_run():
    session, output = gather_session(enable_npu_graph="1")
    options = unsynchronised()
    options.add_run_config_entry("gpu_graph_id", "-1")
    good = session.io_binding()
    result = onnxruntime_npu.ortvalue_from_numpy(np.zeros((1, 8), np.float32))
    for name, value in feeds(1).items():
        good.bind_ortvalue_input(name, onnxruntime_npu.ortvalue_from_numpy(value))
    good.bind_ortvalue_output(output, result)
    for _ in range(2):  # captured, then replayed
        session.run_with_iobinding(good)
    bad = bound(session, output, ROWS + 6)
    left, passed, told = threading.Event(), threading.Event(), []

    def leave_a_failure():
        session.run_with_iobinding(bad, options)
        left.set()
        passed.wait()
        try:
            npu.current_stream().synchronize()
        except RuntimeError as error:
            told.append(str(error))
        session.run_with_iobinding(good)  # already reported

    other = threading.Thread(target=leave_a_failure)
    other.start()
    left.wait()
    try:
        session.run_with_iobinding(good)
    finally:
        passed.set()
        other.join()
    assert len(told) == 1 and f"got {ROWS + 6} " in told[0]
    np.testing.assert_array_equal(
        onnxruntime_npu.ortvalue_to_numpy(result), np.ones((1, 8), np.float32)
    )


def test_input_bound_to_address_0_is_refused():
    """As that of a torch tensor whose storage was freed; onnxruntime refuses it for outputs."""
    session = npu_session(add_model())
    one = onnxruntime_npu.ortvalue_from_numpy(np.ones((3, 4), np.float32))
    result = onnxruntime_npu.ortvalue_from_numpy(np.zeros((3, 4), np.float32))
    binding = session.io_binding()
    binding.bind_ortvalue_input("x", one)
    binding.bind_input("y", "npu", 0, np.float32, (3, 4), 0)
    binding.bind_ortvalue_output("z", result)
    with pytest.raises(Exception, match=r"expected memory behind input 1 \('y'\) .*got address 0"):
        session.run_with_iobinding(binding)
    binding.bind_ortvalue_input("y", one)
    session.run_with_iobinding(binding)
    np.testing.assert_array_equal(
        onnxruntime_npu.ortvalue_to_numpy(result), np.full((3, 4), 2.0, np.float32)
    )
