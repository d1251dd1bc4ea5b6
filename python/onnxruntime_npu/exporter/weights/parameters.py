"""Exchanges the parameters of modules, also for weights that are read when they are needed."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping

import torch
from torch import nn

from .lazy_weight import LazyWeight

_ROWS_ELEMENTS = 1 << 22  # of temporaries
Replace = Callable[[str, torch.Tensor], torch.Tensor]


def replace_parameters(module: nn.Module, replace: Replace) -> None:
    """Put ``replace(name, parameter)`` in the place of each parameter, in place.

    A parameter of several names is replaced once and stays that of all of them.
    """
    made: dict[nn.Parameter, nn.Parameter] = {}
    for name, parameter in list(module.named_parameters(remove_duplicate=False)):
        if parameter not in made:
            made[parameter] = nn.Parameter(replace(name, parameter), requires_grad=False)
        owner, _, attribute = name.rpartition(".")
        setattr(module.get_submodule(owner), attribute, made[parameter])


def as_lazy(parameter: torch.Tensor) -> torch.Tensor:
    """Return a floating-point parameter as a LazyWeight in float32, others on the CPU."""
    if isinstance(parameter, LazyWeight):
        return parameter
    if not parameter.is_floating_point():
        return parameter.detach().to("cpu")
    return LazyWeight.of(parameter).to(torch.float32)


def not_finite(weight: torch.Tensor) -> int:
    """Return how many values of a weight are NaN or infinite."""
    value = weight.value_as_stored() if isinstance(weight, LazyWeight) else weight.detach()
    rows = value.reshape(-1) if value.dim() < 2 else value
    step = max(1, _ROWS_ELEMENTS * len(rows) // max(rows.numel(), 1))
    count = sum(int((~part.isfinite()).sum()) for part in rows.split(step))
    if isinstance(weight, LazyWeight):
        weight.free()
    return count


@contextlib.contextmanager
def taken_weights(module: nn.Module) -> Iterator[dict[str, LazyWeight]]:
    """Replace every LazyWeight of a module by memory that is reserved, but not used; yield them.

    They are back at the end: other modules may share them. Tracing needs shapes and dtypes only.
    A weight of several names is yielded under each. Buffers, such as integers, are weights, too.
    """
    buffers = {
        name: buffer
        for name, buffer in module.named_buffers(remove_duplicate=False)
        if isinstance(buffer, LazyWeight)
    }
    weights: dict[str, LazyWeight] = {
        name: parameter
        for name, parameter in module.named_parameters(remove_duplicate=False)
        if isinstance(parameter, LazyWeight)
    }
    weights |= buffers

    def reserved(name: str, parameter: torch.Tensor) -> torch.Tensor:
        if name not in weights:
            return parameter.detach()
        return torch.empty_strided(parameter.size(), parameter.stride(), dtype=parameter.dtype)

    if not weights:
        yield weights
        return
    replace_parameters(module, reserved)
    _set_buffers(module, {name: reserved(name, buffer) for name, buffer in buffers.items()})
    try:
        yield weights
    finally:
        replace_parameters(module, lambda name, p: weights.get(name, p.detach()))
        _set_buffers(module, buffers)


def _set_buffers(module: nn.Module, buffers: Mapping[str, torch.Tensor]) -> None:
    for name, buffer in buffers.items():
        owner, _, attribute = name.rpartition(".")
        setattr(module.get_submodule(owner), attribute, buffer)
