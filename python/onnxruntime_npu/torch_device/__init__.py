"""``npu`` as a torch device: ``torch.ones(2, device="npu")``, ``tensor.npu()``, ``torch.npu``.

Its tensors share the memory, the streams and the kernels of sessions.
"""

from __future__ import annotations

import atexit
import threading
from typing import Any

from .. import torch_bridge
from ..torch_bridge import (
    allocator_statistics,
    default_generator,
    draw_position,
    draw_seed,
    fallback_counts,
    is_built,
    is_registered,
    reset_fallback_counts,
    set_sync_debug_mode,
    tensor_over,
)
from . import data_parallel, process_copies, process_group, profiler_columns, refused_layouts
from .compilation import compile_npu_graphs_without_inductor

__all__ = [
    "DEVICE_TYPE",
    "allocator_statistics",
    "default_generator",
    "draw_position",
    "draw_seed",
    "fallback_counts",
    "is_built",
    "is_registered",
    "register",
    "reset_fallback_counts",
    "set_sync_debug_mode",
    "tensor_over",
]

DEVICE_TYPE = "npu"

_lock = threading.Lock()


def register() -> None:
    """Make ``npu`` a device of this process's torch, once.

    Raises:
        UnsupportedError: this build has no torch device, or one for another version of torch.

    """
    import torch  # the first import registers the device (torch_hook), so it precedes the lock

    with _lock:
        if is_registered():
            return
        extension = torch_bridge.load()
        from .. import npu
        from ..opdef import draws, torch_library
        from . import unreleased_graphs

        torch.utils.rename_privateuse1_backend(DEVICE_TYPE)
        torch._register_device_module(DEVICE_TYPE, npu)
        npu.streams.adopt_torch()
        torch.utils.generate_methods_for_privateuse1_backend(
            for_tensor=True, for_module=True, for_packed_sequence=True, for_storage=True
        )
        _name_device_for_dlpack()
        _record_streams_of_npu()
        _keep_shared_parameters()
        _move_lazy_parameters()
        _convert_to_legacy_types()
        compile_npu_graphs_without_inductor()
        process_group.register(DEVICE_TYPE)
        data_parallel.register(DEVICE_TYPE)
        process_copies.register(DEVICE_TYPE)
        refused_layouts.register()
        profiler_columns.name_after(DEVICE_TYPE)
        extension.set_sync_debug_mode(npu.get_sync_debug_mode())
        draws.draw_with(DEVICE_TYPE, draw_seed, draw_position)
        torch_library.register_on_npu(extension.register_fused)
        torch_bridge.adopt(extension)
        atexit.register(unreleased_graphs.wait, extension)


def _name_device_for_dlpack() -> None:
    """Fix ``Tensor.__dlpack_device__``, which knows a renamed backend only by its original name."""
    import torch

    original = torch.Tensor.__dlpack_device__

    def __dlpack_device__(self: torch.Tensor) -> Any:
        if self.device.type == DEVICE_TYPE and not torch.overrides.has_torch_function_unary(self):
            return torch.utils.dlpack.DLDeviceType.kDLExtDev, self.device.index
        return original(self)

    torch.Tensor.__dlpack_device__ = __dlpack_device__  # type: ignore[assignment]


def _record_streams_of_npu() -> None:
    """Let ``Tensor.record_stream`` accept ``torch.npu.Stream``, which is not a ``torch.Stream``."""
    import torch

    from .. import npu

    original = torch.Tensor.record_stream

    def record_stream(self: torch.Tensor, stream: Any) -> None:
        if isinstance(stream, npu.Stream):
            stream = torch.Stream(
                stream_id=stream.stream_id,
                device_index=stream.device_index,
                device_type=stream.device_type,
            )
        original(self, stream)

    torch.Tensor.record_stream = record_stream  # type: ignore[assignment,method-assign]


def _move_lazy_parameters() -> None:
    """Let ``Module.npu`` move lazy modules: their parameters allow only listed methods."""
    import torch

    lazy = torch.nn.parameter.UninitializedTensorMixin  # type: ignore[attr-defined]
    lazy._allowed_methods.append(torch.Tensor.npu)  # type: ignore[attr-defined]


def _convert_to_legacy_types() -> None:
    """Let ``Tensor.type`` accept ``torch.npu.FloatTensor``, which torch knows only by name."""
    import torch

    original = torch.Tensor.type

    def convert(self: torch.Tensor, dtype: Any = None, *args: Any, **kwargs: Any) -> Any:
        if isinstance(dtype, type) and dtype.__module__ == "torch.npu":
            dtype = f"torch.npu.{dtype.__name__}"
        return original(self, dtype, *args, **kwargs)

    torch.Tensor.type = convert  # type: ignore[assignment,method-assign]


def _keep_shared_parameters() -> None:
    """Keep a parameter that modules share a single object when they move to or from npu.

    For its own devices torch replaces the tensor inside the parameter object; for a renamed backend
    it creates new parameters, one for every module that has the old one.
    """
    import torch

    original = torch.nn.Module._apply
    running = threading.local()

    def _apply(self: torch.nn.Module, fn: Any, recurse: bool = True) -> torch.nn.Module:
        if getattr(running, "inside", False):
            return original(self, fn, recurse)
        places: dict[int, list[tuple[torch.nn.Module, str, torch.nn.Parameter]]] = {}
        for module in self.modules():
            for name, parameter in module._parameters.items():
                if parameter is not None:
                    places.setdefault(id(parameter), []).append((module, name, parameter))
        running.inside = True
        try:
            original(self, fn, recurse)
        finally:
            running.inside = False
        for (owner, owned, old), *others in places.values():
            new = owner._parameters[owned]
            if new is None or new is old or not others:
                continue
            if DEVICE_TYPE in (old.device.type, new.device.type):
                for module, name, _ in others:
                    module._parameters[name] = new
        return self

    torch.nn.Module._apply = _apply  # type: ignore[method-assign]
