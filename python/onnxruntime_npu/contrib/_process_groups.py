"""Maps torch.distributed's backend "nccl" to "hccl"."""

from __future__ import annotations

import functools
import inspect
from typing import Any

import torch.distributed as dist
from torch.distributed import distributed_c10d

_FUNCTIONS = ["init_process_group", "new_group"]


def translate_process_groups() -> None:
    """Let groups of "nccl" be groups of "hccl", also in "cpu:gloo,cuda:nccl"."""
    if not dist.is_available():
        return
    for name in _FUNCTIONS:
        _translate_backend(name)
    for module in (dist, distributed_c10d):
        module.is_nccl_available = dist.is_gloo_available  # type: ignore[attr-defined]


def _translate_backend(name: str) -> None:
    original = getattr(distributed_c10d, name)
    signature = inspect.signature(original)

    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        bound = signature.bind(*args, **kwargs)
        backend = bound.arguments.get("backend")
        if isinstance(backend, str):
            translated = backend.lower().replace("cuda:", "npu:").replace("nccl", "hccl")
            bound.arguments["backend"] = translated
        return original(*bound.args, **bound.kwargs)

    for module in (dist, distributed_c10d):
        setattr(module, name, call)
