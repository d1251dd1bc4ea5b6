"""The sanitizer: races between streams are reported, ordered work is not."""

import pytest

# One process per case: the sanitizer cannot be disabled.
PROLOGUE = """
import torch, onnxruntime_npu
from onnxruntime_npu import npu
npu._sanitizer.enable_npu_sanitizer()
npu._sanitizer.enable_npu_sanitizer()
side = npu.Stream()

def found(work):
    try:
        work()
    except torch.cuda._sanitizer.CUDASanitizerErrors as error:
        return str(error)
    return ""

def ordered(source):
    side.wait_stream(npu.current_stream())
    with npu.stream(side):
        return source.sum()
"""

REUSE = """
def use_and_free(part, before_freeing):
    x = torch.ones(5000, device="npu")
    ordered(x[part])
    before_freeing(x)
    return x.data_ptr()

def reuse(address, size):
    y = torch.empty(size, device="npu")
    assert y.data_ptr() == address  # otherwise there is no reuse to detect
    y.fill_(2)

everything = slice(None)
address = use_and_free(everything, lambda x: None)
message = found(lambda: reuse(address, 5000))
assert "data pointer %d" % address in message and "record_stream" in message, message
assert "aten::sum" in message and "aten::empty" in message, message

for order in (
    lambda x: x.record_stream(side),
    lambda x: x[7:].record_stream(side),
    lambda x: npu.current_stream().wait_stream(side),
    lambda x: side.synchronize(),
    lambda x: npu.synchronize(),
):
    npu.synchronize()
    address = use_and_free(everything, order)
    while not side.query():  # a recorded block is reclaimed when the side stream is done with it
        pass
    assert not found(lambda: reuse(address, 5000))

npu.synchronize()
address = use_and_free(slice(4000, None), lambda x: None)  # the start of the block is not used
assert not found(lambda: reuse(address, 10))
"""

SAME_STREAM = """
for _ in range(3):
    x = torch.ones(5001, device="npu")
    y = (x + x)[1:].relu_().view(-1, 8)
    assert y.t().contiguous().cpu()[0, 0] == 2
with npu.stream(side):
    for _ in range(3):
        x = torch.ones(5000, device="npu")
        x.set_((x + 1).untyped_storage())
        x.resize_(9000).fill_(1)
    assert x.sum().item() == 9000
"""

RACES = """
x = torch.ones(8, device="npu")
with npu.stream(side):
    assert "aten::add_" in found(lambda: x.add_(1))
npu.synchronize()
y = torch.ones(8, device="npu")
assert not found(lambda: ordered(y))
assert "aten::fill_" in found(lambda: y.fill_(3))
npu.synchronize()
with npu.stream(side):
    z = torch.ones(8, device="npu")
    assert z.tolist() == [1] * 8  # waits for the side stream
assert not found(lambda: z.add_(1))
assert not found(lambda: torch.ones(0, device="npu").add_(1))
"""


@pytest.mark.parametrize(
    "script", [REUSE, SAME_STREAM, RACES], ids=["reuse", "same stream", "races"]
)
def test_sanitizer(script, run_python):
    status, output = run_python(PROLOGUE + script, ORT_NPU_LOG="error")
    assert status == 0, output
