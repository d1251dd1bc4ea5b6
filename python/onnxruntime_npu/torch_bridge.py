"""Access to the torch device ``npu`` for modules other than torch_device, which registers it.

The device is implemented in the extension ``_torch``, which is built for one version of torch and
missing in a build without torch. torch_device usually registers it right after torch's import.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import ModuleType
from typing import TYPE_CHECKING, Any

from .errors import UnsupportedError

if TYPE_CHECKING:
    import torch

_extension: ModuleType | None = None


def is_built() -> bool:
    """Return whether this build has the torch device."""
    return importlib.util.find_spec(f"{__package__}._torch_build") is not None


def is_registered() -> bool:
    """Return whether ``npu`` is a device of this process's torch."""
    return _extension is not None


def load() -> ModuleType:
    """Load the extension.

    Raises:
        UnsupportedError: this build has no torch device, or one for another version of torch.

    """
    if not is_built():
        raise UnsupportedError(
            "onnxruntime_npu was built without torch, so that torch has no device 'npu'; install "
            "torch and build it again"
        )
    import torch

    from ._torch_build import TORCH_VERSION

    if torch.__version__ != TORCH_VERSION:
        raise UnsupportedError(
            f"the torch device of onnxruntime_npu was built for torch {TORCH_VERSION}, got "
            f"{torch.__version__}; install that version, or build onnxruntime_npu again"
        )
    from . import _torch  # type: ignore[attr-defined]

    return _torch


def adopt(extension: ModuleType) -> None:
    """Let the functions below use the extension, which is now registered with torch."""
    global _extension
    _extension = extension


def ensure_registered() -> None:
    """Check that ``npu`` is a device of this process's torch.

    Raises:
        UnsupportedError: see load(); or the registration failed, which warned when torch was
            imported.

    """
    _registered()


def fallback_counts() -> dict[str, int]:
    """Return how many calls ran on the CPU for lack of a kernel since a reset, by operator."""
    return dict(_registered().fallback_counts())


def reset_fallback_counts() -> None:
    """Count from zero."""
    _registered().reset_fallback_counts()


def default_generator(device: int = -1) -> torch.Generator:
    """Return the generator that random operators on a device use; -1 is the current device."""
    return _registered().default_generator(device)


def set_sync_debug_mode(mode: int) -> None:
    """Set the action of implicitly synchronising calls: see ``npu.set_sync_debug_mode``."""
    _registered().set_sync_debug_mode(mode)


def allocator_statistics(function: int, device: int) -> dict[str, Any]:
    """Return the result of a pluggable allocator's function: see ``set_get_device_stats_fn``."""
    return _registered().allocator_statistics(function, device)


def draw_seed(device: int = -1) -> int:
    """Draw a nonzero seed from a device's default generator; -1 is the current device.

    In a graph capture the number only identifies the seed, which every replay draws again.
    """
    return _registered().draw_seed(device)


def draw_position(device: int, counters: int) -> tuple[int, int]:
    """Take blocks of four numbers from a device's default generator; -1 is the current device.

    Returns the seed of the generator, or a number of its own for 0, and the offset at which they
    begin. In a graph capture the seed only identifies the position, which every replay draws again.
    """
    seed, offset = _registered().draw_position(device, counters)
    return seed, offset


@contextmanager
def next_call_given(results: Sequence[torch.Tensor] = (), seed: int = 0) -> Iterator[None]:
    """Pass arguments outside the schema to the next call of a ``torch.ops.npu`` operator.

    Args:
        results: dense npu tensors that the call writes its results to.
        seed: used instead of a drawn one.

    Raises:
        ArgumentError: a result differs in shape or dtype from its tensor; raised within the block.

    """
    extension = _registered()
    extension.give_next_call(list(results), seed)
    try:
        yield
    finally:
        extension.give_next_call([], 0)  # a call that failed early has not consumed it


def tensor_over(
    address: int, shape: Sequence[int], dtype: torch.dtype, device: int, owner: object
) -> torch.Tensor:
    """Return a dense tensor over device memory owned by ``owner``, which the tensor keeps alive."""
    return _registered().tensor_over(address, shape, dtype, device, owner)


def _registered() -> Any:
    if _extension is None:
        import torch  # noqa: F401  # its first import registers the device (torch_hook)
    if _extension is None:
        load()  # usually raises the specific error
        raise UnsupportedError(
            "torch has no device 'npu' of onnxruntime_npu; a warning said why when torch was "
            "imported, and onnxruntime_npu.torch_device.register() says it again"
        )
    return _extension
