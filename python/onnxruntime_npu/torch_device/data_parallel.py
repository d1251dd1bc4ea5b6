"""Copies among the devices of one process, which ``torch.nn.DataParallel`` makes.

torch calls them in ``torch._C``, where only its build for CUDA has them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

_CPU = -1


def register(device_type: str) -> None:
    """Add the functions for devices of this type, unless torch has its own."""
    import torch

    def on(index: int | None) -> torch.device:
        if index is None:
            index = torch.accelerator.current_device_index()
        return torch.device("cpu") if index == _CPU else torch.device(device_type, index)

    def broadcast(tensor: torch.Tensor, devices: Sequence[int]) -> list[torch.Tensor]:
        """Return the tensor on each device, itself on its own."""
        return [tensor.to(on(index), non_blocking=True) for index in devices]

    def broadcast_out(tensor: torch.Tensor, out: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        """Copy the tensor to each of ``out``."""
        _check_devices("broadcast", "out tensors", out, device_type)
        for copy in out:
            _check_shape("broadcast", copy, tensor.shape)
            copy.copy_(tensor, non_blocking=True)
        return out

    def broadcast_coalesced(
        tensors: Sequence[torch.Tensor], devices: Sequence[int], _buffer_size: int
    ) -> list[list[torch.Tensor]]:
        """Return the tensors on each device: one list for each."""
        return [[x.to(on(index), non_blocking=True) for x in tensors] for index in devices]

    def scatter(
        tensor: torch.Tensor,
        devices: Sequence[int],
        chunk_sizes: Sequence[int] | None,
        dim: int,
        streams: Sequence[Any] | None,
    ) -> list[torch.Tensor]:
        """Return a part of the tensor on each device, copied on its stream if there are streams."""
        if not devices:
            raise RuntimeError("[scatter] expected devices, got none: pass indices such as [0, 1]")
        if chunk_sizes is None:
            chunks = tensor.chunk(len(devices), dim)
        else:
            chunks = tensor.split(list(chunk_sizes), dim)
            if len(chunks) != len(devices):
                raise RuntimeError(
                    f"[scatter] expected a size for each of {len(devices)} devices, got "
                    f"{len(chunks)}"
                )
        parts = []
        for place, (chunk, index) in enumerate(zip(chunks, devices, strict=False)):
            with _stream_of(streams, place):
                parts.append(chunk.to(on(index), non_blocking=True))
        return parts

    def scatter_out(
        tensor: torch.Tensor, out: Sequence[torch.Tensor], dim: int, streams: Sequence[Any] | None
    ) -> Sequence[torch.Tensor]:
        """Copy a part of the tensor, of the size along ``dim``, to each of ``out``."""
        _check_devices("scatter", "out tensors", out, device_type)
        sizes = [part.size(dim) for part in out]
        _check_sizes("scatter", sizes, tensor.size(dim), dim)
        for place, part in enumerate(tensor.split(sizes, dim)):
            _check_shape("scatter", out[place], part.shape)
            with _stream_of(streams, place):
                out[place].copy_(part, non_blocking=True)
        return out

    def gather(tensors: Sequence[torch.Tensor], dim: int, destination: int | None) -> torch.Tensor:
        """Return the tensors on one device, -1 for the CPU, behind each other along ``dim``."""
        _check_devices("gather", "tensors", tensors, device_type)
        # The CPU reads what it gets: it waits for the copies.
        waits = on(destination).type == "cpu"
        moved = [tensor.to(on(destination), non_blocking=not waits) for tensor in tensors]
        return torch.cat(moved, dim)

    def gather_out(tensors: Sequence[torch.Tensor], out: torch.Tensor, dim: int) -> torch.Tensor:
        """Copy the tensors to ``out``, behind each other along ``dim``."""
        _check_devices("gather", "tensors", tensors, device_type)
        sizes = [tensor.size(dim) for tensor in tensors]
        _check_sizes("gather", sizes, out.size(dim), dim)
        for part, tensor in zip(out.split(sizes, dim), tensors, strict=True):
            _check_shape("gather", part, tensor.shape)
            part.copy_(tensor)
        return out

    functions = (
        *(broadcast, broadcast_out, broadcast_coalesced),
        *(scatter, scatter_out, gather, gather_out),
    )
    for function in functions:
        if not hasattr(torch._C, f"_{function.__name__}"):
            setattr(torch._C, f"_{function.__name__}", function)


def _stream_of(streams: Sequence[Any] | None, place: int) -> Any:
    stream = streams[place] if streams else None
    return contextlib.nullcontext() if stream is None else stream


def _check_devices(op: str, what: str, tensors: Sequence[torch.Tensor], device_type: str) -> None:
    if not tensors:
        raise RuntimeError(f"[{op}] expected {what}, got none: pass at least one")
    for place, tensor in enumerate(tensors):
        if tensor.device.type != device_type:
            raise RuntimeError(
                f"[{op}] expected {what} on {device_type} devices, got one on {tensor.device} at "
                f"index {place}: create or move it there, as with .to('{device_type}:{place}')"
            )


def _check_sizes(op: str, sizes: Sequence[int], whole: int, dim: int) -> None:
    if sum(sizes) != whole:
        raise RuntimeError(
            f"[{op}] expected parts that together have the size {whole} of the whole along "
            f"dimension {dim}, got parts of {', '.join(map(str, sizes))}: pass out with these sizes"
        )


def _check_shape(op: str, out: torch.Tensor, shape: torch.Size) -> None:
    if out.shape != shape:
        raise RuntimeError(
            f"[{op}] expected an out tensor of shape {list(shape)}, got {list(out.shape)}"
        )
