"""The device API of torch_npu: ``torch_npu.npu``, which is ``torch.npu`` once torch is there."""

from __future__ import annotations

from typing import Any

from .. import _C


def device_count() -> int:
    """Return the number of logical NPUs."""
    return _C.device_count()


def is_available() -> bool:
    """Say whether there is an NPU."""
    return device_count() > 0


def is_initialized() -> bool:
    """Say whether the device API can be used: the host NPU always can."""
    return True


def current_device() -> int:
    """Return the index of the calling thread's device."""
    import torch

    return torch.accelerator.current_device_index()


def synchronize(device: int | None = None) -> None:
    """Wait for all work of a device, the current one by default."""
    _C.synchronize(current_device() if device is None else device)


def get_amp_supported_dtype() -> list[Any]:
    """Return the element types that autocast may use on the NPU."""
    import torch

    return [torch.float16, torch.bfloat16, torch.float32]


def _is_in_bad_fork() -> bool:
    return False


def manual_seed_all(seed: int) -> None:
    """Seed the generators of all NPUs."""
    from .. import torch_device

    for index in range(device_count()):
        torch_device.default_generator(index).manual_seed(seed)


def get_rng_state(device: Any = "npu") -> Any:
    """Return the state of a device's generator, a byte tensor on the CPU."""
    return _generator(device).get_state()


def set_rng_state(new_state: Any, device: Any = "npu") -> None:
    """Set the state of a device's generator."""
    _generator(device).set_state(new_state)


def _generator(device: Any) -> Any:
    import torch

    from .. import torch_device

    index = (
        torch.device("npu", device).index if isinstance(device, int) else torch.device(device).index
    )
    return torch_device.default_generator(-1 if index is None else index)
