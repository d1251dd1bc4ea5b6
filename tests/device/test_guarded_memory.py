"""Device memory that host code must not touch: ORT_NPU_GUARD_MEMORY=1, and the null backend."""

from __future__ import annotations

import re
import signal

import pytest

GUARDED = {"ORT_NPU_GUARD_MEMORY": "1"}
NULL = {"ORT_NPU_BACKEND": "null"}

TOUCH = """
import ctypes
from onnxruntime_npu import npu
address = npu.caching_allocator_alloc(3 << 20)
print("address", hex(address), flush=True)
ctypes.{access}
print("alive", flush=True)
"""
READ = "string_at(address + 17, 1)"
WRITE = "memset(address + 17, 1, 1)"


@pytest.mark.parametrize("access", [READ, WRITE])
@pytest.mark.parametrize("environment", [GUARDED, NULL], ids=["guarded", "null"])
def test_host_access_crashes_and_reports_the_address(run_python, environment, access):
    code, output = run_python(TOUCH.format(access=access), **environment)
    assert code == -signal.SIGSEGV, output
    address = int(re.search("address (0x[0-9a-f]+)", output)[1], 16) + 17
    message = f"[device memory] host code touched device address {address:#x} of an allocation of"
    assert re.search(re.escape(message) + r" \d+ bytes\n", output), output
    assert "alive" not in output


def test_user_signal_handler_still_receives_the_fault(run_python):
    code, output = run_python(
        "import faulthandler; faulthandler.enable()\n" + TOUCH.format(access=READ), **GUARDED
    )
    assert code == -signal.SIGSEGV, output
    assert output.index("[device memory]") < output.index("Fatal Python error: Segmentation fault")


def test_host_can_read_device_memory_without_the_guard(run_python):
    code, output = run_python(TOUCH.format(access=READ), ORT_NPU_GUARD_MEMORY="0")
    assert code == 0 and "alive" in output, output


SESSION = """
import numpy as np, onnx, onnxruntime as ort, onnxruntime_npu
from onnx import TensorProto, helper, numpy_helper
from onnxruntime_npu import npu
weights = np.arange(64 * 64, dtype=np.float32).reshape(64, 64) / 4096
value = lambda name: helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 64])
model = helper.make_model(
    helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["h"]), helper.make_node("Relu", ["h"], ["y"])],
        "graph", [value("x")], [value("y")], [numpy_helper.from_array(weights, "w")]),
    opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
NPU = onnxruntime_npu.get_ep_name()
session = ort.InferenceSession(model.SerializeToString(), providers=[NPU])
assert {row["provider"] for row in onnxruntime_npu.assignment(session)} == {NPU}
for n in (1, 7, 300):
    x = np.full((n, 64), 0.5, np.float32)
    (y,) = session.run(None, {"x": x})
    assert y.shape == (n, 64)
    np.testing.assert_allclose(y, EXPECTED, rtol=1e-5)
npu.synchronize()
"""


def test_session_runs_with_guarded_memory(run_python):
    code, output = run_python(SESSION.replace("EXPECTED", "np.maximum(x @ weights, 0)"), **GUARDED)
    assert code == 0, output


CREATED = "session = ort.InferenceSession(model.SerializeToString(), providers=[NPU])"
COMPILED = """options = ort.SessionOptions()
options.add_session_config_entry("ep.context_enable", "1")
options.add_session_config_entry("ep.context_file_path", PATH)
ort.InferenceSession(model.SerializeToString(), options, providers=[NPU])
session = ort.InferenceSession(PATH, providers=[NPU])"""


def test_packed_weights_are_stored_from_guarded_memory(run_python, tmp_path):
    assert CREATED in SESSION
    compiled = COMPILED.replace("PATH", repr(str(tmp_path / "m.onnx")))
    script = SESSION.replace(CREATED, compiled).replace("EXPECTED", "np.maximum(x @ weights, 0)")
    code, output = run_python(script, **GUARDED)
    assert code == 0, output
    assert (tmp_path / "m_npu.bin").stat().st_size >= 64 * 64 * 4


def test_session_on_null_backend_computes_nothing(run_python):
    code, output = run_python(SESSION.replace("EXPECTED", "np.zeros_like(y)"), **NULL)
    assert code == 0, output


DEVICE = """
from onnxruntime_npu import npu
assert npu.get_device_name() == "Null NPU"
streams = [npu.Stream() for _ in range(3)]
addresses = []
for stream in streams:
    with npu.stream(stream):
        addresses.append(npu.caching_allocator_alloc(1 << 20))
        event = npu.Event()
        event.record()
    npu.current_stream().wait_event(event)
assert npu.memory_allocated() >= 3 << 20
npu.synchronize()
assert event.query() and all(stream.query() for stream in streams)
for address in addresses:
    npu.caching_allocator_delete(address)
npu.synchronize()
assert npu.memory_allocated() == 0
npu.empty_cache()
assert npu.memory_reserved() == 0
"""


def test_null_backend_memory_streams_and_events(run_python):
    code, output = run_python(DEVICE, **NULL)
    assert code == 0, output


TORCH = """
import torch, onnxruntime_npu
x = torch.arange(12.0, device="npu").reshape(3, 4)
side, graph = torch.npu.Stream(), torch.npu.NPUGraph()
with torch.npu.graph(graph):
    y = (x @ x.T).relu()
for _ in range(3):
    graph.replay()
side.wait_stream(torch.npu.current_stream())
with torch.npu.stream(side):
    z = torch.cat([y, y + 1], 1)
torch.npu.synchronize()
print(tuple(z.shape), float(z.cpu().sum()))
"""


@pytest.mark.parametrize(
    ("environment", "printed"),
    [(GUARDED, "(3, 6) 2277.0"), (NULL, "(3, 6) 0.0")],
    ids=["guarded", "null"],
)
def test_torch_tensors_and_graphs(run_python, environment, printed):
    pytest.importorskip("torch")
    code, output = run_python(TORCH, **environment)
    assert code == 0 and printed in output, output


@pytest.mark.parametrize("value", ["ascend", "HOST", "host,null"])
def test_unknown_backend_is_refused_by_name(run_python, value):
    code, output = run_python(
        "from onnxruntime_npu import npu; npu.synchronize()", ORT_NPU_BACKEND=value
    )
    assert code != 0
    assert f"[ORT_NPU_BACKEND] expected one of host, null, got '{value}'" in output
