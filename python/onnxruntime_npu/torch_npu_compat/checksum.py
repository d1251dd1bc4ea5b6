"""A check of finished matmuls for faults of the hardware: ``matmul_checksum``."""

from __future__ import annotations

import math
from typing import Any

import torch

from ..errors import ArgumentError

# Half the distance of two bfloat16, relative, and how many of such errors pass unsuspected.
_ROUNDING = 2.0**-8
_MARGIN = 5
# Rows whose largest value is so many times their mean have few values that round at all.
_UNEVEN = 5
_TINY = 5e-20


@torch.no_grad()
def matmul_checksum(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
    """Return whether ``c`` is not the product of ``a`` and ``b``: a bool scalar on the device.

    The sums of c's rows are compared with a times the sums of b's rows, in float32, and may differ
    by what rounding c to bfloat16 explains. If some differ by more, c is computed anew, in place,
    and the result is True if that has changed the mean magnitude of a row.

    Args:
        a: bfloat16 [.., M, K] on an npu.
        b: bfloat16 [.., K, N] on an npu.
        c: bfloat16 [.., M, N] on an npu, their product as it was computed.

    Raises:
        TypeError: an argument is not a bfloat16 tensor on an npu.
        ArgumentError: the shapes are not those of a product.
    """
    for name, x in (("a", a), ("b", b), ("c", c)):
        if not (isinstance(x, torch.Tensor) and x.device.type == "npu"):
            raise TypeError(f"[matmul_checksum] expected {name} on an npu, got {_described(x)}")
        if x.dtype != torch.bfloat16:
            raise TypeError(f"[matmul_checksum] expected {name} of bfloat16, got {x.dtype}")
    if not _fit(a, b, c):
        raise ArgumentError(
            "[matmul_checksum] expected a [.., M, K], b [.., K, N] and c [.., M, N], got "
            f"{list(a.shape)}, {list(b.shape)} and {list(c.shape)}"
        )
    if c.numel() == 0:
        return torch.zeros((), dtype=torch.bool, device=c.device)
    of_b = b.sum(-1, keepdim=True, dtype=torch.float32)
    expected = torch.matmul(a.float(), of_b).squeeze(-1)
    error = (c.sum(-1, dtype=torch.float32) - expected).abs()
    largest, mean = c.abs().amax(-1), c.abs().mean(-1)
    n = b.shape[-1]
    if (largest / mean).amin() > _UNEVEN:
        bound = largest * _ROUNDING * math.sqrt(n)
    else:
        bound = mean * _ROUNDING * n
    if not (error - _MARGIN * bound > _TINY).any():
        return torch.zeros((), dtype=torch.bool, device=c.device)
    torch.matmul(a, b, out=c)
    return (mean != c.abs().mean(-1)).any()


def _fit(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> bool:
    if min(a.dim(), b.dim()) < 2 or a.shape[-1] != b.shape[-2]:
        return False
    try:
        batch = torch.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    except RuntimeError:
        return False
    return c.shape == (*batch, a.shape[-2], b.shape[-1])


def _described(x: Any) -> str:
    return f"a tensor on {x.device}" if isinstance(x, torch.Tensor) else f"a {type(x).__name__}"
