"""Maps the device "cuda" to npu wherever torch takes a device."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch.nn.parameter import UninitializedTensorMixin  # type: ignore[attr-defined]
from torch.utils._device import DeviceContext, _device_constructors
from torch.utils.data import DataLoader

_FROM, _TO = "cuda", "npu"
_KEYWORDS = ("device", "device_type", "pin_memory_device", "use_device")

# In addition to the factory functions that torch lists for its default device.
_FUNCTIONS = ["empty_like", "full_like", "normal", "ones_like", "rand_like", "randint_like"]
_FUNCTIONS += ["randn_like", "zeros_like"]
# These also take the device as first argument; torch.autocast and GradScaler in __init__.
_DEVICE_FIRST = ["get_autocast_dtype", "is_autocast_enabled", "set_autocast_dtype"]
_DEVICE_FIRST += ["set_autocast_enabled"]
_TENSOR_METHODS = ["new_empty", "new_empty_strided", "new_full", "new_ones", "new_tensor"]
_TENSOR_METHODS += ["new_zeros"]
_TENSOR_DEVICE_FIRST = ["is_pinned", "pin_memory", "to"]


def as_npu(device: Any) -> Any:
    """Return the npu device for a cuda one, a str or a torch.device; otherwise ``device``."""
    if isinstance(device, str):
        if device == _FROM or device.startswith(_FROM + ":"):
            return _TO + device.removeprefix(_FROM)
    elif isinstance(device, torch.device) and device.type == _FROM:
        return torch.device(_TO) if device.index is None else torch.device(_TO, device.index)
    return device


def translate_devices() -> None:
    """Wrap functions that take a device. Modules (``Module.cuda``) call those of their tensors."""
    # torch caches these on the first call: it must see its own functions, not the wrappers.
    constructors = _device_constructors()
    for owner in (torch, torch.fft, torch.nested):
        for name in dir(owner):
            function = getattr(owner, name)
            if getattr(function, "__hash__", None) and function in constructors:
                _wrap(owner, name)
    for name in _FUNCTIONS:
        _wrap(torch, name)
    for name in _DEVICE_FIRST:
        _wrap(torch, name, position=0)
    for name in _TENSOR_METHODS:
        _wrap(torch.Tensor, name)
    for name in _TENSOR_DEVICE_FIRST:
        _wrap(torch.Tensor, name, position=1)
    _wrap(torch.nn.Module, "to", position=1)
    if torch.distributed.is_available():
        for module in (torch.distributed, torch.distributed.device_mesh):
            _wrap(module, "init_device_mesh", position=0)
    _state_of_npu_by_default()
    _wrap(torch.amp, "custom_fwd")
    _wrap(torch.amp, "custom_bwd")
    _wrap(torch.amp.autocast_mode, "is_autocast_available", position=0)
    torch.amp.is_autocast_available = torch.amp.autocast_mode.is_autocast_available
    _wrap(torch.amp.autocast, "__init__", position=1)
    _wrap(torch.amp.GradScaler, "__init__", position=1, default=_TO)
    _wrap(torch.UntypedStorage, "__new__")
    _wrap(DeviceContext, "__init__", position=1)  # set_default_device, with
    _wrap(DataLoader, "__init__")
    _wrap(torch.autograd.profiler.profile, "__init__")
    _profile_npu_for_cuda()
    torch.set_default_tensor_type = _default_tensor_type_setter()
    torch.Generator = _generator_type()  # type: ignore[misc,assignment]
    _give_tensors_cuda()


def _wrap(owner: Any, name: str, position: int | None = None, default: str | None = None) -> None:
    original: Callable[..., Any] = getattr(owner, name)

    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        for keyword in _KEYWORDS:
            if keyword in kwargs:
                kwargs[keyword] = as_npu(kwargs[keyword])
        if position is not None and len(args) > position:
            args = (*args[:position], as_npu(args[position]), *args[position + 1 :])
        elif default is not None:
            kwargs.setdefault("device", default)
        return original(*args, **kwargs)

    setattr(owner, name, call)


def _state_of_npu_by_default() -> None:
    """Redirect autocast functions that default to CUDA."""
    is_enabled, enable = torch.is_autocast_enabled, torch.set_autocast_enabled

    def is_autocast_enabled(device_type: str = _TO) -> bool:
        return is_enabled(device_type)

    def set_autocast_enabled(*args: Any) -> None:
        enable(*(args if len(args) > 1 else (_TO, *args)))

    torch.is_autocast_enabled = is_autocast_enabled
    torch.set_autocast_enabled = set_autocast_enabled  # type: ignore[assignment]
    torch.get_autocast_gpu_dtype = functools.partial(torch.get_autocast_dtype, _TO)
    torch.set_autocast_gpu_dtype = functools.partial(torch.set_autocast_dtype, _TO)


def _profile_npu_for_cuda() -> None:
    base = torch.profiler._KinetoProfile
    original = base.__init__
    cuda, npu = torch.profiler.ProfilerActivity.CUDA, torch.profiler.ProfilerActivity.PrivateUse1

    def translated(item: Any) -> Any:
        if isinstance(item, dict):
            return {npu if key == cuda else key: value for key, value in item.items()}
        return npu if item == cuda else item

    @functools.wraps(original)
    def init(self: Any, *, activities: Any = None, **options: Any) -> None:
        if activities is not None:
            activities = [translated(item) for item in activities]
        original(self, activities=activities, **options)

    base.__init__ = init  # type: ignore[method-assign]


def _give_tensors_cuda() -> None:
    """Define ``cuda`` and ``is_cuda`` of tensors and storages."""
    tensor, storage = torch.Tensor, torch.UntypedStorage

    def cuda(self: Any, device: Any = None, non_blocking: bool = False, **kwargs: Any) -> Any:
        return self.npu(as_npu(device), non_blocking, **kwargs)

    def typed(self: torch.Tensor, dtype: Any = None, *args: Any, **kwargs: Any) -> Any:
        if isinstance(dtype, str):
            dtype = dtype.replace("torch.cuda.", "torch.npu.")
        return original_type(self, dtype, *args, **kwargs)

    original_type = tensor.type
    tensor.type = typed  # type: ignore[method-assign,assignment]
    for owner in (tensor, storage, torch.TypedStorage):
        owner.cuda = cuda  # type: ignore[method-assign,assignment,attr-defined]
        owner.is_cuda = owner.is_npu  # type: ignore[attr-defined,union-attr,method-assign]
    # An uninitialised parameter of a lazy module allows only these methods.
    UninitializedTensorMixin._allowed_methods.append(tensor.to)


def _default_tensor_type_setter() -> Callable[[Any], None]:
    original = torch.set_default_tensor_type

    def set_default_tensor_type(t: Any) -> None:
        """Set the default tensor type: an npu type for those of ``torch.cuda``."""
        name = t if isinstance(t, str) else f"{t.__module__}.{t.__name__}"
        kind = name.removeprefix("torch.cuda.").removeprefix("torch.npu.")
        if kind == name:
            original(t)
            torch.set_default_device(None)
        else:
            original(f"torch.{kind}")
            torch.set_default_device(_TO)

    return set_default_tensor_type


def _generator_type() -> type:
    original = torch.Generator

    class GeneratorType(type):
        def __call__(cls, device: Any = "cpu") -> torch.Generator:
            return original(device=as_npu(device))

        def __instancecheck__(cls, value: object) -> bool:
            return isinstance(value, original)

    return GeneratorType("Generator", (), {"__module__": "torch", "__doc__": original.__doc__})
