"""Finds tensors that two streams use without an order between them.

It watches operators of torch on npu tensors and the events and waits of this package. torch's own
bookkeeping of accesses and streams (torch.cuda._sanitizer) judges what it sees.
"""

from __future__ import annotations

from typing import Any

from .. import _C
from . import devices, streams
from ._lazy import init

__all__ = ["enable_npu_sanitizer"]

_sanitizer: Any = None


def _stream_id(stream: Any) -> int:
    """torch's number of a stream: 0 for the default one."""
    default = _C.default_stream(stream.device_index)
    return 0 if stream.npu_stream == default.handle else stream.npu_stream


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
        lambda e, s=None: handler._handle_event_record(id(e), _stream_id(current(s))),
    )
    report(
        event, "wait", lambda e, s=None: handler._handle_event_wait(id(e), _stream_id(current(s)))
    )
    report(event, "synchronize", lambda e: handler._handle_event_synchronization(id(e)))
    report(
        streams.Stream,
        "synchronize",
        lambda s: handler._handle_stream_synchronization(_stream_id(s)),
    )

    from .. import npu

    def synchronize(device: Any = None) -> None:
        devices.synchronize(device)
        handler._handle_device_synchronization()

    npu.synchronize = synchronize


def _make() -> Any:
    import torch
    from torch.cuda import _sanitizer as accesses
    from torch.utils import _pytree as pytree
    from torch.utils._python_dispatch import TorchDispatchMode

    handler = accesses.EventHandler()
    known_streams = {0}

    class Arguments(accesses.ArgumentHandler):
        """Takes npu tensors for what torch's takes CUDA tensors for."""

        def _handle_argument(
            self,
            value: Any,
            is_write: bool,
            metadata_only: bool,
            name: str | None = None,
            is_output: bool = False,
        ) -> None:
            if not isinstance(value, torch.Tensor) or value.device.type != "npu":
                return
            address = value.data_ptr() or id(value)
            if is_write:
                self.dataptrs_written.add(address)
            elif not metadata_only:
                self.dataptrs_read.add(address)
            names = self.tensor_aliases.setdefault(address, [])
            if name is not None:
                names.append(name)
            if is_output:
                self.outputs.add(address)

    class Mode(TorchDispatchMode):
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            kwargs = kwargs or {}
            if func is torch.ops.aten.record_stream.default:
                return func(*args, **kwargs)
            name = func._schema.name
            is_factory = bool(accesses.FACTORY_FUNCTION_REGEX.match(name))
            arguments = Arguments()
            arguments.parse_inputs(func._schema, args, kwargs, is_factory=is_factory)
            before = set(arguments.tensor_aliases)
            outputs = func(*args, **kwargs)
            # Memory that no argument had is the allocator's to order: a new tensor begins.
            for value in pytree.tree_leaves(outputs):
                if isinstance(value, torch.Tensor) and value.device.type == "npu":
                    address = value.data_ptr() or id(value)
                    if address not in before:
                        handler._handle_memory_allocation(address)
            arguments.parse_outputs(func._schema, outputs, is_factory=is_factory)
            stream = _stream_id(streams.current_stream())
            if stream not in known_streams:
                known_streams.add(stream)
                handler._handle_stream_creation(stream)
            errors = handler._handle_kernel_launch(
                stream,
                arguments.dataptrs_read - arguments.dataptrs_written,
                arguments.dataptrs_written,
                arguments.outputs,
                func._schema,
                arguments.tensor_aliases,
            )
            if errors:
                raise accesses.CUDASanitizerErrors(errors)
            return outputs

    _watch_synchronisation(handler)
    return Mode()


def enable_npu_sanitizer() -> None:
    """Watch this thread's operators from now on; a race raises at the operator that completes it.

    A second call does nothing more.

    Raises:
        RuntimeError: from the offending operator, with both accesses and their stacks.
    """
    global _sanitizer
    init()
    if _sanitizer is None:
        _sanitizer = _make()
        _sanitizer.__enter__()
