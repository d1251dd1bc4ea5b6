"""Pinned and swapped memory: reuse, captures, side streams, forks; shared by torch and ORT."""

import ctypes
import gc

import numpy as np
import onnxruntime as ort
import onnxruntime_npu
import pytest
import torch
from null_backend import computed
from onnxruntime_npu import npu

pytestmark = pytest.mark.no_values
MIB = 1 << 20


@pytest.fixture(autouse=True)
def no_cache():
    """Empties the cache, so that no memory of other tests is reused."""
    npu.synchronize()
    gc.collect()
    npu.host_empty_cache()


def held_back(stream):
    """Return an event that holds `stream` back until it is recorded."""
    gate = npu.ExternalEvent()
    with npu.stream(stream):
        gate.wait()
    return gate


def ort_pinned(shape):
    device = next(d for d in ort.get_ep_devices() if d.ep_name == "NPUExecutionProvider")
    info = device.memory_info(ort.OrtDeviceMemoryType.HOST_ACCESSIBLE)
    return ort.OrtValue.ortvalue_from_shape_and_type(shape, np.float32, memory_info=info)


def as_torch(value):
    """Return a CPU tensor over the pinned memory of an OrtValue."""
    size = int(np.prod(value.shape()))
    memory = (ctypes.c_float * size).from_address(value.data_ptr())
    return torch.frombuffer(memory, dtype=torch.float32).reshape(value.shape())


def test_freed_memory_is_reused():
    first = torch.tensor([1.0]).pin_memory()
    address = first.data_ptr()
    del first
    assert torch.tensor([2.0]).pin_memory().data_ptr() == address
    before = npu.host_memory_stats()
    assert before["allocations.current"] == before["active_requests.current"] + 1
    npu.host_empty_cache()
    after = npu.host_memory_stats()
    assert after["allocations.current"] == after["active_requests.current"]
    assert after["num_host_free"] == before["num_host_free"] + 1
    assert after["host_free_time.count"] == before["host_free_time.count"] + 1


def test_cached_memory_is_bounded():
    before = npu.host_memory_stats()["allocated_bytes.current"]
    tensors = [torch.empty(128 * MIB, dtype=torch.uint8, pin_memory=True) for _ in range(6)]
    del tensors
    assert npu.host_memory_stats()["allocated_bytes.current"] - before <= 512 * MIB
    npu.host_empty_cache()
    assert npu.host_memory_stats()["allocated_bytes.current"] == before


def test_memory_of_a_pending_copy_is_not_reused():
    device = torch.zeros(4, device="npu")
    pinned = torch.ones(4).pin_memory()
    address = pinned.data_ptr()
    gate = held_back(npu.current_stream())
    device.copy_(pinned, non_blocking=True)
    del pinned
    other = torch.full((4,), 7.0).pin_memory()
    assert other.data_ptr() != address
    gate.record(npu.Stream())
    assert device.tolist() == computed([1, 1, 1, 1])
    assert torch.ones(4).pin_memory().data_ptr() == address


@pytest.mark.parametrize("mode", ["free", "again", "pin"])
def test_pinned_memory_in_a_capture(mode):
    graph = npu.NPUGraph()
    device = torch.zeros(1000, device="npu")
    pinned = torch.ones(1000).pin_memory()
    with npu.graph(graph):
        device.copy_(pinned, non_blocking=True)
        if mode == "free":
            del pinned
        elif mode == "again":
            device.copy_(pinned, non_blocking=True)
        else:
            torch.ones(10).pin_memory()
    graph.replay()
    assert bool((device == 1).all()) == computed(True)


def test_graph_keeps_the_memory_it_copies():
    graph, back = npu.NPUGraph(), npu.NPUGraph()
    device = torch.zeros(MIB, device="npu")
    with npu.graph(graph):
        # A temporary that is freed within the capture.
        device.copy_(torch.arange(MIB).pin_memory().to("npu", non_blocking=True))
    with npu.graph(back):
        host = torch.empty(MIB, pin_memory=True).copy_(device, non_blocking=True)
    address = host.data_ptr()
    del host
    npu.host_empty_cache()
    others = [torch.full((MIB,), -1.0).pin_memory() for _ in range(4)]
    others += [torch.full((MIB,), -1).pin_memory() for _ in range(4)]
    assert address not in [t.data_ptr() for t in others]
    graph.replay()
    back.replay()
    assert torch.equal(device.cpu(), computed(torch.arange(MIB, dtype=torch.float32)))
    assert all(bool((t == -1).all()) for t in others)
    in_use = npu.host_memory_stats()["active_requests.current"]
    graph.reset()
    back.reset()
    assert npu.host_memory_stats()["active_requests.current"] == in_use - 2


def test_capture_releases_memory_its_graph_does_not_copy():
    before = npu.host_memory_stats()
    for _ in range(3):
        graph = npu.NPUGraph()
        with npu.graph(graph):
            torch.ones(1024).pin_memory()
        graph.reset()
    npu.host_empty_cache()
    after = npu.host_memory_stats()
    for name in ("allocations.current", "allocated_bytes.current", "active_bytes.current"):
        assert after[name] == before[name]


def test_swapped_memory_is_retained_for_streams_that_use_it():
    side = npu.Stream()
    swapped = onnxruntime_npu.empty_with_swapped_memory([MIB])
    address = swapped.data_ptr()
    npu.synchronize()
    gate = held_back(side)
    with npu.stream(side):
        swapped.fill_(1.0)
    del swapped  # while another stream is current
    other = torch.zeros(MIB).pin_memory()
    assert other.data_ptr() != address
    gate.record(npu.default_stream())
    npu.synchronize()
    assert not other.any()
    assert torch.zeros(MIB).pin_memory().data_ptr() == address


def test_record_stream_of_swapped_memory():
    side = npu.Stream()
    swapped = onnxruntime_npu.empty_with_swapped_memory([MIB])
    address = swapped.data_ptr()
    gate = held_back(side)
    swapped[5:].record_stream(side)
    del swapped
    assert onnxruntime_npu.empty_with_swapped_memory([MIB]).data_ptr() != address
    gate.record(npu.default_stream())
    npu.synchronize()


def test_record_stream_of_a_view_that_an_ortvalue_shares():
    side = npu.Stream()
    tensor = torch.arange(20, device="npu", dtype=torch.float32)
    address = tensor.data_ptr()
    shared = onnxruntime_npu.ortvalue_to_torch(onnxruntime_npu.ortvalue_from_torch(tensor[4:]))
    npu.synchronize()
    gate = held_back(side)
    shared.record_stream(side)
    gate_open = npu.Event()
    del tensor, shared
    gc.collect()
    assert torch.zeros(20, device="npu").data_ptr() != address
    gate.record(npu.default_stream())
    gate_open.record()
    npu.synchronize()


def test_swapped_memory_in_a_capture():
    before = npu.host_memory_stats()["active_requests.current"]
    graph = npu.NPUGraph()
    result = torch.zeros(64, device="npu")
    earlier = onnxruntime_npu.empty_with_swapped_memory([64]).fill_(3.0)
    npu.synchronize()
    with npu.graph(graph):
        within = onnxruntime_npu.empty_with_swapped_memory([64])
        within.copy_(earlier)
        result.copy_(within + earlier)
        del within, earlier
    others = [torch.full((64,), -1.0).pin_memory() for _ in range(8)]
    graph.replay()
    assert bool((result == 6).all()) == computed(True)
    assert all(bool((t == -1).all()) for t in others)
    del others
    graph.reset()
    assert npu.host_memory_stats()["active_requests.current"] == before


def test_forked_child_reports_an_error_and_frees_nothing(run_python):
    code = """
import os, torch, onnxruntime_npu
pinned = torch.ones(1000).pin_memory()
swapped = onnxruntime_npu.empty_with_swapped_memory([1000])
device = torch.zeros(1000, device="npu")
device.copy_(pinned, non_blocking=True)
child = os.fork()
if child == 0:
    del pinned, swapped
    try:
        torch.ones(10).pin_memory()
    except RuntimeError as e:
        os._exit(0 if "fork" in str(e) else 1)
    os._exit(2)
_, status = os.waitpid(child, 0)
del pinned, swapped
print(os.waitstatus_to_exitcode(status), int(device.sum()))
"""
    assert run_python(code) == (0, f"0 {computed(1000)}\n")


def test_torch_recognises_pinned_memory_of_onnxruntime():
    before = npu.host_memory_stats()["active_bytes.current"]
    value = ort_pinned([4, 1024])
    assert npu.host_memory_stats()["active_bytes.current"] == before + 4 * 4096
    host = as_torch(value)
    assert host.is_pinned() and host[2:].is_pinned()
    host.fill_(3)
    address = value.data_ptr()
    device = torch.zeros(4, 1024, device="npu")
    gate = held_back(npu.current_stream())
    device.copy_(host, non_blocking=True)  # must not wait: the gate opens only later
    del value
    assert ort_pinned([4, 1024]).data_ptr() != address
    gate.record(npu.Stream())
    assert bool((device == 3).all()) == computed(True)


def test_torch_recognises_pinned_memory_before_it_has_pinned_any(run_python):
    code = """
import ctypes, numpy as np, onnxruntime as ort, onnxruntime_npu, torch
device = next(d for d in ort.get_ep_devices() if d.ep_name == "NPUExecutionProvider")
info = device.memory_info(ort.OrtDeviceMemoryType.HOST_ACCESSIBLE)
value = ort.OrtValue.ortvalue_from_shape_and_type([16], np.float32, memory_info=info)
memory = (ctypes.c_float * 16).from_address(value.data_ptr())
print(torch.frombuffer(memory, dtype=torch.float32).is_pinned(), torch.ones(3).is_pinned())
"""
    assert run_python(code) == (0, "True False\n")


def test_two_logical_devices(run_python):
    code = """
import ctypes, torch, onnxruntime_npu
library = ctypes.CDLL(torch.__path__[0] + "/lib/libtorch_cpu.so")

def device_of(address):
    # from_blob without a device looks up the memory's device.
    one, handle, index = (ctypes.c_int64 * 1)(1), ctypes.c_void_p(), ctypes.c_int32(-2)
    failed = library.aoti_torch_create_tensor_from_blob(
        ctypes.c_void_p(address), ctypes.c_int64(1), one, one, ctypes.c_int64(0), 6, 20, -1,
        ctypes.byref(handle))
    if failed:
        return None
    assert library.aoti_torch_get_device_index(handle, ctypes.byref(index)) == 0
    library.aoti_torch_delete_tensor_object(handle)
    return index.value

here, there = torch.zeros(100, device="npu:0"), torch.zeros(100, device="npu:1")
pinned = torch.zeros(100).pin_memory()
assert device_of(here.data_ptr()) == device_of(here[7:].data_ptr()) == 0
assert device_of(there.data_ptr()) == device_of(there[7:].data_ptr()) == 1
for current in (0, 1):
    torch.npu.set_device(current)
    assert device_of(pinned.data_ptr()) == current
host = torch.zeros(100)
assert device_of(host.data_ptr()) is None

torch.npu.set_device(0)
swapped = onnxruntime_npu.empty_with_swapped_memory([100], device="npu:1")
address = swapped.data_ptr()
gate = torch.npu.ExternalEvent()
with torch.npu.device(1):
    gate.wait()
    swapped.fill_(1)
del swapped  # while the other device is current
assert torch.zeros(100).pin_memory().data_ptr() != address
gate.record(torch.npu.default_stream(0))
torch.npu.synchronize(1)
print("ok")
"""
    code, output = run_python(code, ORT_NPU_DEVICE_COUNT="2")
    assert code == 0 and output.endswith("ok\n"), output


def test_accumulated_statistics_are_reset():
    torch.zeros(100, device="npu")
    assert torch.accelerator.memory_stats()["allocation.all.allocated"] > 0
    torch.accelerator.reset_accumulated_memory_stats()
    assert torch.accelerator.memory_stats()["allocation.all.allocated"] == 0


@pytest.mark.usefixtures("still_memory")
def test_swapped_memory_does_not_count_against_the_device():
    import onnxruntime_npu

    before = torch.npu.memory_allocated()
    x = onnxruntime_npu.empty_with_swapped_memory((256, 256), dtype=torch.half, device="npu:0")
    assert torch.npu.memory_allocated() == before
    assert x.device.type == "npu" and x.dtype == torch.half and x.shape == (256, 256)
    y = x.fill_(2) * 3
    del x
    assert y.eq(6).all().item() == computed(True)
    assert onnxruntime_npu.empty_with_swapped_memory((0, 2)).numel() == 0
    with pytest.raises(RuntimeError, match="expected an npu, got cpu"):
        onnxruntime_npu.empty_with_swapped_memory((2,), device="cpu")


def test_expandable_pinned_memory_warns_that_it_is_unsupported(run_python):
    def output(value):
        conf = f"pin_memory_expandable_segments:{value}"
        return run_python(
            "import onnxruntime_npu; onnxruntime_npu.npu.init()",
            PYTORCH_NPU_ALLOC_CONF=conf,
            ORT_NPU_LOG="warning",
        )

    code, text = output(True)
    assert code == 0 and "the host NPU does not support this feature" in text
    assert output(False) == (0, "")
