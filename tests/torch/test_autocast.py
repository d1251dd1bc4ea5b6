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


@pytest.mark.parametrize(
    "imports",
    [
        pytest.param(code, id=name, marks=() if name == "as torch_npu" else pytest.mark.slow)
        for name, code in IMPORTS.items()
    ],
)
def test_autocast_works_in_every_import_order(imports):
    subprocess.run([sys.executable, "-c", imports + AUTOCAST], check=True, timeout=900)


@pytest.mark.parametrize("cast_inputs", [None, "float32"])
def test_custom_functions_keep_their_autocast(cast_inputs):
    """As by torch.amp: backward has the autocast of forward, which cast_inputs switches off."""
    import onnxruntime_npu  # noqa: F401
    import torch

    dtype = None if cast_inputs is None else getattr(torch, cast_inputs)
    seen = []

    class Product(torch.autograd.Function):
        @staticmethod
        @torch.npu.amp.custom_fwd(cast_inputs=dtype)
        def forward(ctx, a, b):
            seen.append((torch.npu.amp.is_autocast_enabled(), a.dtype))
            ctx.save_for_backward(a, b)
            return a @ b

        @staticmethod
        @torch.npu.amp.custom_bwd
        def backward(ctx, gradient):
            seen.append((torch.npu.amp.is_autocast_enabled(), gradient.dtype))
            a, b = ctx.saved_tensors
            return (gradient @ b.mT).to(a.dtype), (a.mT @ gradient).to(b.dtype)

    a = torch.ones(4, 4, dtype=torch.float16, device="npu").requires_grad_()
    with torch.npu.amp.autocast():
        result = Product.apply(a, a.detach())
    result.sum().backward()
    inside = dtype is None
    expected = torch.float16 if inside else torch.float32
    assert seen == [(inside, expected), (inside, expected)]
    assert a.grad.dtype == torch.float16 and bool((a.grad == 4).all())
