"""torch.nn.DataParallel, and torch's copies among the devices of one process."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

CODE = """
import warnings

import onnxruntime_npu, torch
from torch.nn.parallel import comm

warnings.filterwarnings("ignore", "PyTorch is not compiled with NCCL")
onnxruntime_npu.torch_device.register()
x = torch.arange(12.0).reshape(6, 2)

def on(device, *tensors):
    assert all(str(tensor.device) == device for tensor in tensors)

def refuses(call, told):
    try:
        call()
    except RuntimeError as error:
        assert told in str(error), error
    else:
        raise AssertionError(told)

first, second = comm.broadcast(x.npu(), [0, 1])
on("npu:0", first), on("npu:1", second)
assert torch.equal(first.cpu(), x) and torch.equal(second.cpu(), x)
(a, b), (c, d) = comm.broadcast_coalesced([x.npu(), 2 * x.npu()], [0, 1])
on("npu:0", a, b), on("npu:1", c, d)
assert torch.equal(c.cpu(), x) and torch.equal(d.cpu(), 2 * x)
into = [torch.empty(6, 2, device=f"npu:{i}") for i in range(2)]
assert all(torch.equal(copy.cpu(), x) for copy in comm.broadcast(x.npu(), out=into))

for source in (x, x.npu()):
    for sizes, want in ((None, [3, 3]), ([4, 2], [4, 2])):
        parts = comm.scatter(source, [0, 1], sizes)
        on("npu:0", parts[0]), on("npu:1", parts[1])
        assert [len(part) for part in parts] == want
        assert torch.equal(torch.cat([part.cpu() for part in parts]), x)
streams = [torch.Stream(f"npu:{i}") for i in range(2)]
parts = comm.scatter(x.npu(), [0, 1], None, 1, streams)
for stream in streams:
    stream.synchronize()
assert torch.equal(torch.cat([part.cpu() for part in parts], 1), x)
comm.scatter(2 * x, out=into[:1])
assert torch.equal(into[0].cpu(), 2 * x)
for place, device in ((0, "npu:0"), (1, "npu:1"), ("cpu", "cpu"), (None, "npu:0")):
    whole = comm.gather(parts, 1, place)
    on(device, whole)
    assert torch.equal(whole.cpu(), x)
assert torch.equal(comm.gather(parts, 1, out=into[1]).cpu(), x)
refuses(lambda: comm.scatter(x, [0, 1], [2, 2, 2]), "[scatter] expected a size for each of 2")
refuses(lambda: comm.gather([], 0, 0), "[gather] expected tensors, got none")
refuses(lambda: comm.broadcast(x, out=[into[0][:1]]), "[broadcast] expected an out tensor of shape")
refuses(lambda: comm.scatter(x, []), "[scatter] expected devices, got none")
refuses(lambda: comm.scatter(x, out=[]), "[scatter] expected out tensors, got none")
refuses(lambda: comm.scatter(x, out=[into[0][:1]]), "[scatter] expected parts that together have")
refuses(lambda: comm.gather(parts, 1, out=into[1][:, :1]), "[gather] expected parts that together")
refuses(lambda: comm.scatter(x, out=[x]), "[scatter] expected out tensors on npu devices, got one")
refuses(lambda: comm.broadcast(x, out=[into[0], x]), "on npu devices, got one on cpu at index 1")
refuses(lambda: comm.gather([x, into[0]], 0), "[gather] expected tensors on npu devices, got one")
refuses(lambda: comm.gather([x], out=into[1]), "[gather] expected tensors on npu devices, got one")

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(2, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 3))
model = model.npu()
several = torch.nn.DataParallel(model, [0, 1])
model[1].eval()  # its statistics would be those of a part
gradients = []
for net in (model, several):
    net.zero_grad()
    y = net(x.npu())
    on("npu:0", y)
    y.square().sum().backward()
    gradients.append([y, *(p.grad.clone() for p in model.parameters())])
for one, two in zip(*gradients):
    torch.testing.assert_close(one, two)
print("ok")
"""


def test_copies_and_models_of_two_devices(run_python):
    from onnxruntime_npu import torch_device

    if not torch_device.is_built():
        pytest.skip("this build has no torch device")
    assert run_python(CODE, ORT_NPU_DEVICE_COUNT="2") == (0, "ok\n")
