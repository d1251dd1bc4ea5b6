"""Loads checkpoints on npu that were saved on CUDA or whose map_location names CUDA."""

from __future__ import annotations

import functools
from typing import Any

import torch

from ._cuda_devices import as_npu

_BEFORE_CUDA = 19  # the priority of torch's own package for cuda is 20


def restore_cuda_storages_on_npu() -> None:
    """Teach ``torch.load`` the locations "cuda" and "cuda:0"."""
    torch.serialization.register_package(_BEFORE_CUDA, _no_tag, _restore)
    original = torch.load

    @functools.wraps(original)
    def load(f: Any, map_location: Any = None, *args: Any, **kwargs: Any) -> Any:
        if isinstance(map_location, dict):
            # CUDA saved a storage as "cuda:0", this script saves it as "npu:0".
            map_location = {
                as_npu(key): value for key, value in map_location.items()
            } | map_location
        return original(f, map_location, *args, **kwargs)

    torch.load = load
    torch.serialization.load = load


def _no_tag(storage: Any) -> None:
    return None


def _restore(storage: Any, location: str) -> Any:
    renamed = as_npu(location)
    if renamed == location:
        return None
    return torch.serialization.default_restore_location(storage, renamed)
