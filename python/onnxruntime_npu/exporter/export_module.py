"""Exports any torch module that calls ``npu::`` operators."""

from __future__ import annotations

import copy
import time
from pathlib import Path
from typing import Any

import torch

from ..errors import ArgumentError, ExportError
from ..onnx_models import graph_passes
from ..onnx_models.staging import staged
from ..opdef import torch_library
from .arguments import DTYPES, check_opset
from .lost_writes import lost_writes
from .nested_values import nested_values, sizes_of_inputs
from .proof import Findings
from .report import ExportReport
from .tracing import finish, to_onnx, trace


def export(
    model: torch.nn.Module,
    args: tuple[Any, ...],
    path: str | Path,
    *,
    kwargs: dict[str, Any] | None = None,
    dynamic_shapes: Any = None,
    dtype: str | torch.dtype | None = None,
    opset: int | None = None,
) -> ExportReport:
    """Export a module; each ``npu::`` operator it calls becomes one node with a portable body.

    Nothing is replaced: all other operators are exported as standard ONNX. Arguments and results
    may be nested lists, tuples, dictionaries and dataclasses: their tensors become inputs and
    outputs in this order. Numbers, strings and None are constants of the file; complex tensors have
    a last axis of two floats. What the module writes to a buffer or an argument is kept only as far
    as it is returned; the report warns of the rest.

    Args:
        model: the module; a module in training mode is exported in that mode.
        args: positional example arguments.
        path: file to write; beyond ONNX's size limit all weights go to ``<path>.data``.
        kwargs: example keyword arguments.
        dynamic_shapes: as for ``torch.export.export``.
        dtype: float32, float16 or bfloat16: converts a copy of the module and the floating-point
            tensors in args and kwargs; None converts neither.
        opset: ONNX opset, 18 to 23; default 18.

    Returns the report, which is also written to ``<path>.report.json``.
    Raises ArgumentError for bad arguments, ExportError when the module cannot be exported.
    """
    started = time.monotonic()
    opset = check_opset(opset)
    if not isinstance(model, torch.nn.Module):
        raise ArgumentError(f"expected a torch.nn.Module, got {type(model).__name__}")
    if isinstance(model, torch.jit.ScriptModule):
        raise ArgumentError("expected a module of Python, got a ScriptModule: pass its original")
    if not isinstance(args, tuple):
        raise ArgumentError(f"expected args to be a tuple, got {type(args).__name__}")
    path = Path(path)
    if not path.parent.is_dir():
        raise ArgumentError(f"no such directory to write to: {path.parent}")
    torch_library.register()
    torch_dtype = _torch_dtype(dtype)
    if torch_dtype is not None:
        model, args, kwargs = _converted(model, args, kwargs, torch_dtype)
    report = ExportReport(
        model=type(model).__name__,
        architecture=type(model).__name__,
        opset=opset,
        dtype=None if torch_dtype is None else str(torch_dtype).removeprefix("torch."),
    )
    with nested_values(model, args, kwargs):
        traced = trace(model, args, kwargs, dynamic_shapes)
        named = sizes_of_inputs(model, args, kwargs, dynamic_shapes)
        onnx_model = to_onnx(traced, opset, dynamic_shapes=named)
        report.warnings += lost_writes(traced.program)
    if not onnx_model.graph.outputs:
        raise ExportError(f"cannot export {type(model).__name__}: it returns no tensors")
    graph_passes.tidy(onnx_model.graph)
    graph_passes.name_inputs_as_given(onnx_model.graph)
    with staged(path.parent, path.name) as folder:
        finish(onnx_model, folder / path.name, report, Findings())
        report.exported(started)
        report.write(folder / f"{path.name}.report.json")
    return report


def _torch_dtype(dtype: str | torch.dtype | None) -> torch.dtype | None:
    if dtype is None:
        return None
    named = getattr(torch, dtype, None) if isinstance(dtype, str) else dtype
    if named not in DTYPES.values():
        raise ArgumentError(f"expected dtype float32, float16 or bfloat16, got {dtype!r}")
    return named


def _converted(
    model: torch.nn.Module, args: Any, kwargs: Any, dtype: torch.dtype
) -> tuple[torch.nn.Module, Any, Any]:
    def convert(value: Any) -> Any:
        floating = isinstance(value, torch.Tensor) and value.is_floating_point()
        return value.to(dtype) if floating else value

    converted = torch.utils._pytree.tree_map(convert, (args, kwargs))
    return copy.deepcopy(model).to(dtype), *converted
