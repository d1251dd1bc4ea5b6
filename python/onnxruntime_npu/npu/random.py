"""Random numbers: a seed and a position per device (Philox).

With the torch device these are torch's default npu generators; without torch they are stored here,
and states are NumPy arrays instead of tensors.
"""

from __future__ import annotations

import secrets
import sys
from collections.abc import Callable, Iterable
from typing import Any, Protocol

import numpy as np

from .. import _C, torch_bridge
from ._arguments import checked_index
from ._lazy import init, lazy_call
from .devices import device_count

__all__ = [
    "get_rng_state",
    "get_rng_state_all",
    "initial_seed",
    "manual_seed",
    "manual_seed_all",
    "seed",
    "seed_all",
    "set_rng_state",
    "set_rng_state_all",
]

_STATE_BYTES = 16  # the seed and the position, 64 bits each
_DEFAULT_SEED = 67280421310721  # torch's


class _Generator(Protocol):
    def manual_seed(self, seed: int) -> Any: ...
    def initial_seed(self) -> int: ...
    def get_state(self) -> Any: ...
    def set_state(self, state: Any) -> Any: ...


class _PlainGenerator:
    """A generator's state in a process without torch."""

    def __init__(self) -> None:
        self._seed, self._offset = _DEFAULT_SEED, 0

    def manual_seed(self, seed: int) -> None:
        if not -(2**63) <= seed < 2**64:
            raise RuntimeError(f"expected a seed of 64 bits, got {seed}")
        self._seed, self._offset = seed % 2**64, 0

    def initial_seed(self) -> int:
        return self._seed

    def get_state(self) -> np.ndarray:
        return np.array([self._seed, self._offset], dtype="<u8").view(np.uint8)

    def set_state(self, state: Any) -> None:
        array = np.asarray(state)
        if array.dtype != np.uint8:
            raise TypeError(f"expected a generator state of uint8, got {array.dtype}")
        if array.size != _STATE_BYTES:
            raise RuntimeError(
                f"expected the state of an npu generator, {_STATE_BYTES} bytes, got {array.size}"
            )
        seed, offset = np.ascontiguousarray(array).reshape(-1).view("<u8")
        self._seed, self._offset = int(seed), int(offset)


_plain: dict[int, _PlainGenerator] = {}


def _generator(index: int) -> _Generator:
    if "torch" in sys.modules and torch_bridge.is_built():
        return torch_bridge.default_generator(index)
    return _plain.setdefault(index, _PlainGenerator())


def _copied(state: Any) -> Any:
    """Return a copy, unaffected by later writes of the caller, and real where torch traces."""
    if not hasattr(state, "clone"):
        return np.array(state)
    from torch.utils._python_dispatch import _disable_current_modes

    with _disable_current_modes():
        return state.clone()


def get_rng_state(device: Any = "npu") -> Any:
    """Return the state of a device's generator: 16 bytes, a CPU tensor where torch is loaded.

    Args:
        device: an int, a str or a ``torch.device``; default the current one.
    """
    return _generator(checked_index(device)).get_state()


def get_rng_state_all() -> list[Any]:
    """Return the states of all devices' generators."""
    return [get_rng_state(index) for index in range(device_count())]


def set_rng_state(new_state: Any, device: Any = "npu") -> None:
    """Set the state of a device's generator; now, or when the device is first used.

    Raises:
        TypeError: the state is not uint8.
        RuntimeError: it has another length.
    """
    state = _copied(new_state)

    def apply() -> None:
        generator = _generator(checked_index(device))
        plain = isinstance(generator, _PlainGenerator) or not isinstance(state, np.ndarray)
        generator.set_state(state if plain else sys.modules["torch"].from_numpy(state))

    lazy_call(apply)


def _get_rng_state_offset(device: Any = "npu") -> int:
    """Return the position of a device's generator since it was seeded."""
    return int(_words(get_rng_state(device))[1])


def _set_rng_state_offset(offset: int, device: Any = "npu") -> None:
    """Move a device's generator to a position; its seed is unchanged."""
    state = get_rng_state(device)
    _words(state)[1] = offset
    set_rng_state(state, device)


def _words(state: Any) -> np.ndarray:
    """Return a writable view of the seed and the position in a state."""
    return np.asarray(state).view("<u8")


def set_rng_state_all(new_states: Iterable[Any]) -> None:
    """Set the states of all devices' generators, in device order."""
    for index, state in enumerate(new_states):
        set_rng_state(state, index)


def _on_current(action: Callable[[_Generator], Any]) -> None:
    lazy_call(lambda: action(_generator(_C.current_device())))


def manual_seed(seed: int) -> None:
    """Seed the current device's generator; now, or when the device is first used."""
    number = int(seed)
    _on_current(lambda generator: generator.manual_seed(number))


def manual_seed_all(seed: int) -> None:
    """Seed all devices' generators; now, or when a device is first used."""
    number = int(seed)

    def apply() -> None:
        for index in range(device_count()):
            _generator(index).manual_seed(number)

    lazy_call(apply)


def seed() -> None:
    """Seed the current device's generator with a random number."""
    manual_seed(secrets.randbits(63))


def seed_all() -> None:
    """Seed all devices' generators with one random number."""
    manual_seed_all(secrets.randbits(63))


def initial_seed() -> int:
    """Return the last seed of the current device's generator."""
    init()
    return _generator(_C.current_device()).initial_seed()
