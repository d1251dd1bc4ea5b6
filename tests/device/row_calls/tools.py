"""Marks in a profile, the sanitizer, utils."""

import gc
import json
import os
import threading

import pytest
from onnxruntime_npu import _C, npu

from row_calls import calls


@calls(
    "npu.mstx", "npu.mstx.mark", "npu.mstx.range_start", "npu.mstx.range_end", "npu.mstx.mstx_range"
)
def _(c, name):
    mstx, stream = npu.mstx, npu.Stream()
    address = c.block()

    @mstx.mstx_range("decorated")
    def work():
        _C.fill(0, address, 1, 64, stream.npu_stream)
        return 7

    path = c.folder / "trace.json"
    with npu.profile(path):
        mstx.mark("here", stream)
        number = mstx.range_start("range", domain="mine")
        assert mstx.range_push("outer") == 0 and mstx.range_push("inner") == 1
        assert work() == 7
        assert mstx.range_pop() == 1 and mstx.range_pop() == 0 and mstx.range_pop() == -1
        with mstx.annotate("annotated"):
            pass
        mstx.range_end(number, "mine")
        with pytest.raises(RuntimeError, match="a profile runs already"), npu.profile(path):
            pass
    events = json.loads(path.read_text())["traceEvents"]
    launches = [e for e in events if e["ph"] == "X" and e["name"] == "memset"]
    assert [e["tid"] for e in launches] == [stream.stream_id]
    assert all(e["dur"] >= 0 and e["ts"] > 0 for e in launches)
    assert sum(e["name"] == "here" for e in events) == 2  # on the host and on the stream
    for ranged in ("range", "outer", "inner", "decorated", "annotated"):
        assert [e["ph"] for e in events if e["name"] == ranged] == ["b", "e"]
    for wrong in (lambda: mstx.mark(""), lambda: mstx.mark(3), lambda: mstx.range_end("1")):
        with pytest.warns(UserWarning, match="mstx"):
            wrong()
    with pytest.warns(UserWarning, match=r"torch\.npu\.Stream"):
        assert mstx.range_start("x", stream=5) == 0


@calls("npu._sanitizer.enable_npu_sanitizer")
def _(c, name):
    _ = c.torch
    code = """
import torch, onnxruntime_npu
from onnxruntime_npu import npu, torch_device
torch_device.register()
npu._sanitizer.enable_npu_sanitizer()
npu._sanitizer.enable_npu_sanitizer()
side = npu.Stream()
x = torch.ones(8, device="npu")
try:
    with npu.stream(side):
        x.add_(1)
except Exception as error:
    print("race:", type(error).__name__)
y = torch.ones(8, device="npu")
side.wait_stream(npu.current_stream())
with npu.stream(side):
    y.add_(1)
npu.synchronize()
print("ordered:", y.cpu().tolist()[0])
"""
    status, output = c.run_python(code, ORT_NPU_LOG="error")
    assert status == 0, output
    assert "race: NPUSanitizerErrors" in output and "ordered: 2.0" in output


@calls("utils.save_async")
def _(c, name):
    torch, path = c.torch, c.folder / "saved.pt"
    x = torch.arange(4.0, device="npu")
    c.utils.save_async({"x": x, "n": 3}, path)
    x.fill_(9)
    for thread in threading.enumerate():
        if thread.name == "save_async":
            thread.join()
    loaded = torch.load(path)
    assert loaded["x"].tolist() == [0, 1, 2, 3] and loaded["n"] == 3
    with pytest.raises(RuntimeError, match="zipfile"):
        c.utils.save_async(x, path, _use_new_zipfile_serialization=False)


@calls(
    "utils.npu_combine_tensors", "utils.get_part_combined_tensor", "utils.is_combined_tensor_valid"
)
def _(c, name):
    torch, utils = c.torch, c.utils
    a, b = torch.ones(2, 2, device="npu"), torch.full((3,), 5.0, device="npu")
    assert not utils.is_combined_tensor_valid(None, [a])
    combined = utils.npu_combine_tensors([a, b])
    assert combined.cpu().tolist() == [1, 1, 1, 1, 5, 5, 5]
    assert utils.is_combined_tensor_valid(combined, [a, b])
    combined.fill_(2)
    assert a.cpu().tolist() == [[2, 2], [2, 2]] and b.cpu().tolist() == [2, 2, 2]
    part = utils.get_part_combined_tensor(combined, 4, 3)
    assert part.data_ptr() == b.data_ptr()
    assert utils.get_part_combined_tensor(combined, 0, 0) is None
    with pytest.raises(RuntimeError, match="within 7 elements"):
        utils.get_part_combined_tensor(combined, 5, 3)
    zeros = torch.ones(2, device="npu")
    assert utils.npu_combine_tensors([zeros], require_copy_value=False).cpu().tolist() == [0, 0]
    assert zeros.cpu().tolist() == [0, 0]
    assert utils.npu_combine_tensors([]) is None
    for wrong in ([None], [torch.ones(1)], [a, torch.ones(2, dtype=torch.int32, device="npu")]):
        with pytest.raises(RuntimeError, match="npu_combine_tensors"):
            utils.npu_combine_tensors(wrong)
    del a, b, combined, part
    gc.collect()


@calls("utils.FlopsCounter")
def _(c, name):
    torch = c.torch
    counter = c.utils.FlopsCounter()
    assert counter is c.utils.FlopsCounter()
    assert counter.get_flops() == [0, 0]
    x, y = torch.ones(4, 8), torch.ones(8, 2)
    counter.start()
    x @ y
    counter.pause()
    x @ y
    counter.resume()
    assert counter.get_flops() == [128, 256]
    counter.stop()
    assert counter.get_flops() == [0, 0]


@calls("utils.set_thread_affinity", "utils.reset_thread_affinity")
def _(c, name):
    from onnxruntime_npu import utils

    cores = os.sched_getaffinity(0)
    first = min(cores)
    try:
        utils.set_thread_affinity([first, first])
        assert os.sched_getaffinity(0) == {first}
        utils.set_thread_affinity([[first, first], [first, first]])
        for bad in ([], [1], "01", [[1]], [1, 2, 3]):
            with pytest.raises(ValueError, match="Invalid core range"):
                utils.set_thread_affinity(bad)
        with pytest.raises(ValueError, match="values"):
            utils.set_thread_affinity([2, 1])
        utils.set_thread_affinity()
        assert os.sched_getaffinity(0) == cores
        utils.reset_thread_affinity()
    finally:
        os.sched_setaffinity(0, cores)
