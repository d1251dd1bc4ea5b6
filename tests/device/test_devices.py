"""Devices, streams and events through Python."""

import threading
import warnings

import numpy as np
import pytest
from onnxruntime_npu import _C, npu


def test_device_arguments():
    assert npu.current_device() == 0
    npu.set_device("npu:0")
    npu.set_device("npu")
    npu.set_device(-1)
    with pytest.raises(RuntimeError, match="invalid device ordinal 99"):
        npu.set_device(99)
    for bad in ("cuda:0", "npu:x", 1.5, object()):
        with pytest.raises(ValueError, match="Expected a npu device"):
            npu.set_device(bad)
    assert npu.current_device() == 0


def test_invalid_device_ids_raise_assertion_error():
    for function in (
        npu.get_device_name,
        npu.get_device_properties,
        npu.utilization,
        npu.mem_get_info,
        npu.synchronize,
    ):
        with pytest.raises(AssertionError, match="Invalid device id"):
            function(npu.device_count())
    with pytest.raises(AssertionError, match="Invalid peer device id"):
        npu.can_device_access_peer(0, 64)


def test_devices_have_separate_memory(run_python):
    code = """
from onnxruntime_npu import npu
assert npu.device_count() == 2
with npu.device(1):
    assert npu.current_device() == 1
    p = npu.caching_allocator_alloc(1 << 20)
    assert npu.current_stream().device_index == 1
assert npu.current_device() == 0
assert (npu.memory_allocated(0), npu.memory_allocated("npu:1")) == (0, 1 << 20)
npu.caching_allocator_delete(p)
assert npu.can_device_access_peer(0, 1) and not npu.can_device_access_peer(0, 0)
assert npu.get_device_name(1) == "Ascend910B2"
e = npu.Event()
e.record(npu.default_stream(0))
try:
    e.record(npu.default_stream(1))
except RuntimeError as error:
    assert "does not match" in str(error)
with npu.stream(npu.Stream(1)):
    assert npu.current_device() == 1
assert npu.current_device() == 0
print("ok")
"""
    environment = {
        "ORT_NPU_DEVICE_COUNT": "2",
        "ORT_NPU_DEVICE_NAME": "Ascend910B2",
        "ORT_NPU_MEMORY_LIMIT": "64M",
    }
    assert run_python(code, **environment) == (0, "ok\n")


def test_elapsed_time_across_devices_raises(run_python):
    code = """
from onnxruntime_npu import npu
events = [npu.Event(enable_timing=True) for _ in range(3)]
for device, event in zip((0, 1, 1), events):
    event.record(npu.Stream(device))
assert events[1].elapsed_time(events[2]) >= 0
try:
    events[0].elapsed_time(events[1])
except RuntimeError as error:
    print(error)
"""
    code, output = run_python(code, ORT_NPU_DEVICE_COUNT="2")
    assert code == 0 and "expected two events of one device, got npu:0 and npu:1" in output


@pytest.mark.parametrize(
    ("visible", "count"), [("0", 1), ("1,0", 0), ("", 0), ("0,9", 1), ("0,1,2", 3), ("0a1", 1)]
)
def test_visible_devices(run_python, visible, count):
    code = "from onnxruntime_npu import npu; print(npu.device_count(), npu.is_available())"
    environment = {"ORT_NPU_DEVICE_COUNT": "3", "ASCEND_RT_VISIBLE_DEVICES": visible}
    assert run_python(code, **environment) == (0, f"{count} {count > 0}\n")


def test_forked_child_error_suggests_spawn(run_python):
    code = """
import os
from onnxruntime_npu import npu
npu.init()
pid = os.fork()
if pid == 0:
    assert not npu.is_initialized()
    try:
        npu.init()
    except RuntimeError as error:
        os._exit(7 if "spawn" in str(error) else 1)
    os._exit(2)
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""
    assert run_python(code) == (0, "7\n")


def test_properties():
    p = npu.get_device_properties()
    assert p.total_memory == npu.mem_get_info()[1]
    assert p.name == npu.get_device_name()
    assert p.vector_core_num >= 1
    assert len(p.uuid.bytes) == 16
    assert repr(p).startswith(f"_NPUDeviceProperties(name='{p.name}', total_memory=")
    with pytest.raises(AttributeError):
        p.colour  # noqa: B018


def test_device_capability_is_none_and_warns(monkeypatch):
    monkeypatch.delenv("TORCH_NPU_DEVICE_CAPABILITY", raising=False)
    with pytest.warns(UserWarning, match="implemented; .* gets what TORCH_NPU_DEVICE_CAPABILITY"):
        assert npu.get_device_capability() is None
    monkeypatch.setenv("TORCH_NPU_DEVICE_CAPABILITY", "9.0")
    with pytest.warns(UserWarning, match="does not describe"):
        assert npu.get_device_capability() == (9, 0)
    monkeypatch.setenv("TORCH_NPU_DEVICE_CAPABILITY", "nine")
    with pytest.warns(UserWarning, match="not of the form"):
        assert npu.get_device_capability() is None


def test_sync_debug_mode():
    for bad in ("loud", 3, -1, None, 1.0, True):
        with pytest.raises(RuntimeError, match="invalid value of debug_mode, expected one of"):
            npu.set_sync_debug_mode(bad)
    with pytest.warns(UserWarning, match="prototype"):
        npu.set_sync_debug_mode("warn")
    assert npu.get_sync_debug_mode() == 1
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        npu.set_sync_debug_mode(0)


def test_current_stream_is_per_thread():
    stream = npu.Stream()
    with npu.stream(stream):
        assert npu.current_stream() == stream
        seen = []
        thread = threading.Thread(target=lambda: seen.append(npu.current_stream()))
        thread.start()
        thread.join()
        assert seen == [npu.default_stream()]
        with npu.stream(None):
            assert npu.current_stream() == stream
    assert npu.current_stream() == npu.default_stream()
    npu.set_stream(stream)
    assert npu.current_stream() == stream
    npu.set_stream(None)
    assert npu.current_stream() == stream


def test_streams_compare_by_handle_and_are_reused():
    stream = npu.Stream()
    same = npu.Stream(stream_id=stream.stream_id, device_index=0, device_type=20)
    external = npu.ExternalStream(stream.npu_stream)
    assert stream == same == external
    assert len({stream, same, external}) == 1
    assert stream != npu.default_stream()
    assert f"{stream.npu_stream:#x}" in repr(stream)
    for bad in (1, 2**62):
        with pytest.raises(RuntimeError, match="live stream"):
            npu.ExternalStream(bad)
    with pytest.raises(RuntimeError, match="no live stream"):
        npu.Stream(stream_id=2**62, device_index=0)
    with pytest.raises(RuntimeError, match="priority"):
        stream.priority  # noqa: B018
    with pytest.raises(RuntimeError, match="priority"):
        npu.Stream.priority_range()


@pytest.mark.parametrize("number", [-258, -1, -200.8, -0.2])
def test_stream_of_a_negative_number_is_of_the_current_device(number):
    assert npu.Stream(number).device_index == npu.current_device()


def test_streams_are_torch_streams_when_torch_is_imported():
    torch = pytest.importorskip("torch")
    from onnxruntime_npu import torch_device

    if not torch_device.is_built():
        pytest.skip("this build has no torch device")
    torch_device.register()
    stream = npu.Stream()
    tensor = torch.ones(4, device="npu")
    for one in (stream, npu.current_stream(), npu.SyncLaunchStream()):
        assert isinstance(one, torch.Stream)
        tensor.record_stream(one)
    assert npu.default_stream().stream_id == 0
    with torch.Stream(device="npu") as made:
        assert npu.current_stream() == npu.Stream(stream_id=made.stream_id, device_index=0)
    with npu.stream(stream):
        assert torch.accelerator.current_stream().stream_id == stream.stream_id
        event = torch.Event("npu")
        event.record()
    npu.current_stream().wait_stream(stream)
    assert stream.device == torch.device("npu", 0)


def test_streams_of_torch_wait_for_events():
    torch = pytest.importorskip("torch")
    from onnxruntime_npu import torch_device

    if not torch_device.is_built():
        pytest.skip("this build has no torch device")
    torch_device.register()
    event, plain = npu.Event(), torch.Stream("npu")
    assert isinstance(event, torch.Event)
    plain.wait_event(event)  # never recorded
    gate, blocked = npu.ExternalEvent(), npu.Stream()
    gate.wait(blocked)
    with npu.stream(blocked):
        event.record(torch.accelerator.current_stream())
    assert not event.query()
    plain.wait_event(event)
    gate.record(npu.default_stream())
    plain.synchronize()
    assert event.query()
    event.wait(plain)


def test_events_order_streams_and_measure_time():
    size = 32 << 20
    address = npu.caching_allocator_alloc(size)
    producer, consumer = npu.Stream(), npu.Stream()
    start, end = npu.Event(enable_timing=True), npu.Event(enable_timing=True)
    assert start.query() and start.device is None
    start.record(producer)
    for value in range(4):
        _C.fill(0, address, value, size, producer.npu_stream)
    producer.record_event(end)
    consumer.wait_stream(producer)
    _C.fill(0, address, 9, 1, consumer.npu_stream)
    assert _C.copy_to_host(0, address, 3, consumer.npu_stream) == b"\x09\x03\x03"
    assert end.query()
    # Memory that other tests have left may mark a stream that has work, behind that work.
    producer.synchronize()
    assert producer.query()
    assert 0 < start.elapsed_time(end) < 60000
    assert start.recorded_time() <= end.recorded_time()
    npu.caching_allocator_delete(address)


def test_sleep_runs_on_the_current_stream():
    start, end = npu.Event(enable_timing=True), npu.Event(enable_timing=True)
    with npu.stream(npu.Stream()):
        start.record()
        npu._sleep(20_000_000)
        end.record()
    assert start.elapsed_time(end) >= 20
    for cycles in (0, -1):
        with pytest.raises(RuntimeError, match="expected positive cycles"):
            npu._sleep(cycles)


def test_interprocess_event_is_refused_at_creation():
    for timing in (False, True):
        with pytest.raises(RuntimeError, match="expected interprocess=False, got True"):
            npu.Event(enable_timing=timing, interprocess=True)


def test_event_misuse():
    never, plain = npu.Event(enable_timing=True), npu.Event()
    never.wait()
    never.synchronize()
    plain.record()
    with pytest.raises(RuntimeError, match="Both events must be recorded"):
        never.elapsed_time(plain)
    with pytest.raises(RuntimeError, match="timing"):
        plain.elapsed_time(plain)
    with pytest.raises(RuntimeError, match="Event must be recorded before"):
        never.recorded_time()
    with pytest.raises(RuntimeError, match="enable_timing"):
        plain.recorded_time()
    with pytest.raises(RuntimeError, match="shared"):
        plain.ipc_handle()


def test_external_event_record_releases_one_wait():
    event = npu.ExternalEvent()
    event.wait(npu.Stream())  # may run before its record, which is on another stream
    with pytest.raises(RuntimeError, match="single record"):
        event.wait()
    event.record()
    event.record()
    with pytest.raises(RuntimeError, match="recorded before"):
        event.record()
    event.wait(npu.Stream())
    with pytest.raises(RuntimeError, match="single record"):
        event.wait()
    event.record()
    event.reset()
    event.record()
    event.wait()
    npu.synchronize()


def test_external_event_record_releases_a_later_wait():
    event, late = npu.ExternalEvent(), npu.Stream()
    address = npu.caching_allocator_alloc(64 << 20)
    _C.fill(0, address, 1, 64 << 20, late.npu_stream)  # delays the waits
    for _ in range(3):
        event.record()
        event.wait(late)
    event.record()
    event.reset()
    npu.synchronize()
    npu.caching_allocator_delete(address)


def test_sync_launch_stream_is_idle_after_each_launch():
    stream = npu.SyncLaunchStream()
    address = npu.caching_allocator_alloc(8 << 20)
    for _ in range(3):
        _C.fill(0, address, 1, 8 << 20, stream.npu_stream)
        assert stream.query()
    assert len({npu.SyncLaunchStream().npu_stream for _ in range(20)}) == 4
    npu.caching_allocator_delete(address)


@pytest.mark.usefixtures("still_memory")
def test_session_shares_the_runtime():
    import onnx
    import onnxruntime as ort
    from onnx import TensorProto, helper
    from onnxruntime_npu import ortvalue_from_numpy

    before = npu.memory_allocated()
    value = ortvalue_from_numpy(np.zeros(1 << 20, dtype=np.float32))
    assert npu.memory_allocated() >= before + (4 << 20)
    assert _C.copy_to_host(0, value.data_ptr(), 16) == bytes(16)
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [4])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [4])
    graph = helper.make_graph([helper.make_node("Add", ["x", "x"], ["y"])], "g", [x], [y])
    opsets = [helper.make_opsetid("", 21)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    onnx.checker.check_model(model)
    session = ort.InferenceSession(
        model.SerializeToString(), providers=["NPUExecutionProvider", "CPUExecutionProvider"]
    )
    result = session.run(None, {"x": np.ones(4, np.float32)})[0]
    np.testing.assert_array_equal(result, np.full(4, 2, np.float32))
    del value
    npu.synchronize()
    assert npu.memory_allocated() < before + (4 << 20)


def test_stopped_device_refuses_work_until_restarted():
    address = npu.caching_allocator_alloc(64)
    assert npu.stop_device(0) == 0
    try:
        with pytest.raises(RuntimeError, match="FORCE STOP"):
            _C.fill(0, address, 1, 64)
    finally:
        npu.restart_device(0)
    _C.fill(0, address, 1, 64)
    assert _C.copy_to_host(0, address, 2) == b"\x01\x01"
    npu.caching_allocator_delete(address)
    assert npu.stop_device(99) == 1
    with pytest.raises(AssertionError, match="Invalid device id"):
        npu.restart_device(99)


def test_faulty_memory_is_classified():
    from onnxruntime_npu.npu.recovery import inject_uncorrectable_error

    assert npu.check_uce_in_memory(0) == 0
    address = npu.caching_allocator_alloc(1 << 20)
    try:
        inject_uncorrectable_error(0, address + 100)
        assert npu.check_uce_in_memory(0) == 3
        npu.caching_allocator_delete(address)
        assert npu.check_uce_in_memory(0) == 2
        inject_uncorrectable_error(0, id(address))
        assert npu.check_uce_in_memory(0) == 1
    finally:
        inject_uncorrectable_error(0, None)
    assert npu.check_uce_in_memory(0) == 0


def test_stress_detect():
    assert npu.stress_detect() == 0
    for kind in ("hccs", "gpu"):
        with pytest.warns(UserWarning, match="did not run"):
            assert npu.stress_detect(kind) == 1
