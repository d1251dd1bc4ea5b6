"""Streams and events."""

from __future__ import annotations

from typing import Any

from .. import _C
from ._arguments import Entered, checked_index, stream_handle
from ._lazy import init

__all__ = [
    "Event",
    "ExternalEvent",
    "ExternalStream",
    "Stream",
    "StreamContext",
    "SyncLaunchStream",
    "current_stream",
    "default_stream",
    "set_stream",
    "stream",
]

# Replaced by adopt_torch().
TORCH_CLASSES = ("Event", "ExternalStream", "Stream", "SyncLaunchStream")


class Stream:
    """A queue of work that runs in order, concurrently with other streams.

    Args:
        device: whose stream; default, or a negative number: the current device.
        priority: accepted and ignored: the host NPU's streams share its cores evenly.
        stream_id: with ``device_index``: an existing stream.
        device_index: see ``stream_id``.
        device_type: accepted.
        stream_ptr: handle of an existing stream, the value of ``npu_stream``.
        is_sync_launch: whether launches return when their work is done.

    Raises:
        RuntimeError: there is no such stream or device.
    """

    def __init__(
        self,
        device: Any = None,
        priority: int = 0,
        *,
        stream_id: int | None = None,
        device_index: int | None = None,
        device_type: int | None = None,
        stream_ptr: int | None = None,
        is_sync_launch: bool = False,
    ) -> None:
        self._stream: Any
        if stream_id is not None and device_index is not None:
            default = _C.default_stream(device_index)
            found = default if stream_id == 0 else _C.find_stream_by_id(device_index, stream_id)
            if found is None:
                raise RuntimeError(f"NPU {device_index} has no live stream of id {stream_id}")
            self._stream = found
            return
        negative = isinstance(device, (int, float)) and device < 0
        index = checked_index(None if negative else device)
        if stream_ptr is not None:
            self._stream = _C.find_stream(index, stream_handle(stream_ptr))
        elif is_sync_launch:
            self._stream = _C.sync_launch_stream(index)
        else:
            self._stream = _C.pool_stream(index)

    @property
    def npu_stream(self) -> int:
        """The stream's handle: the address of the runtime's npu::Stream."""
        return self._stream.handle

    @property
    def stream_id(self) -> int:
        """The stream's id, unique in the process; 0 for default streams, as in torch."""
        is_default = self.npu_stream == _C.default_stream(self.device_index).handle
        return 0 if is_default else self._stream.id

    @property
    def device_index(self) -> int:
        """Index of the stream's device."""
        return self._stream.device_index

    @property
    def device_type(self) -> int:
        """torch's number of the PrivateUse1 device type."""
        return 20

    @property
    def device(self) -> Any:
        """The stream's device: a ``torch.device`` where torch knows npu, else a str."""
        return _device_object(self.device_index)

    @property
    def priority(self) -> int:
        """Not supported.

        Raises:
            RuntimeError: always, as torch_npu does.
        """
        raise RuntimeError("NPU does not support Stream.priority: streams have no priorities")

    @staticmethod
    def priority_range() -> tuple[int, int]:
        """Not supported.

        Raises:
            RuntimeError: always, as torch_npu does.
        """
        raise RuntimeError("NPU does not support Stream.priority_range: streams have no priorities")

    def wait_event(self, event: Event) -> None:
        """Make work that is queued from now on wait for the event."""
        event.wait(self)

    def wait_stream(self, stream: Stream) -> None:
        """Make work that is queued from now on wait for all that is queued on another stream."""
        self.wait_event(stream.record_event())

    def record_event(self, event: Event | None = None) -> Event:
        """Record an event, a new one by default, and return it."""
        event = Event() if event is None else event
        event.record(self)
        return event

    def query(self) -> bool:
        """Return whether all work is done."""
        return self._stream.query()

    def synchronize(self) -> None:
        """Wait until all work is done.

        Raises:
            RuntimeError: work failed; the message names the operator.
        """
        self._stream.synchronize()

    def set_data_preprocess_stream(self, is_data_preprocess_stream: bool = False) -> None:
        """Mark a stream for data preprocessing; the host NPU schedules all streams alike."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _PlainStream) and (self.npu_stream, self.device_index) == (
            other.npu_stream,
            other.device_index,
        )

    def __hash__(self) -> int:
        return hash((self.npu_stream, self.device_index))

    def __repr__(self) -> str:
        return (
            f"<torch_npu.npu.Stream device=npu:{self.device_index} npu_stream={self.npu_stream:#x}>"
        )


_PlainStream = Stream  # Stream until torch is imported: see adopt_torch


class ExternalStream(Stream):
    """A stream created elsewhere, such as one of an onnxruntime session.

    Args:
        stream_ptr: its handle; the creator of the stream keeps it alive.
        device: whose stream; default the current device.

    Raises:
        RuntimeError: no live stream has this handle.
    """

    def __init__(self, stream_ptr: int, device: Any = None, **kwargs: Any) -> None:
        super().__init__(device, stream_ptr=stream_ptr, **kwargs)


class SyncLaunchStream(Stream):
    """A stream whose launches return when their work is done; one of four per device.

    Args:
        device: whose stream; default, or a negative number: the current device.
        priority: accepted and ignored.
    """

    def __init__(self, device: Any = None, priority: int = 0, **kwargs: Any) -> None:
        super().__init__(device, priority, is_sync_launch=True, **kwargs)


def _device_object(index: int) -> Any:
    import sys

    torch = sys.modules.get("torch")
    if torch is not None:
        try:
            return torch.device("npu", index)
        except RuntimeError:  # the torch bridge is not loaded
            pass
    return f"npu:{index}"


class Event:
    """A point in a stream's work, to wait for or to measure time with.

    Args:
        enable_timing: whether elapsed_time() and recorded_time() work.
        blocking: accepted, no effect.
        interprocess: not supported: an event orders accesses to memory, and memory of the host NPU
            belongs to one process.

    Raises:
        RuntimeError: ``interprocess`` is set.
    """

    def __init__(
        self, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False
    ) -> None:
        if interprocess:
            raise RuntimeError(
                "[Event] expected interprocess=False, got True: events and memory of the host NPU "
                "belong to one process; use multiprocessing's events between processes"
            )
        self._timing = enable_timing
        self._event: Any = None  # made at the first record
        self._device: int | None = None

    @property
    def npu_event(self) -> int:
        """The event's handle; 0 before the first record."""
        return 0 if self._event is None else self._event.handle

    @property
    def device(self) -> Any:
        """The device that it was recorded on; None before the first record."""
        return None if self._device is None else _device_object(self._device)

    def record(self, stream: Stream | None = None) -> None:
        """Record the work that is queued on a stream, by default the current one.

        Raises:
            RuntimeError: it was recorded on another device before.
        """
        stream = current_stream() if stream is None else _own(stream)
        if self._device not in (None, stream.device_index):
            raise RuntimeError(
                f"Event device npu:{self._device} does not match recording stream's device "
                f"npu:{stream.device_index}; make one event per device"
            )
        if self._event is None:
            self._event = _C.Event(self._timing)
            self._device = stream.device_index
        self._event.record(stream._stream)

    def wait(self, stream: Stream | None = None) -> None:
        """Make later work of a stream (default: current) wait; no-op if never recorded."""
        if self._event is not None:
            (current_stream() if stream is None else _own(stream))._stream.wait(self._event)

    def query(self) -> bool:
        """Return whether the recorded work is done; True if never recorded."""
        return self._event is None or self._event.query()

    def synchronize(self) -> None:
        """Wait until the recorded work is done; no-op if never recorded."""
        if self._event is not None:
            self._event.synchronize()

    def elapsed_time(self, end_event: Event) -> float:
        """Return the milliseconds from this event to ``end_event``, after waiting for both.

        Raises:
            RuntimeError: one was never recorded, or was made without enable_timing, or they were
                recorded on two devices, whose clocks are not comparable.
        """
        if self._event is None or end_event._event is None:
            raise RuntimeError("Both events must be recorded before calculating elapsed time.")
        if self._device != end_event._device:
            raise RuntimeError(
                f"[Event.elapsed_time] expected two events of one device, got npu:{self._device} "
                f"and npu:{end_event._device}; record both on one"
            )
        self.synchronize()
        end_event.synchronize()
        return self._event.elapsed_ms(end_event._event)

    def recorded_time(self) -> int:
        """Return the device's clock at the record, in microseconds, after waiting for it.

        Raises:
            RuntimeError: it was never recorded, or was made without enable_timing.
        """
        if self._event is None:
            raise RuntimeError("Event must be recorded before getting recorded timestamp.")
        if not self._timing:
            raise RuntimeError("recorded_time needs an event with enable_timing=True")
        self.synchronize()
        return self._event.timestamp_ns() // 1000

    def ipc_handle(self) -> bytes:
        """Not supported: events of the host NPU belong to their process.

        Raises:
            RuntimeError: always.
        """
        raise RuntimeError("events of the host NPU cannot be shared between processes")

    @classmethod
    def from_ipc_handle(cls, device: Any, handle: bytes) -> Event:
        """Not supported: see ipc_handle.

        Raises:
            RuntimeError: always.
        """
        raise RuntimeError(f"no event has the handle {handle!r}: host NPU events are not shared")

    def __repr__(self) -> str:
        if self._event is None:
            return "<torch_npu.npu.Event uninitialized>"
        return f"<torch_npu.npu.Event {self.npu_event:#x}>"


class ExternalEvent:
    """An event whose record and wait are work of their streams, also inside graph captures.

    One record pairs with one wait, which clears the record. The wait may be queued first, but not
    on the record's stream, where it would deadlock.
    Inside a capture both become nodes, which every replay runs; their counterparts are outside.
    """

    def __init__(self) -> None:
        init()
        self._event = _C.ExternalEvent()
        self._state = ""  # after the last call: "recorded", "waiting" for a record, "paired"
        self._captured = False

    def record(self, stream: Stream | None = None) -> None:
        """Record the work queued so far on a stream, by default the current one.

        Raises:
            RuntimeError: the last record has no wait yet.
        """
        chosen = self._chosen(stream)
        if not self._captured:
            if self._state == "recorded":
                raise RuntimeError(
                    "External event: it was recorded before and has not been waited for; wait or "
                    "reset"
                )
            self._state = "" if self._state == "waiting" else "recorded"
        self._event.record(chosen)

    def wait(self, stream: Stream | None = None) -> None:
        """Make a stream's later work, by default the current one's, wait for the record.

        Raises:
            RuntimeError: the last record already has its wait, or an earlier wait has no record.
        """
        chosen = self._chosen(stream)
        if not self._captured:
            if self._state in ("paired", "waiting"):
                raise RuntimeError(
                    "External event: A single record operation cannot be associated with multiple "
                    "wait operations."
                )
            self._state = "paired" if self._state == "recorded" else "waiting"
        self._event.wait(chosen)

    def reset(self, stream: Stream | None = None) -> None:
        """Clear the record, in the order of a stream, by default the current one.

        A wait that was queued first keeps waiting for its record.
        """
        chosen = self._chosen(stream)
        if self._captured:
            self._event.reset(chosen)
        elif self._state == "recorded":
            # Like its wait: an earlier pair, whose wait has not run yet, keeps its own record.
            self._event.wait(chosen)
        if self._state != "waiting":
            self._state = ""

    def _chosen(self, stream: Stream | None) -> Any:
        chosen = (current_stream() if stream is None else stream)._stream
        self._captured |= _C.is_capturing(chosen)
        return chosen

    def __repr__(self) -> str:
        return f"<torch_npu.npu.ExternalEvent {self._event.handle:#x}>"


def _public(stream: Any) -> Stream:
    return Stream(stream.device_index, stream_ptr=stream.handle)


def _own(stream: Any) -> Stream:
    """Return a stream that torch named, such as torch.accelerator's, as one of this package."""
    if isinstance(stream, _PlainStream):
        return stream
    return Stream(stream_id=stream.stream_id, device_index=stream.device_index)


def _as_torch_class(plain: type[Stream], torch_stream: type) -> type[Stream]:
    """A class that is both ``plain`` and the torch class."""
    import torch

    def new(cls: type, *args: Any, **kwargs: Any) -> Any:
        found = plain(*args, **kwargs)
        numbers = {"stream_id": found.stream_id, "device_index": found.device_index}
        self: Any = torch.Stream.__new__(cls, **numbers, device_type=found.device_type)
        self._stream = found._stream
        return self

    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        """Do nothing: __new__ initialised the object, and torch's ids cannot change."""

    members = {"__new__": new, "__init__": init, "__doc__": plain.__doc__}
    return type(plain.__name__, (plain, torch_stream), {**members, "__module__": __name__})


def _as_torch_event(plain: type[Event]) -> type[Event]:
    """A class that is also torch's, whose streams wait for the event of torch within it."""
    import torch

    def new(cls: type, enable_timing: bool = False, *_: Any, **__: Any) -> Any:
        return torch.Event.__new__(cls, _device_object(0))  # type: ignore[call-arg]

    def record(self: Any, stream: Any = None) -> None:
        stream = current_stream() if stream is None else _own(stream)
        plain.record(self, stream)
        torch.Event.record(self, stream)

    record.__doc__ = plain.record.__doc__
    members = {"__new__": new, "record": record, "__doc__": plain.__doc__}
    return type(plain.__name__, (plain, torch.Event), {**members, "__module__": __name__})


def adopt_torch() -> None:
    """Make streams and events those of torch, too; the torch device calls it once."""
    import torch

    common = _as_torch_class(_PlainStream, torch.Stream)
    made = [common, *(_as_torch_class(c, common) for c in (ExternalStream, SyncLaunchStream))]
    for kind in made:
        globals()[kind.__name__] = kind
    globals()["Event"] = _as_torch_event(Event)


def current_stream(device: Any = None) -> Stream:
    """Return the calling thread's stream of a device, by default the current one."""
    return _public(_C.current_stream(checked_index(device)))


def default_stream(device: Any = None) -> Stream:
    """Return a device's default stream."""
    return _public(_C.default_stream(checked_index(device)))


def set_stream(stream: Stream | None) -> None:
    """Make a stream and its device current for the calling thread; None does nothing."""
    if stream is None:
        return
    init()
    _C.set_device(stream.device_index)
    _C.set_stream(stream._stream)


class StreamContext:
    """Context manager that makes a stream and its device current; None changes nothing.

    One object may be entered again within itself, and by several threads.
    """

    def __init__(self, stream: Stream | None) -> None:
        self.stream = stream
        self._entered = Entered()

    def __enter__(self) -> StreamContext:
        if self.stream is None:
            return self
        init()
        device = _C.current_device()
        here = current_stream(device)
        there = current_stream(self.stream.device_index)
        set_stream(self.stream)
        self._entered.push((device, here, there))
        return self

    def __exit__(self, *_: object) -> None:
        before = self._entered.pop()
        if before is not None:
            device, here, there = before
            _C.set_stream(there._stream)
            _C.set_stream(here._stream)
            _C.set_device(device)


def _sleep(cycles: int) -> None:
    """Enqueue a delay on the current stream, in cycles of one nanosecond.

    Raises:
        RuntimeError: ``cycles`` is not positive.
    """
    if cycles <= 0:
        raise RuntimeError(f"torch.npu._sleep(): expected positive cycles, got {cycles}")
    _C.sleep(current_stream()._stream, cycles)


def stream(stream: Stream | None) -> StreamContext:
    """Return a context manager in which ``stream`` is current; None changes nothing."""
    return StreamContext(stream)
