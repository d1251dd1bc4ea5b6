"""``torch.cuda`` with the functions and classes of ``torch.npu``."""

from __future__ import annotations

import functools
import importlib
from types import ModuleType
from typing import Any

import torch

from .. import npu
from ..npu import _lazy, legacy_types

_SUBMODULES = ["amp", "amp.autocast_mode", "amp.grad_scaler", "graphs", "memory", "random"]
_SUBMODULES += ["streams"]
_OTHER_NAMES = {
    "CUDAGraph": "NPUGraph",
    "CUDAPluggableAllocator": "NPUPluggableAllocator",
    "DeferredCudaCallError": "DeferredNpuCallError",
    "_lazy_init": "_lazy_init",
}
_MARKS = {"mark": "mark", "range_push": "range_push", "range_pop": "range_pop"}
_MARKS |= {"range_start": "range_start", "range_end": "range_end", "range": "annotate"}


def give_cuda_the_names_of_npu() -> None:
    """Set each public name of ``torch.cuda`` that ``torch.npu`` has, also in submodules."""
    _replace(torch.cuda, npu)
    for name in _SUBMODULES:
        _replace(
            importlib.import_module(f"torch.cuda.{name}"),
            importlib.import_module(f"{npu.__name__}.{name}"),
        )
    for theirs, ours in _OTHER_NAMES.items():
        for module in (torch.cuda, torch.cuda.graphs, torch.cuda.memory):
            if hasattr(module, theirs):
                setattr(module, theirs, getattr(npu, ours))
    for name in legacy_types.NAMES:
        setattr(torch.cuda, name, legacy_types.legacy_type(name))
    torch.cuda._is_in_bad_fork = _lazy._is_in_bad_fork
    torch.cuda.default_generators = npu.default_generators  # type: ignore[assignment]
    torch.cuda.get_arch_list = list  # no code was compiled for any CUDA architecture
    torch.cuda.amp.custom_fwd = functools.partial(torch.amp.custom_fwd, device_type="npu")
    torch.cuda.amp.custom_bwd = functools.partial(torch.amp.custom_bwd, device_type="npu")
    for theirs, ours in _MARKS.items():
        setattr(torch.cuda.nvtx, theirs, getattr(npu.mstx, ours))


def _replace(theirs: ModuleType, ours: Any) -> None:
    for name in dir(theirs):
        value = getattr(ours, name, None)
        if name.startswith("_") or value is None or isinstance(value, ModuleType):
            continue
        if getattr(value, "__module__", "").startswith(npu.__name__):
            setattr(theirs, name, value)
