"""The caller's stream, then the run, then the caller's stream: docs/decisions/0013."""

from __future__ import annotations

import threading
import time

import numpy as np
import onnxruntime as ort
import onnxruntime_npu
import pytest
import torch
from onnx import TensorProto, helper
from provider_models import make_model, npu_session, run_python

FLOAT = TensorProto.FLOAT


@pytest.fixture(autouse=True, scope="module")
def _torch_device():
    from onnxruntime_npu import torch_device

    torch_device.register()


def square(**settings) -> ort.InferenceSession:
    node = helper.make_node("Mul", ["x", "x"], ["y"])
    return npu_session(make_model([node], [("x", FLOAT, ["n"])], [("y", FLOAT, ["n"])]), **settings)


class Blocked:
    """A stream that is blocked until open() is called."""

    def __init__(self) -> None:
        self.stream, self._gate = torch.npu.Stream(), torch.npu.ExternalEvent()
        self._gate.wait(self.stream)

    def open(self) -> None:
        self._gate.record(torch.npu.default_stream())

    def open_later(self) -> None:
        threading.Timer(0.2, self.open).start()


def filled_late(blocked: Blocked) -> torch.Tensor:
    x = torch.zeros(100, device="npu")
    torch.npu.default_stream().synchronize()
    with torch.npu.stream(blocked.stream):
        x.fill_(3)
    return x


def test_run_async_follows_the_submitting_threads_stream():
    session, blocked, done, results = square(), Blocked(), threading.Event(), []

    def finished(outputs, _, error):
        results.append((outputs, error))
        done.set()

    x = filled_late(blocked)
    with torch.npu.stream(blocked.stream):
        feed = {"x": onnxruntime_npu.ortvalue_from_torch(x)}
        session.run_async(None, feed, finished, None)
        blocked.open_later()
    assert done.wait(60)
    outputs, error = results[0]
    assert error == ""
    np.testing.assert_array_equal(outputs[0], np.full(100, 9, np.float32))


def test_scan_turns_its_inputs_after_the_callers_work():
    body = helper.make_graph(
        [helper.make_node("Add", ["s", "x"], ["t"]), helper.make_node("Identity", ["t"], ["y"])],
        "body",
        [helper.make_tensor_value_info(name, FLOAT, [10]) for name in "sx"],
        [helper.make_tensor_value_info(name, FLOAT, [10]) for name in "ty"],
    )
    scan = helper.make_node(
        "Scan", ["s", "xs"], ["t", "ys"], body=body, num_scan_inputs=1, scan_input_axes=[1]
    )
    session = npu_session(
        make_model(
            [scan],
            [("s", FLOAT, [10]), ("xs", FLOAT, [10, 10])],
            [("t", FLOAT, [10]), ("ys", FLOAT, [10, 10])],
        )
    )
    blocked = Blocked()
    x, start = filled_late(blocked), torch.zeros(10, device="npu")
    with torch.npu.stream(blocked.stream):
        feed = {
            "s": onnxruntime_npu.ortvalue_from_torch(start),
            "xs": onnxruntime_npu.ortvalue_from_torch(x.view(10, 10)),
        }
        blocked.open_later()
        outputs = session.run(None, feed)
    np.testing.assert_array_equal(outputs[0], np.full(10, 30, np.float32))


def test_caller_work_runs_after_an_unsynchronised_run():
    nodes, last = [], "x"
    for i in range(40):
        nodes.append(helper.make_node("Tanh" if i % 2 else "Exp", [last], [f"t{i}"]))
        last = f"t{i}"
    session = npu_session(make_model(nodes, [("x", FLOAT, ["n"])], [(last, FLOAT, ["n"])]))
    x, out = (torch.zeros(1 << 18, device="npu"), torch.full((1 << 18,), -1.0, device="npu"))
    binding = session.io_binding()
    binding.bind_ortvalue_input("x", onnxruntime_npu.ortvalue_from_torch(x))
    binding.bind_ortvalue_output(last, onnxruntime_npu.ortvalue_from_torch(out))
    session.run_with_iobinding(binding)
    want = out.cpu()
    options = ort.RunOptions()
    options.add_run_config_entry("disable_synchronize_execution_providers", "1")
    for stream in (torch.npu.current_stream(), torch.npu.Stream()):
        out.fill_(-1.0)
        torch.npu.synchronize()
        session.run_with_iobinding(binding, options)
        with torch.npu.stream(stream):
            seen = out + 0
            event = torch.npu.Event()
            event.record()
        event.synchronize()
        assert torch.equal(seen.cpu(), want)


@pytest.mark.parametrize("where", ["provider option", "run option"])
def test_user_compute_stream(where):
    blocked = Blocked()
    handle = str(blocked.stream.npu_stream)
    options = ort.RunOptions()
    if where == "run option":
        session = square()
        options.add_run_config_entry("user_compute_stream", handle)
    else:
        session = square(user_compute_stream=handle)
    options.add_run_config_entry("disable_synchronize_execution_providers", "1")
    x, out = filled_late(blocked), torch.zeros(100, device="npu")
    binding = session.io_binding()
    binding.bind_ortvalue_input("x", onnxruntime_npu.ortvalue_from_torch(x))
    binding.bind_ortvalue_output("y", onnxruntime_npu.ortvalue_from_torch(out))
    torch.npu.default_stream().synchronize()
    session.run_with_iobinding(binding, options)  # returns although its stream is blocked
    with torch.npu.stream(blocked.stream):
        after = out + 1
    assert not blocked.stream.query()
    blocked.open()
    blocked.stream.synchronize()
    assert torch.equal(after.cpu(), torch.full((100,), 10.0))


@pytest.mark.parametrize("value", ["1", "x", "-3"])
def test_invalid_user_compute_stream_is_refused(value):
    options = ort.RunOptions()
    options.add_run_config_entry("user_compute_stream", value)
    with pytest.raises(Exception, match=r"user_compute_stream.*expected the handle"):
        square().run(None, {"x": np.ones(3, np.float32)}, options)


def test_blocked_stream_does_not_block_other_sessions():
    held, free = square(), square()
    feed = {"x": np.ones(10, np.float32)}
    held.run(None, feed), free.run(None, feed)
    blocked = Blocked()
    finished = threading.Event()

    def run_held():
        with torch.npu.stream(blocked.stream):
            held.run(None, feed)
        finished.set()

    caller = threading.Thread(target=run_held)
    caller.start()
    time.sleep(0.05)
    for _ in range(100):
        free.run(None, feed)
    assert not finished.is_set()
    blocked.open()
    caller.join()
    assert finished.is_set()


def test_destroying_a_session_waits_for_no_stream():
    code = """
        import numpy as np
        import onnxruntime_npu
        import torch
        from onnxruntime_npu import torch_device
        from provider_models import add_model, npu_session
        torch_device.register()
        torch.npu.current_device()
        s = npu_session(add_model())
        x = np.ones((2, 4), np.float32)
        s.run(None, dict.fromkeys([i.name for i in s.get_inputs()], x))
        side, gate = torch.npu.Stream(), torch.npu.ExternalEvent()
        with torch.npu.stream(side):
            gate.wait()
            del s  # the gate opens only after this returns
        gate.record(torch.npu.default_stream())
        torch.npu.synchronize()
        print("gone")
    """
    done = run_python(code)
    assert done.stdout.strip() == "gone", done.stderr


def test_tensor_of_unsupported_rank_stays_on_the_cpu():
    shape = [1] * 12 + [3]
    node = helper.make_node("Relu", ["x"], ["y"], "relu")
    session = npu_session(make_model([node], [("x", FLOAT, shape)], [("y", FLOAT, shape)]))
    (row,) = onnxruntime_npu.assignment(session)
    assert row["provider"] == "CPUExecutionProvider" and "rank <= 12" in row["reason"]
    assert session.run(None, {"x": np.ones(shape, np.float32)})[0].shape == tuple(shape)


def test_run_option_is_refused_if_a_replay_would_ignore_it():
    session = square(enable_npu_graph="1")
    options = ort.RunOptions()
    options.add_run_config_entry("user_compute_stream", str(torch.npu.Stream().npu_stream))
    feed = {"x": np.full(3, 2, np.float32)}
    with pytest.raises(Exception, match=r"user_compute_stream.*without enable_npu_graph"):
        session.run(None, feed, options)
    options.add_run_config_entry("gpu_graph_id", "-1")
    assert session.run(None, feed, options)[0].tolist() == [4, 4, 4]
