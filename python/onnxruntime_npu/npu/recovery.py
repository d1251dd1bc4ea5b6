"""Stopping and restarting a device, self-tests, faulty memory."""

from __future__ import annotations

import warnings
from typing import Any

from .. import _C
from ._arguments import checked_index

__all__ = ["check_uce_in_memory", "restart_device", "stop_device", "stress_detect"]

_faulty: dict[int, int] = {}  # address by device


def stop_device(device_id: int) -> int:
    """Drop a device's queued work and reject new work until restart_device.

    A running kernel completes: the host NPU cannot interrupt a core.

    Returns:
        0, or 1 when there is no such device.
    """
    try:
        index = checked_index(device_id)
    except (AssertionError, ValueError):
        return 1
    _C.stop_device(index)
    return 0


def restart_device(
    device_id: int, rebuild_all_resources: bool = False, disable_tensor_unsafe_check: bool = False
) -> None:
    """Let a device accept work again, stopped or not; errors of dropped work are cleared.

    Args:
        device_id: index of the device.
        rebuild_all_resources: accepted: the host NPU's streams survive a stop.
        disable_tensor_unsafe_check: accepted: memory of a stopped host NPU stays valid.

    Raises:
        AssertionError: there is no such device.
    """
    _C.restart_device(checked_index(device_id))


def _pattern_test(index: int, megabytes: int = 8) -> bool:
    """Write patterns through the device and read them back."""
    size = megabytes << 20
    address = _C.allocate(size, index)
    try:
        for pattern in (0x00, 0xFF, 0x55, 0xAA):
            _C.fill(index, address, pattern, size)
            if _C.copy_to_host(index, address, size) != bytes([pattern]) * size:
                return False
        return True
    finally:
        _C.free(address)


def stress_detect(detect_type: str = "aic") -> int:
    """Test the current device; other work should be stopped.

    The host NPU's test of ``"aic"`` writes bit patterns through its streams and reads them back.

    Returns:
        0 healthy, 1 the test could not run (``"hccs"``: there is no such interconnect), 2 a fault.
    """
    if detect_type != "aic":
        reason = (
            "the host NPU has no HCCS interconnect" if detect_type == "hccs" else "unknown type"
        )
        warnings.warn(f"stress_detect({detect_type!r}) did not run: {reason}", stacklevel=2)
        return 1
    index = checked_index()
    _C.synchronize(index)
    return 0 if _pattern_test(index) else 2


def inject_uncorrectable_error(device_id: int, address: int | None) -> None:
    """Pretend that memory at ``address`` failed, for tests of recovery code; None clears it."""
    index = checked_index(device_id)
    if address is None:
        _faulty.pop(index, None)
    else:
        _faulty[index] = address


def check_uce_in_memory(device_id: int) -> int:
    """Return whether an uncorrectable memory error hit memory of this process.

    The host NPU detects only errors from inject_uncorrectable_error(): the system ends a process
    after a real memory error.

    Returns:
        0 no error, 1 memory of another owner, 2 cached free memory, 3 memory in use.
    """
    index = checked_index(device_id)
    address: Any = _faulty.get(index)
    return 0 if address is None else _C.classify_address(index, address)
