"""Finds unordered accesses of two streams to one tensor.

It observes torch operators on npu tensors and the events and waits of this package. torch's own
record of accesses and streams (torch.cuda._sanitizer) detects the races.
"""

from __future__ import annotations

import traceback
from typing import Any

from . import devices, streams
from ._lazy import init
from ._memory_reuse import MemoryReuse

__all__ = ["enable_npu_sanitizer"]

_sanitizer: Any = None


def _watch_synchronisation(handler: Any) -> None:
    """Let events, streams and devices of this package report to ``handler``."""

    def report(owner: Any, name: str, tell: Any) -> None:
        original = getattr(owner, name)

        def call(self: Any, *args: Any) -> Any:
            result = original(self, *args)
            tell(self, *args)
            return result

        setattr(owner, name, call)

    def current(stream: Any) -> Any:
        return streams.current_stream() if stream is None else stream

    event = streams.Event
    report(
        event,
        "record",
        lambda e, s=None: handler._handle_event_record(id(e), current(s).stream_id),
    )
    report(event, "wait", lambda e, s=None: handler._handle_event_wait(id(e), current(s).stream_id))
    report(event, "synchronize", lambda e: handler._handle_event_synchronization(id(e)))
    report(
        streams.Stream,
        "synchronize",
        lambda s: handler._handle_stream_synchronization(s.stream_id),
    )

    devices.after_synchronize.append(handler._handle_device_synchronization)


def _extent(tensor: Any) -> int:
    """Bytes from a tensor's first element to the end of its last."""
    last = sum(
        (size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True)
    )
    return (last + 1) * tensor.element_size()


def _make() -> Any:
    import torch
    from torch.cuda import _sanitizer as accesses
    from torch.utils import _pytree as pytree
    from torch.utils._python_dispatch import TorchDispatchMode

    handler = accesses.EventHandler()
    memory = MemoryReuse(handler)
    known_streams = {0}

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

    class Arguments(accesses.ArgumentHandler):
        """Handles npu tensors as torch's class handles CUDA tensors."""

        def _handle_argument(
            self,
            value: Any,
            is_write: bool,
            metadata_only: bool,
            name: str | None = None,
            is_output: bool = False,
        ) -> None:
            if not is_on_npu(value) or value.numel() == 0:
                return
            address = value.data_ptr()
            if is_write:
                self.dataptrs_written.add(address)
            elif not metadata_only:
                self.dataptrs_read.add(address)
            if is_write or not metadata_only:
                memory.used(address, address + _extent(value), value.untyped_storage().data_ptr())
            names = self.tensor_aliases.setdefault(address, [])
            if name is not None:
                names.append(name)
            if is_output:
                self.outputs.add(address)

    def is_on_npu(value: Any) -> bool:
        return isinstance(value, torch.Tensor) and value.device.type == "npu"

    def storages(values: Any) -> dict[int, int]:
        """Start and end addresses of the npu storages of some values."""
        found = {}
        for value in pytree.tree_leaves(values):
            storage = value.untyped_storage() if isinstance(value, torch.Tensor) else value
            if isinstance(storage, torch.UntypedStorage) and storage.device.type == "npu":
                found[storage.data_ptr()] = storage.data_ptr() + storage.nbytes()
        return found

    def begin_tensors(
        func: Any, before: dict[int, int], outputs: Any, stream: int, arguments: Arguments
    ) -> list[Any]:
        """Find races on result memory that is not an argument's: it may be reused memory."""
        errors = []
        for begin, end in storages(outputs).items():
            if begin in before or begin == end:
                continue
            stack = traceback.extract_stack()
            for address, access in memory.begin(begin, end, stream):
                write = accesses.AccessType.WRITE
                made = accesses.Access(
                    write, handler.seq_num + 1, stream, func._schema, [], True, stack
                )
                errors.append(Reused(address, None, made, access))
            handler._handle_memory_allocation(begin)
        return errors

    def waits(args: Any, kwargs: Any, outputs: Any) -> bool:
        """Whether the host waited for the operator because a result was copied to it."""
        given = pytree.tree_leaves((args, kwargs))
        to_host = not any(map(is_on_npu, pytree.tree_leaves(outputs)))
        return to_host and any(map(is_on_npu, given)) and not kwargs.get("non_blocking", False)

    class Mode(TorchDispatchMode):
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            kwargs = kwargs or {}
            if func is torch.ops.aten.record_stream.default:
                for begin, end in storages(args[0]).items():
                    memory.recorded(begin, end, args[1].stream_id)
                return func(*args, **kwargs)
            name = func._schema.name
            is_factory = bool(accesses.FACTORY_FUNCTION_REGEX.match(name))
            arguments = Arguments()
            arguments.parse_inputs(func._schema, args, kwargs, is_factory=is_factory)
            before = storages((args, kwargs))
            outputs = func(*args, **kwargs)
            stream = streams.current_stream().stream_id
            if stream not in known_streams:
                known_streams.add(stream)
                handler._handle_stream_creation(stream)
            errors = begin_tensors(func, before, outputs, stream, arguments)
            arguments.parse_outputs(func._schema, outputs, is_factory=is_factory)
            errors += handler._handle_kernel_launch(
                stream,
                arguments.dataptrs_read - arguments.dataptrs_written,
                arguments.dataptrs_written,
                arguments.outputs,
                func._schema,
                arguments.tensor_aliases,
            )
            if waits(args, kwargs, outputs):
                handler._handle_stream_synchronization(stream)
            if errors:
                raise NPUSanitizerErrors(errors)
            return outputs

    _watch_synchronisation(handler)
    return Mode()


def enable_npu_sanitizer() -> None:
    """Check this thread's operators from now on; the operator that completes a race raises.

    A race is an unordered access of two streams to a tensor, or the reuse of freed memory for a
    tensor while another stream may still access it. Repeated calls do nothing.

    Raises:
        torch.cuda._sanitizer.CUDASanitizerErrors: from the offending operator; ``errors`` has both
            accesses with their stacks.
    """
    global _sanitizer
    init()
    if _sanitizer is None:
        _sanitizer = _make()
        _sanitizer.__enter__()
