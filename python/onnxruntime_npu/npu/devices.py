"""Devices: their number, the current one, their properties."""

from __future__ import annotations

import itertools
import os
import re
import time
import uuid
import warnings
from collections.abc import Callable
from typing import Any

from .. import _C, torch_bridge
from ..is_number import is_number
from ._arguments import Entered, checked_index, device_index, is_npu_device
from ._lazy import init

__all__ = [
    "can_device_access_peer",
    "current_blas_handle",
    "current_device",
    "device",
    "device_count",
    "device_of",
    "get_device_capability",
    "get_device_name",
    "get_device_properties",
    "get_sync_debug_mode",
    "ipc_collect",
    "is_available",
    "is_bf16_supported",
    "set_device",
    "set_sync_debug_mode",
    "synchronize",
    "utilization",
]

after_synchronize: list[Callable[[], None]] = []  # called after each wait for a device


def _visible(count: int) -> int:
    """Number of devices that ASCEND_RT_VISIBLE_DEVICES allows; 0 if it is not ascending."""
    text = os.environ.get("ASCEND_RT_VISIBLE_DEVICES")
    if text is None:
        return count
    match = re.match(r"[\d,]*", text.strip())
    numbers = [int(n) for n in (match.group() if match else "").split(",") if n]
    if any(b <= a for a, b in itertools.pairwise(numbers)):
        return 0
    return sum(n < count for n in numbers)


def device_count() -> int:
    """Return the number of devices (ORT_NPU_DEVICE_COUNT, limited by ASCEND_RT_VISIBLE_DEVICES)."""
    return _visible(_C.device_count())


def is_available() -> bool:
    """Return whether there is a device."""
    return device_count() > 0


def is_bf16_supported(including_emulation: bool = True) -> bool:
    """Return True: machines without bfloat16 instructions compute it in float32."""
    return True


def current_device() -> int:
    """Return the calling thread's device."""
    init()
    return _C.current_device()


def set_device(device: Any) -> None:
    """Make a device current for the calling thread; a negative index does nothing.

    Raises:
        ValueError: ``device`` is of another type.
        RuntimeError: there is no device of that index.
    """
    init()
    index = device_index(device)
    if index >= 0:
        _C.set_device(index)


class device:
    """Context manager that makes a device current; -1 or None changes nothing.

    One object may be entered again within itself, and by several threads.

    Args:
        device: None, an int, a str such as ``"npu:1"``, or a ``torch.device``.
    """

    def __init__(self, device: Any) -> None:
        self.idx = -1 if device is None else device_index(device)
        self.prev_idx = -1
        self._entered = Entered()

    def __enter__(self) -> device:
        if self.idx >= 0:
            before = current_device()
            set_device(self.idx)
            self._entered.push(before)
            self.prev_idx = before
        return self

    def __exit__(self, *_: object) -> None:
        before = self._entered.pop()
        if before is not None:
            set_device(before)


class device_of(device):
    """Context manager that makes the device of a tensor or storage current; no-op for others."""

    def __init__(self, obj: Any) -> None:
        of = getattr(obj, "device", None)
        super().__init__(of if is_npu_device(of) else None)


def can_device_access_peer(device_id: int, peer_device_id: int) -> bool:
    """Return whether the first device can access the second's memory: host NPUs always can.

    Raises:
        AssertionError: one of them does not exist.
    """
    device_id = checked_index(device_id, "Invalid device id")
    return checked_index(peer_device_id, "Invalid peer device id") != device_id


def get_device_name(device_name: Any = None) -> str:
    """Return the device's name; ORT_NPU_DEVICE_NAME sets it for scripts that branch on products.

    Raises:
        AssertionError: there is no such device.
    """
    return _C.device_properties(checked_index(device_name))["name"]


class _UUID:
    """Sixteen bytes that name a device of this machine."""

    def __init__(self, index: int) -> None:
        self.bytes = uuid.uuid5(uuid.NAMESPACE_OID, f"host-npu-{uuid.getnode()}-{index}").bytes

    def __str__(self) -> str:
        return str(uuid.UUID(bytes=self.bytes))


def _cache_bytes() -> int:
    """Size of the last-level cache in bytes, 0 if unknown."""
    try:
        return max(os.sysconf("SC_LEVEL2_CACHE_SIZE"), os.sysconf("SC_LEVEL3_CACHE_SIZE"), 0)
    except (ValueError, OSError):
        return 0


class _NPUDeviceProperties:
    """Read-only properties of a device. ``cube_core_num`` counts cores with a matrix unit (AMX)."""

    # Empty fields of other devices, for scripts that print all of them.
    major = minor = is_multi_gpu_board = is_integrated = None
    max_threads_per_multi_processor = warp_size = regs_per_multiprocessor = gcnArchName = None

    def __init__(self, index: int) -> None:
        facts = _C.device_properties(index)
        self._facts = {
            "name": facts["name"],
            "total_memory": facts["total_memory"],
            "cube_core_num": facts["compute_units"] if facts["isa"] == "amx" else 0,
            "vector_core_num": facts["compute_units"],
            "L2_cache_size": _cache_bytes(),
            "uuid": _UUID(index),
        }
        self._facts["multi_processor_count"] = self._facts["vector_core_num"]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name not in self._facts:
            raise AttributeError(f"_NPUDeviceProperties has no attribute {name!r}")
        return self._facts[name]

    def __repr__(self) -> str:
        return (
            f"_NPUDeviceProperties(name='{self.name}', total_memory={self.total_memory >> 20}MB, "
            f"cube_core_num={self.cube_core_num}, vector_core_num={self.vector_core_num}, "
            f"uuid={self.uuid}, L2_cache_size={self.L2_cache_size >> 20}MB)"
        )


_properties: dict[int, _NPUDeviceProperties] = {}


def get_device_properties(device_name: Any = None) -> _NPUDeviceProperties:
    """Return name, total_memory, cube_core_num, vector_core_num, L2_cache_size and uuid.

    The other names of CUDA's properties exist but are empty.

    Raises:
        AssertionError: there is no such device.
    """
    index = checked_index(device_name)
    if index not in _properties:
        _properties[index] = _NPUDeviceProperties(index)
    return _properties[index]


def get_device_capability(device: Any = None) -> tuple[int, int] | None:
    """Return None: an NPU has no compute capability.

    TORCH_NPU_DEVICE_CAPABILITY, such as ``9.0``, makes it return that, with a warning.
    """
    text = os.environ.get("TORCH_NPU_DEVICE_CAPABILITY", "")
    match = re.fullmatch(r"(\d+)\.(\d+)", text)
    if match:
        warnings.warn(
            f"torch.npu.get_device_capability answers TORCH_NPU_DEVICE_CAPABILITY={text}, which "
            "does not describe the hardware",
            stacklevel=2,
        )
        return int(match.group(1)), int(match.group(2))
    hint = (
        f"TORCH_NPU_DEVICE_CAPABILITY={text!r} is not of the form 9.0"
        if text
        else "a script for CUDA that needs one gets what TORCH_NPU_DEVICE_CAPABILITY says, say 8.0"
    )
    warnings.warn(f"torch.npu.get_device_capability isn't implemented; {hint}", stacklevel=2)
    return None


def current_blas_handle() -> None:
    """Return None with a warning: there is no such handle."""
    warnings.warn("NPU does not use blas handle.", stacklevel=2)


_sync_debug_modes = {"default": 0, "warn": 1, "error": 2}
_sync_debug_mode = 0


def set_sync_debug_mode(debug_mode: int | str) -> None:
    """Set the action of torch calls that synchronise implicitly: 0 nothing, 1 warn, 2 raise.

    These are ``.item()``, ``.cpu()``, ``nonzero()``, copies of large tensors from pageable memory,
    and operators that run on the CPU for lack of a kernel.

    Args:
        debug_mode: 0, 1, 2, or ``"default"``, ``"warn"``, ``"error"``.

    Raises:
        RuntimeError: another value.
    """
    global _sync_debug_mode
    mode: Any = _sync_debug_modes.get(debug_mode) if isinstance(debug_mode, str) else debug_mode
    if not is_number(mode, int) or not 0 <= mode <= 2:
        known = "`default`, `warn`, `error`" if isinstance(debug_mode, str) else "0,1,2"
        raise RuntimeError(
            f"invalid value of debug_mode, expected one of {known}, got {debug_mode!r}"
        )
    warnings.warn(
        "Synchronization debug mode is a prototype feature and does not yet detect all "
        "synchronizing operations",
        stacklevel=2,
    )
    _sync_debug_mode = mode
    if torch_bridge.is_registered():
        torch_bridge.set_sync_debug_mode(mode)


def get_sync_debug_mode() -> int:
    """Return 0, 1 or 2: see set_sync_debug_mode."""
    return _sync_debug_mode


def _busy_ticks() -> tuple[int, int]:
    with open("/proc/stat") as file:
        ticks = [int(t) for t in file.readline().split()[1:]]
    return sum(ticks), ticks[3] + ticks[4]  # idle and iowait


def utilization(device: Any = None) -> int:
    """Return the utilization of the machine's cores in percent, measured over 20 ms.

    Raises:
        AssertionError: there is no such device.
    """
    checked_index(device)
    total, idle = _busy_ticks()
    time.sleep(0.02)
    total_after, idle_after = _busy_ticks()
    elapsed = max(total_after - total, 1)
    return min(max(round(100 * (1 - (idle_after - idle) / elapsed)), 0), 100)


def ipc_collect() -> None:
    """Free memory that other processes have released; the host NPU shares none."""
    init()


def synchronize(device: Any = None) -> None:
    """Wait until every stream of a device is idle.

    Raises:
        RuntimeError: work on it failed; the message names the operator.
    """
    _C.synchronize(checked_index(device))
    for tell in after_synchronize:
        tell()
