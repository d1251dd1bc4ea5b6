"""npu tensors in host memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch


def empty_with_swapped_memory(
    size: Sequence[int], *, dtype: torch.dtype | None = None, device: Any = None
) -> torch.Tensor:
    """Return an uninitialised npu tensor in memory that does not count against the device's.

    Args:
        size: its shape.
        dtype: default torch's.
        device: an npu, default the current one.

    Raises:
        RuntimeError: the device is not an npu, or a dimension is negative.
    """
    from .. import torch_device

    torch_device.register()
    where = torch.device("npu" if device is None else device)
    if where.type != "npu":
        raise RuntimeError(f"[empty_with_swapped_memory] expected an npu, got {where}")
    return torch.ops.npu.empty_with_swapped_memory(list(size), dtype=dtype, device=where)
