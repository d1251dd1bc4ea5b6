"""Marks that streams leave on the memory of tensors: ``erase_stream``."""

from __future__ import annotations

import warnings

import torch

from .. import _C, npu

_LIVE = 3  # what classify_address says of a block that is in use


def erase_stream(tensor: torch.Tensor, stream: npu.Stream) -> None:
    """Withdraw the mark that ``tensor.record_stream(stream)`` left on the tensor's memory.

    Memory with a mark is not reused before the work that the stream has when it is freed. Without
    it, the caller answers for the order: call this only after a stream that uses the memory next
    waits for ``stream``. Nothing happens to a tensor without memory or without such a mark; memory
    that is not the caching allocator's is left alone with a warning.

    Raises:
        TypeError: ``tensor`` is no tensor on an npu, or ``stream`` is no ``torch.npu.Stream``.
    """
    if not isinstance(tensor, torch.Tensor) or tensor.device.type != "npu":
        raise TypeError(f"[erase_stream] expected a tensor on an npu, got {_described(tensor)}")
    if not isinstance(stream, npu.Stream):
        raise TypeError(f"[erase_stream] expected a torch.npu.Stream, got {type(stream).__name__}")
    address, index = tensor.untyped_storage().data_ptr(), tensor.device.index
    if not address:
        return
    if _C.classify_address(index, address) != _LIVE:
        warnings.warn(
            "[erase_stream] the tensor's memory is not the caching allocator's: nothing to erase",
            stacklevel=2,
        )
        return
    _C.erase_stream(index, address, stream.npu_stream)


def _described(value: object) -> str:
    if isinstance(value, torch.Tensor):
        return f"a tensor on {value.device}"
    return type(value).__name__
