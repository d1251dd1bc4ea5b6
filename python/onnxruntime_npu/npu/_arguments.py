"""Arguments that many functions share: a device, a stream."""

from __future__ import annotations

import threading
from typing import Any

from .. import _C
from ..is_number import is_number
from ._lazy import init

_names = {"npu", "privateuseone"}  # the device type before and after torch renames it


def accept_as_npu(device_type: str) -> None:
    """Treat devices of this type as npu devices from now on."""
    _names.add(device_type)


class Entered:
    """What a context manager restores: it may be entered again, and by several threads at once."""

    def __init__(self) -> None:
        self._stacks: dict[int, list[Any]] = {}

    def push(self, before: Any) -> None:
        """Keep what the calling thread's next exit restores."""
        self._stacks.setdefault(threading.get_ident(), []).append(before)

    def pop(self) -> Any:
        """Return what the calling thread's last entry kept; None if there is none."""
        thread = threading.get_ident()
        stack = self._stacks.get(thread)
        if not stack:
            return None
        before = stack.pop()
        if not stack:
            del self._stacks[thread]
        return before


def is_npu_device(device: Any) -> bool:
    """Return whether this is a torch.device for an NPU."""
    return getattr(device, "type", None) in _names


def device_index(device: Any = None, *, allow_none: bool = True) -> int:
    """Return the index that ``device`` names; the current device for None or ``"npu"``.

    Args:
        device: None, an int, a str such as ``"npu:1"``, or a ``torch.device``.

    Raises:
        ValueError: it is a device of another type, or not a device.
    """
    if device is None and allow_none:
        return _C.current_device()
    if is_number(device, int):
        return device
    if isinstance(device, str):
        kind, colon, number = device.partition(":")
        if kind in _names and (number.isdigit() or not colon):
            return int(number) if number else _C.current_device()
    elif is_npu_device(device):
        return _C.current_device() if device.index is None else device.index
    raise ValueError(
        f"Expected a npu device, but got: {device}; pass an index, 'npu:1' or a torch.device"
    )


def checked_index(device: Any = None, what: str = "Invalid device id") -> int:
    """Like device_index, for a device that must exist; initialises.

    Raises:
        AssertionError: there is no device of that index.
    """
    init()
    index = device_index(device)
    count = _C.device_count()
    if not 0 <= index < count:
        raise AssertionError(f"{what}: got {index}, expected 0 to {count - 1}")
    return index


def stream_handle(stream: Any) -> int:
    """Return the handle of a Stream, or an int handle unchanged; 0 (current stream) for None.

    Raises:
        TypeError: it is neither.
    """
    if stream is None:
        return 0
    handle = getattr(stream, "npu_stream", stream)
    if not is_number(handle, int):
        raise TypeError(
            "Invalid type for stream argument, must be `torch_npu.npu.Stream` or `int` "
            f"representing a pointer to an existing stream, got {type(stream).__name__}"
        )
    return handle
