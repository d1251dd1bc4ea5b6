"""Tensors of npu in messages to other processes: queues, arguments and DataLoader's workers.

torch shares the memory of CPU tensors; it fails for a device that is not its own, and a queue's
thread then only prints the error while the receiver waits forever. Device memory belongs to one
process, so the receiver gets a copy.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from multiprocessing import reduction
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


def register(device_type: str) -> None:
    """Send storages of the device as copies, all others as torch does."""
    import torch
    from torch.multiprocessing.reductions import reduce_storage

    def reduce(storage: torch.UntypedStorage) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        if storage.device.type != device_type:
            return reduce_storage(storage)
        warnings.warn(
            f"another process gets a copy of tensors of {storage.device}: what one process writes, "
            "the others do not see; keep tensors that processes share on the CPU",
            stacklevel=2,
        )
        torch.get_device_module(device_type).synchronize(storage.device)  # work of every stream
        content = torch.empty(0, dtype=torch.uint8).set_(storage.cpu())
        return _rebuild, (content.numpy().tobytes(), str(storage.device))

    reduction.register(torch.UntypedStorage, reduce)


def _rebuild(content: bytes, device: str) -> torch.UntypedStorage:
    import torch

    if not content:  # a buffer may not be empty
        return torch.UntypedStorage(0, device=device)
    return torch.frombuffer(bytearray(content), dtype=torch.uint8).to(device).untyped_storage()
