"""Results and gradients of npu tensors against the CPU's, over element types."""

from collections.abc import Callable
from typing import Any

import torch

FLOATS = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
INTEGERS = [torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64]
# Computed in float32 and rounded once; in 16 bits the CPU also rounds intermediate results.
TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-12, torch.float16: 4e-3, torch.bfloat16: 3e-2}


def check(function: Callable[..., torch.Tensor], *inputs: torch.Tensor) -> None:
    """Results and gradients of the CPU, in float32 for 16-bit floats."""

    def run(device: str, dtype: torch.dtype) -> list[torch.Tensor]:
        leaves = [
            i.detach()
            .to(device, dtype if i.is_floating_point() else i.dtype)
            .requires_grad_(i.requires_grad)
            for i in inputs
        ]
        y = function(*leaves)
        weight = torch.linspace(-1, 2, y.numel(), dtype=torch.float64).view(y.shape).to(y)
        y.backward(weight)
        grads = [t.grad for t in leaves if t.requires_grad]
        assert y.dtype == dtype and all(g.dtype == dtype for g in grads)
        return [t.detach().cpu().double() for t in (y, *grads)]

    dtype = inputs[0].dtype
    exact = torch.float32 if dtype.itemsize == 2 else dtype
    for got, expected in zip(run("npu", dtype), run("cpu", exact), strict=True):
        scale = max(1.0, expected.abs().max().item()) if expected.numel() else 1.0
        torch.testing.assert_close(
            got, expected, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype] * scale, equal_nan=True
        )


def equal_on_cpu(function: Callable[..., Any], *tensors: torch.Tensor, **tolerance: float) -> None:
    """Checks that results for npu tensors are on npu and match the CPU's in value and dtype."""
    got, expected = function(*(t.npu() for t in tensors)), function(*tensors)
    if isinstance(expected, torch.Tensor):
        got, expected = [got], [expected]
    for g, e in zip(got, expected, strict=True):
        assert g.device.type == "npu"
        torch.testing.assert_close(g.cpu(), e, equal_nan=True, **tolerance)


def both(function: Callable[[str], torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    """The function's results on npu and on the CPU, both as CPU tensors."""
    return function("npu").cpu(), function("cpu")


def make(dtype: torch.dtype, *shape: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return (
        (torch.randn(shape, generator=generator, dtype=torch.float64) * 2)
        .to(dtype)
        .requires_grad_()
    )
