"""Operators of torch that ONNX can express and torch.onnx does not translate."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import onnxscript
import torch


def torch_translations() -> dict[Callable[..., Any], Callable[..., Any]]:
    """Return their translations."""
    return {torch.ops.aten.sort.stable: _stable_sort}


def _stable_sort(
    self: Any, *, stable: bool | None = None, dim: int = -1, descending: bool = False
) -> Any:
    """Emit TopK of all elements: of equal ones, the one with the lower index comes first."""
    emit: Any = onnxscript.values.Opset("", 18)
    if len(self.shape) == 0:
        return emit.Identity(self), emit.Constant(value_int=0)
    size = emit.Shape(self)
    count = emit.Gather(size, emit.Constant(value_ints=[dim]), axis=0)
    return tuple(emit.TopK(self, count, axis=dim, largest=int(descending), sorted=1))
