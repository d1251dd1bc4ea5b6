"""``from torch_npu.contrib import transfer_to_npu``: scripts written for CUDA run unmodified."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

SCRIPT = Path(__file__).parent / "scripts" / "train_on_cuda.py"
TRANSFER = """
import onnxruntime_npu
onnxruntime_npu.install_as_torch_npu()
import torch, torch_npu
from torch import nn
assert not torch.cuda.is_available()  # no effect before the next line
from torch_npu.contrib import transfer_to_npu
"""
RUN = ("-m", "onnxruntime_npu.cli", "run", "--cuda")


def seen(tmp_path, *command):
    checkpoint = str(tmp_path / "checkpoint.pt")
    run = subprocess.run(
        [sys.executable, *command, str(SCRIPT), checkpoint],
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert run.returncode == 0, run.stderr[-3000:]
    return json.loads(run.stdout.splitlines()[-1])


def test_cuda_training_script_matches_cpu(tmp_path):
    npu, cpu = seen(tmp_path, *RUN), seen(tmp_path)
    assert (npu["device"], cpu["device"]) == ("cuda", "cpu")
    # float32 on both: the order of sums differs.
    assert npu["plain"] == pytest.approx(cpu["plain"], rel=1e-5)
    assert npu["resumed"] == pytest.approx(cpu["resumed"], rel=1e-4)
    # bfloat16 activations are rounded differently: 2^-8 relative each.
    assert npu["mixed"] == pytest.approx(cpu["mixed"], rel=2e-2)


@pytest.fixture
def transferred(run_python):
    """Runs fragments after the import, in one separate process, each with names of its own."""

    def run(*fragments):
        each = "".join(f"exec({fragment!r}, dict(globals()))\n" for fragment in fragments)
        failed, output = run_python(TRANSFER + each)
        assert not failed, output
        return output

    return run


MAKERS = """
cuda = torch.device("cuda")
assert cuda.type == "cuda"
x, linear = torch.ones(2), nn.Linear(2, 2)
made = {
    "zeros": torch.zeros(2, device="cuda"),
    "tensor": torch.tensor([1.0], device=cuda),
    "arange": torch.arange(3, device="cuda:0"),
    "as_tensor": torch.as_tensor([1, 2], device="cuda"),
    "empty_like": torch.empty_like(x, device="cuda"),
    "normal": torch.normal(0.0, 1.0, (2,), device="cuda"),
    "fftfreq": torch.fft.fftfreq(4, device="cuda"),
    "new_zeros": x.new_zeros(2, device="cuda"),
    "to": x.to("cuda"), "to device": x.to(device=cuda), "to index": x.to(0),
    "cuda": x.cuda(), "cuda 0": x.cuda(0), "cuda:0": x.cuda("cuda:0"), "cuda()": x.cuda(cuda),
    "type name": x.type("torch.cuda.FloatTensor"), "type": x.type(torch.cuda.FloatTensor),
    "FloatTensor": torch.cuda.FloatTensor(3),
    "generator": torch.randn(2, generator=torch.Generator("cuda"), device="cuda"),
    "generator=": torch.randn(2, generator=torch.Generator(device=cuda), device="cuda"),
    "Linear": nn.Linear(2, 2, device="cuda").weight,
    "Module.to": linear.to("cuda").weight, "Module.cuda": linear.cpu().cuda(0).weight,
    "to_empty": nn.Linear(2, 2, device="meta").to_empty(device="cuda").weight,
    "lazy to": nn.LazyLinear(3).to("cuda").weight, "lazy cuda": nn.LazyLinear(3).cuda().weight,
    "packed": nn.utils.rnn.pack_sequence([x]).cuda().data,
    "UntypedStorage": torch.UntypedStorage(4, device="cuda"),
    "storage.cuda": x.untyped_storage().cuda(),
}
with torch.device("cuda"):
    made["with device"] = torch.ones(2)
torch.set_default_device("cuda")
made["default device"] = torch.ones(2)
torch.set_default_device(None)
torch.set_default_tensor_type(torch.cuda.DoubleTensor)
made["default type"] = torch.ones(2)
torch.set_default_tensor_type("torch.cuda.FloatTensor")
assert made["default type"].dtype == torch.float64 and torch.ones(2).is_cuda
torch.set_default_tensor_type("torch.FloatTensor")
made["FloatTensor of an array"] = torch.cuda.FloatTensor(torch.arange(6.0).view(2, 3).numpy())
assert made["FloatTensor of an array"].tolist() == [[0, 1, 2], [3, 4, 5]]
wrong = {name: str(value.device) for name, value in made.items() if value.device.type != "npu"}
assert not wrong, wrong
assert all(value.is_cuda for value in made.values()) and not torch.ones(2).is_cuda
assert isinstance(made["zeros"], torch.cuda.FloatTensor)
assert isinstance(torch.Generator("cuda"), torch.Generator)
assert torch.Generator().device.type == "cpu" and torch.ones(2).to("cpu").device.type == "cpu"
try:
    torch.ones(2, device="cuda:9")
except RuntimeError as error:
    assert "expected 0 to" in str(error)
else:
    raise AssertionError("made a tensor on a device that is not there")
"""


CHECKPOINTS = """
import io
def saved(value):
    file = io.BytesIO()
    torch.save(value, file)
    return file
def device(file, where):
    file.seek(0)
    return str(torch.load(file, map_location=where).device)
of_npu = saved(torch.ones(2, device="cuda"))
for where in ("cuda", "cuda:0", torch.device("cuda:0"), None, {"cuda:0": "cuda:0"}):
    assert device(of_npu, where) == "npu:0", where
assert device(of_npu, lambda storage, location: storage.cuda(0)) == "npu:0"
assert device(of_npu, lambda storage, location: storage) == "cpu"
assert device(of_npu, {"cuda:0": "cpu"}) == device(of_npu, "cpu") == "cpu"
from unittest import mock
with mock.patch("torch.serialization.location_tag", lambda storage: "cuda:0"):
    of_cuda = saved(torch.ones(2))  # as CUDA writes it
assert device(of_cuda, None) == device(of_cuda, {"cuda:0": "cuda:0"}) == "npu:0"
assert device(of_cuda, {"cuda:0": "cpu"}) == "cpu"
"""


@pytest.mark.no_values
def test_cuda_checkpoints_load(transferred):
    transferred(CHECKPOINTS)


CUDA_NAMES = """
import importlib, warnings
import torch.cuda.amp.autocast_mode, torch.cuda.memory
assert torch.cuda.Stream is torch.npu.Stream and torch.cuda.CUDAGraph is torch.npu.NPUGraph
assert torch.cuda.memory.memory_stats is torch.npu.memory_stats
assert torch.cuda.amp.autocast is torch.cuda.amp.autocast_mode.autocast is torch.npu.amp.autocast
assert torch.cuda.get_device_name("cuda:0") == torch.npu.get_device_name(0)
assert torch.cuda.default_generators[0].device.type == "npu" and torch.cuda.get_arch_list() == []
torch.cuda._lazy_init()
for device in (0, "cuda:0", torch.device("cuda"), torch.device("npu", 0)):
    with torch.cuda.device(device):
        assert torch.cuda.current_device() == 0
    torch.cuda.Stream(device=device).synchronize()
with torch.random.fork_rng(devices=[0], device_type="cuda"):
    inside = torch.rand(2, device="cuda")
assert torch.equal(inside, torch.rand(2, device="cuda"))

x = torch.ones(3, device="cuda", requires_grad=True)
with torch.autocast(device_type="cuda", dtype=torch.float16):
    assert torch.is_autocast_enabled("cuda") and torch.get_autocast_dtype("cuda") == torch.float16
    assert (x[None] @ x[:, None]).dtype == torch.float16
    assert torch.is_autocast_enabled() and torch.get_autocast_gpu_dtype() == torch.float16
assert not torch.is_autocast_enabled()
torch.set_autocast_gpu_dtype(torch.bfloat16)
torch.set_autocast_enabled(True)
assert (x[None] @ x[:, None]).dtype == torch.bfloat16
torch.set_autocast_enabled("cuda", False)
torch.set_autocast_dtype("cuda", torch.float16)

class Double(torch.autograd.Function):
    @staticmethod
    @torch.amp.custom_fwd(device_type="cuda", cast_inputs=torch.float32)
    def forward(ctx, x):
        return x * 2

    @staticmethod
    @torch.cuda.amp.custom_bwd
    def backward(ctx, gradient):
        return gradient * 2

Double.apply(x).sum().backward()
assert x.grad.tolist() == [2, 2, 2]

graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    twice = x.detach() * 2
graph.replay()
assert twice.tolist() == [2, 2, 2]
with torch.cuda.nvtx.range("step"):
    torch.cuda.nvtx.mark("now")

for backend in ("eager", "aot_eager"):
    compiled = torch.compile(lambda x: x * 2 + torch.zeros(3, device="cuda"), backend=backend)
    assert compiled(x.detach()).tolist() == [2, 2, 2]
assert nn.LazyLinear(3).npu().weight.device.type == "npu"

from torch.profiler import ProfilerActivity, profile
with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as trace:
    x.detach().relu()
assert "Relu" in [event.name for event in trace.events()]

zeros = torch.zeros
importlib.reload(transfer_to_npu)
import torch_npu.contrib.transfer_to_npu
assert torch.zeros is zeros and torch_npu.contrib.transfer_to_npu is transfer_to_npu

with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    assert torch.jit.script(len) is len
assert "uncompiled" in str(caught[0].message)
"""


def test_cuda_device_and_names_are_those_of_npu_everywhere(transferred):
    transferred(MAKERS, CUDA_NAMES)


ACCELERATE = """
from accelerate import Accelerator
accelerator = Accelerator(mixed_precision="bf16")
model = nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = torch.utils.data.DataLoader(torch.randn(8, 4), batch_size=8)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
losses = []
for _ in range(3):
    for rows in loader:
        assert rows.is_cuda
        with accelerator.autocast():
            loss = model(rows).float().square().mean()
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
assert losses[2] < losses[1] < losses[0], losses
"""


def test_accelerate_trains_after_the_import(transferred):
    pytest.importorskip("accelerate")
    transferred(ACCELERATE)


NCCL = """
import torch.distributed as dist
assert dist.is_nccl_available()
dist.init_process_group("nccl", store=dist.HashStore(), rank=0, world_size=1)
assert dist.get_backend() == "hccl"
model = nn.parallel.DistributedDataParallel(nn.Linear(4, 2).cuda(), device_ids=[0])
model(torch.ones(3, 4, device="cuda")).sum().backward()
gradient = model.module.weight.grad
assert gradient.device.type == "npu" and bool((gradient == 3).all())
group = dist.new_group(backend="cpu:gloo,cuda:nccl")
host = torch.ones(2)
dist.all_reduce(host, group=group)
dist.all_reduce(gradient, group=group)
mesh = dist.init_device_mesh("cuda", (1,))
assert mesh.device_type == "npu"
options = torch_npu._C._distributed_c10d.ProcessGroupHCCL.Options()
options.hccl_config = {"group_name": "tensor_parallel", "hccl_buffer_size": 200}
assert options.hccl_config["hccl_buffer_size"] == 200
dist.new_group(backend="nccl", pg_options=options)
dist.destroy_process_group()
"""


def test_process_groups_of_nccl_are_of_hccl(transferred):
    if not (torch.distributed.is_available() and torch.distributed.is_gloo_available()):
        pytest.skip("this torch has no gloo, which hccl exchanges data with")
    transferred(NCCL)
