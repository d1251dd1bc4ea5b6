"""One context of a stream or of a device, entered again within itself and by several threads."""

import threading

from onnxruntime_npu import npu


def test_a_stream_context_is_entered_within_itself():
    stream = npu.Stream()
    context = npu.stream(stream)
    with context:
        with context:
            assert npu.current_stream() == stream
        assert npu.current_stream() == stream
    assert npu.current_stream() == npu.default_stream()


def test_each_thread_leaves_a_shared_stream_context_to_its_own_stream():
    context, other = npu.stream(npu.Stream()), npu.Stream()
    entered, left = threading.Barrier(2, timeout=30), threading.Barrier(2, timeout=30)
    restored = {}

    def work(name, before):
        npu.set_stream(before)
        with context:
            entered.wait()  # both are inside
        left.wait()
        restored[name] = npu.current_stream() == before

    streams = {"default": npu.default_stream(), "other": other}
    threads = [threading.Thread(target=work, args=item) for item in streams.items()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert restored == {"default": True, "other": True}


def test_a_device_context_is_shared_and_entered_within_itself(run_python):
    code = """
import threading
from onnxruntime_npu import npu

context = npu.device(1)
with context:
    with context:
        assert npu.current_device() == 1
    assert npu.current_device() == 1
assert npu.current_device() == 0

entered = threading.Barrier(2, timeout=30)
after = {}

def work(before):
    npu.set_device(before)
    with context:
        entered.wait()
    after[before] = npu.current_device()

threads = [threading.Thread(target=work, args=(i,)) for i in range(2)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
assert after == {0: 0, 1: 1}, after
print("ok")
"""
    assert run_python(code, ORT_NPU_DEVICE_COUNT="2") == (0, "ok\n")
