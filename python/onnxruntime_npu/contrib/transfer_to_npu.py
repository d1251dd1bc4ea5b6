"""``from torch_npu.contrib import transfer_to_npu``: a script written for CUDA runs on npu.

From this import on, in this process, the names of ``torch.cuda`` are those of ``torch.npu``, and
the device "cuda" means npu wherever torch takes a device. ``torch.device("cuda")`` itself is
unchanged, so that a script's own ``device.type == "cuda"`` holds; tensors created on it are on npu.
Process groups of "nccl" are groups of "hccl".

As with torch_npu, ``torch.jit.script`` returns its argument: compiled code would refer to CUDA.
"""

from __future__ import annotations

import warnings
from typing import Any

import torch

from .. import torch_device
from ..npu._arguments import accept_as_npu
from ._checkpoints import restore_cuda_storages_on_npu
from ._cuda_devices import translate_devices
from ._cuda_module import give_cuda_the_names_of_npu
from ._process_groups import translate_process_groups

__all__: list[str] = []


def _leave_unscripted() -> None:
    def script(obj: Any, *args: Any, **kwargs: Any) -> Any:
        warnings.warn(
            "transfer_to_npu: torch.jit.script returns its argument uncompiled; do without "
            "transfer_to_npu if you need it",
            RuntimeWarning,
            stacklevel=2,
        )
        return obj

    def script_method(function: Any) -> Any:
        return function

    torch.jit.script = script
    torch.jit.script_method = script_method


def _transfer() -> None:
    torch_device.register()
    if getattr(torch.cuda, "_is_npu", False):  # a reload of this module
        return
    accept_as_npu("cuda")
    give_cuda_the_names_of_npu()
    translate_devices()
    translate_process_groups()
    restore_cuda_storages_on_npu()
    _leave_unscripted()
    torch.cuda._is_npu = True  # type: ignore[attr-defined]


_transfer()
