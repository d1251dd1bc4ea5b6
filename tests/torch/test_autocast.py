"""Autocast and gradient scaling, in any import order."""

import subprocess
import sys

import pytest

IMPORTS = {
    "torch first": "import torch, onnxruntime_npu",
    "device first": "import onnxruntime_npu as torch_npu, torch",
    "amp first": "import onnxruntime_npu as torch_npu; torch_npu.npu.amp.autocast; import torch",
    "as torch_npu": (
        "import onnxruntime_npu; onnxruntime_npu.install_as_torch_npu(); import torch, torch_npu"
    ),
}

AUTOCAST = """
a = torch.ones(4, 4).npu().requires_grad_()
f16, bf16, f32 = torch.float16, torch.bfloat16, torch.float32
for context, dtype in (
    (torch.autocast("npu"), f16),
    (torch.autocast("npu", dtype=bf16), bf16),
    (torch.amp.autocast("npu", dtype=bf16), bf16),
    (torch.npu.amp.autocast(), f16),
    (torch.npu.amp.autocast(dtype=bf16), bf16),
    (torch.npu.amp.autocast(enabled=False), f32),
):
    with context:
        assert (a @ a).dtype == dtype, (context, dtype)
    assert context(lambda: a @ a)().dtype == dtype
    assert (a @ a).dtype == f32
for scaler in (torch.npu.amp.GradScaler(), torch.amp.GradScaler("npu")):
    optimizer = torch.optim.SGD([a], 0.5)
    scaler.scale((a @ a).sum()).backward()
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
    assert scaler.get_scale() == 65536
assert bool((a != 1).all())
"""


@pytest.mark.parametrize("imports", IMPORTS.values(), ids=IMPORTS)
def test_autocast_works_in_every_import_order(imports):
    subprocess.run([sys.executable, "-c", imports + AUTOCAST], check=True, timeout=900)
