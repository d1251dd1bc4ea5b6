"""Checks that accesses of several streams to a tensor are ordered, as operators run.

Imported with torch; ``_sanitizer`` is the way to it.
"""

from __future__ import annotations

import traceback
from typing import Any

import torch
from torch.cuda import _sanitizer as accesses
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from . import streams
from ._memory_reuse import MemoryReuse

__all__ = ["AccessOrder"]


class Reused(accesses.UnsynchronizedAccessError):
    """A new tensor reuses freed memory that another stream may still access."""

    def __str__(self) -> str:
        return (
            f"{super().__str__()}\nThe previous access is to a tensor that was freed and whose "
            "memory began another one. Before it is freed, call tensor.record_stream(stream), "
            "or let the stream it was made on wait for the other one (wait_stream)."
        )


class NPUSanitizerErrors(accesses.CUDASanitizerErrors):
    """Lists the errors found, not only their number."""

    def __str__(self) -> str:
        return "\n".join([super().__str__(), *map(str, self.errors)])


class _Arguments(accesses.ArgumentHandler):
    """Handles npu tensors as torch's class handles CUDA tensors."""

    def __init__(self, memory: MemoryReuse) -> None:
        super().__init__()
        self._memory = memory

    def _handle_argument(
        self,
        value: Any,
        is_write: bool,
        metadata_only: bool,
        name: str | None = None,
        is_output: bool = False,
    ) -> None:
        if not _is_on_npu(value) or value.numel() == 0:
            return
        address = value.data_ptr()
        if is_write:
            self.dataptrs_written.add(address)
        elif not metadata_only:
            self.dataptrs_read.add(address)
        if is_write or not metadata_only:
            block = value.untyped_storage().data_ptr()
            self._memory.used(address, address + _extent(value), block)
        names = self.tensor_aliases.setdefault(address, [])
        if name is not None:
            names.append(name)
        if is_output:
            self.outputs.add(address)


class AccessOrder(TorchDispatchMode):
    """Reports each operator to torch's record of accesses; raises at one that completes a race.

    Args:
        handler: the record, ``torch.cuda._sanitizer.EventHandler``.
    """

    def __init__(self, handler: Any) -> None:
        super().__init__()
        self._handler = handler
        self._memory = MemoryReuse(handler)
        self._known_streams = {0}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is torch.ops.aten.record_stream.default:
            for begin, end in _storages(args[0]).items():
                self._memory.recorded(begin, end, args[1].stream_id)
            return func(*args, **kwargs)
        is_factory = bool(accesses.FACTORY_FUNCTION_REGEX.match(func._schema.name))
        arguments = _Arguments(self._memory)
        arguments.parse_inputs(func._schema, args, kwargs, is_factory=is_factory)
        before = _storages((args, kwargs))
        outputs = func(*args, **kwargs)
        stream = streams.current_stream().stream_id
        if stream not in self._known_streams:
            self._known_streams.add(stream)
            self._handler._handle_stream_creation(stream)
        errors = self._begin_tensors(func, before, outputs, stream)
        arguments.parse_outputs(func._schema, outputs, is_factory=is_factory)
        errors += self._handler._handle_kernel_launch(
            stream,
            arguments.dataptrs_read - arguments.dataptrs_written,
            arguments.dataptrs_written,
            arguments.outputs,
            func._schema,
            arguments.tensor_aliases,
        )
        if _waits(args, kwargs, outputs):
            self._handler._handle_stream_synchronization(stream)
        if errors:
            raise NPUSanitizerErrors(errors)
        return outputs

    def _begin_tensors(
        self, func: Any, before: dict[int, int], outputs: Any, stream: int
    ) -> list[Any]:
        """Find races on result memory that is not an argument's: it may be reused memory."""
        errors = []
        for begin, end in _storages(outputs).items():
            if begin in before or begin == end:
                continue
            stack = traceback.extract_stack()
            for address, access in self._memory.begin(begin, end, stream):
                write = accesses.AccessType.WRITE
                number = self._handler.seq_num + 1
                made = accesses.Access(write, number, stream, func._schema, [], True, stack)
                errors.append(Reused(address, None, made, access))
            self._handler._handle_memory_allocation(begin)
        return errors


def _is_on_npu(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.device.type == "npu"


def _storages(values: Any) -> dict[int, int]:
    """Start and end addresses of the npu storages of some values."""
    found = {}
    for value in pytree.tree_leaves(values):
        storage = value.untyped_storage() if isinstance(value, torch.Tensor) else value
        if isinstance(storage, torch.UntypedStorage) and storage.device.type == "npu":
            found[storage.data_ptr()] = storage.data_ptr() + storage.nbytes()
    return found


def _extent(tensor: torch.Tensor) -> int:
    """Bytes from a tensor's first element to the end of its last."""
    last = sum(
        (size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True)
    )
    return (last + 1) * tensor.element_size()


def _waits(args: Any, kwargs: Any, outputs: Any) -> bool:
    """Whether the host waited for the operator because a result was copied to it."""
    given = pytree.tree_leaves((args, kwargs))
    to_host = not any(map(_is_on_npu, pytree.tree_leaves(outputs)))
    return to_host and any(map(_is_on_npu, given)) and not kwargs.get("non_blocking", False)
