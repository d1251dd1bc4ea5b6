"""``npu`` as a torch device: ``torch.ones(2, device="npu")``, ``tensor.npu()``, ``torch.npu``.

The device is the extension ``_torch``, which is built for one version of torch and is not there in
a build without torch. Its tensors share the memory, the streams and the kernels of sessions.
"""

from __future__ import annotations

import importlib.util
import threading
from collections.abc import Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any

from ..errors import UnsupportedError
from .compilation import compile_npu_graphs_without_inductor

if TYPE_CHECKING:
    import torch

DEVICE_TYPE = "npu"

_lock = threading.Lock()
_extension: ModuleType | None = None


def is_built() -> bool:
    """Say whether this build has the torch device."""
    return importlib.util.find_spec(f"{_package()}._torch_build") is not None


def register() -> None:
    """Make ``npu`` a device of this process's torch, once.

    Raises:
        UnsupportedError: this build has no torch device, or one for another version of torch.

    """
    global _extension
    import torch  # the first import registers by itself (torch_hook), so it comes before the lock

    with _lock:
        if _extension is not None:
            return
        extension = _load()
        from .. import npu

        torch.utils.rename_privateuse1_backend(DEVICE_TYPE)
        torch._register_device_module(DEVICE_TYPE, npu)
        npu._adopt_torch()
        torch.utils.generate_methods_for_privateuse1_backend(
            for_tensor=True, for_module=True, for_packed_sequence=True, for_storage=True
        )
        _name_device_for_dlpack()
        _record_streams_of_npu()
        _keep_shared_parameters()
        _move_lazy_parameters()
        _convert_to_legacy_types()
        compile_npu_graphs_without_inductor()
        extension.set_sync_debug_mode(npu.get_sync_debug_mode())
        _extension = extension


def is_registered() -> bool:
    """Say whether ``npu`` is a device of this process's torch."""
    return _extension is not None


def fallback_counts() -> dict[str, int]:
    """Return calls that ran on the CPU for lack of a kernel, by aten operator, since a reset."""
    return dict(_registered().fallback_counts())


def reset_fallback_counts() -> None:
    """Count from zero."""
    _registered().reset_fallback_counts()


def default_generator(device: int = -1) -> torch.Generator:
    """Return the generator that random operators on a device use; -1 is the current device."""
    return _registered().default_generator(device)


def set_sync_debug_mode(mode: int) -> None:
    """Say what calls do that wait unasked: see ``npu.set_sync_debug_mode``."""
    _registered().set_sync_debug_mode(mode)


def allocator_statistics(function: int, device: int) -> dict[str, Any]:
    """Return what a pluggable allocator's C++ function says: see ``set_get_device_stats_fn``."""
    return _registered().allocator_statistics(function, device)


def draw_seed(device: int = -1) -> int:
    """Draw a seed, not 0, from a device's default generator; -1 is the current device.

    In a graph capture the number only names the seed, which every replay draws anew.
    """
    return _registered().draw_seed(device)


def tensor_over(
    address: int, shape: Sequence[int], dtype: torch.dtype, device: int, owner: object
) -> torch.Tensor:
    """Return a dense tensor over memory of a device that ``owner`` keeps, as does the tensor."""
    return _registered().tensor_over(address, shape, dtype, device, owner)


def _registered() -> Any:
    register()
    return _extension


def _package() -> str:
    return __name__.rpartition(".")[0]


def _load() -> ModuleType:
    if not is_built():
        raise UnsupportedError(
            "onnxruntime_npu was built without torch, so that torch has no device 'npu'; install "
            "torch and build it again"
        )
    import torch

    from .._torch_build import TORCH_VERSION

    if torch.__version__ != TORCH_VERSION:
        raise UnsupportedError(
            f"the torch device of onnxruntime_npu was built for torch {TORCH_VERSION}, got "
            f"{torch.__version__}; install that version, or build onnxruntime_npu again"
        )
    from .. import _torch  # type: ignore[attr-defined]

    return _torch


def _name_device_for_dlpack() -> None:
    """Mend ``Tensor.__dlpack_device__``, which knows a renamed backend by its first name only."""
    import torch

    original = torch.Tensor.__dlpack_device__

    def __dlpack_device__(self: torch.Tensor) -> Any:
        if self.device.type == DEVICE_TYPE and not torch.overrides.has_torch_function_unary(self):
            return torch.utils.dlpack.DLDeviceType.kDLExtDev, self.device.index
        return original(self)

    torch.Tensor.__dlpack_device__ = __dlpack_device__  # type: ignore[assignment]


def _record_streams_of_npu() -> None:
    """Let ``Tensor.record_stream`` take ``torch.npu.Stream``, which is no ``torch.Stream``."""
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
    """Let ``Module.npu`` move lazy modules: their parameters take listed methods only."""
    import torch

    lazy = torch.nn.parameter.UninitializedTensorMixin  # type: ignore[attr-defined]
    lazy._allowed_methods.append(torch.Tensor.npu)  # type: ignore[attr-defined]


def _convert_to_legacy_types() -> None:
    """Let ``Tensor.type`` take ``torch.npu.FloatTensor``, of which torch knows the name only."""
    import torch

    original = torch.Tensor.type

    def convert(self: torch.Tensor, dtype: Any = None, *args: Any, **kwargs: Any) -> Any:
        if isinstance(dtype, type) and dtype.__module__ == "torch.npu":
            dtype = f"torch.npu.{dtype.__name__}"
        return original(self, dtype, *args, **kwargs)

    torch.Tensor.type = convert  # type: ignore[assignment,method-assign]


def _keep_shared_parameters() -> None:
    """Let a parameter that modules share be one when they move to or from npu.

    torch puts new tensors into the parameters of its own devices, which stay the same objects; for
    a renamed backend it makes new parameters, one for every module that has the old one.
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
