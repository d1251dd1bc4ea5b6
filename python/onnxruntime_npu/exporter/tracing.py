"""From a torch module to an ONNX graph with bare ``npu::`` nodes."""

from __future__ import annotations

import contextlib
import functools
import io
import logging
import traceback
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import onnx_ir as ir
import onnxscript.optimizer
import torch
from onnx_ir import tensor_adapters
from torch.fx.experimental.symbolic_shapes import (
    GuardOnDataDependentSymNode,
    free_unbacked_symbols,
    is_concrete_int,
)

from ..errors import ExportError
from ..onnx_models import saving
from ..onnx_models.graph_passes import count_nodes, name_dimensions, tidy
from ..onnx_models.join_groups import join_groups
from ..opdef.attach import attach_function_bodies
from ..opdef.translation import translation_table
from ..progress import step
from .bfloat16 import upcast
from .caches import scaled_rows
from .proof import Findings
from .report import ExportReport
from .torch_ops import torch_translations
from .traced_ops import traced_translations
from .weights.lazy_weight import LazyWeight
from .weights.parameters import not_finite, taken_weights

_TORCH = Path(torch.__file__).parent
_LEAST = 2  # of a size that varies, to torch.export
_ADVICE = "The error above occurred when calling torch.export"


class Traced(NamedTuple):
    """A traced program, and the weights that are not in it: it has their shapes only."""

    program: torch.export.ExportedProgram
    weights: dict[str, LazyWeight]


def trace(
    module: torch.nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any] | None,
    dynamic_shapes: Any,
) -> Traced:
    """Trace the module, without its weights if they are lazy.

    Raises ExportError with torch's reason.
    """
    try:
        with (
            taken_weights(module) as weights,
            torch.no_grad(),
            step("Tracing"),
            _quiet(),
            _uncached(),
        ):
            program = torch.export.export(
                module, args, kwargs, dynamic_shapes=dynamic_shapes, strict=False
            )
        return Traced(program, weights)
    except Exception as error:
        raise ExportError(
            f"torch.export cannot trace {type(module).__name__}: {_reason(error)}"
        ) from error


def to_onnx(
    traced: Traced,
    opset: int,
    input_names: list[str] | None = None,
    output_names: list[str] | None = None,
    dynamic_shapes: Any = None,
    *,
    dtype: torch.dtype | None = None,
) -> ir.Model:
    """Translate a traced program; ``npu::`` operators become bare nodes without bodies.

    dtype: that of the weights, if it is known.
    """
    try:
        with step("Translating to ONNX"), _quiet(), _uncached():
            exported: Any = torch.onnx.export(
                traced.program,
                (),
                input_names=input_names,
                output_names=output_names,
                dynamic_shapes=dynamic_shapes,  # for the names of dimensions
                opset_version=opset,
                custom_translation_table=_translations(),
                dynamo=True,
                optimize=False,
                verbose=False,
            )
            _put_weights(exported.model.graph, traced)
            # Shape inference would take half the time and drop types that it cannot infer.
            onnxscript.optimizer.optimize_ir(exported.model, onnx_shape_inference=False)
            _keep_constants(exported.model.graph)
    except Exception as error:
        raise ExportError(f"torch.onnx cannot translate the program: {_cause(error)}") from error
    upcast(exported.model.graph, opset, everywhere=dtype not in (None, torch.bfloat16))
    return exported.model


def onnx_model_of(
    part: Any,
    example: tuple[torch.Tensor, ...],
    opset: int,
    *,
    listed_from: int | None = None,
    dtype: torch.dtype | None = None,
    longest: int = 0,
) -> ir.Model:
    """Trace a module, translate and tidy up; the ``npu::`` nodes have no bodies yet.

    Args:
        part: a module that takes tensors and has input_names, output_names and dimensions, in
            which a size that varies is a name.
        example: tensors to trace with.
        opset: ONNX opset of the model.
        listed_from: index of the first input that is in a list, which is the last argument; by
            default the forward pass takes ``*inputs``.
        dtype: that of the weights, if it is known.
        longest: number of tokens up to which a size that varies must not be bounded.
    """
    shapes = part.dimensions()
    dynamic = [
        {i: torch.export.Dim.AUTO for i, size in enumerate(shapes[name]) if isinstance(size, str)}
        for name in part.input_names
    ]
    if listed_from is None:
        grouped: tuple[Any, ...] = (tuple(dynamic),)
    else:
        grouped = (*dynamic[:listed_from], dynamic[listed_from:])
    program = trace(part, example, None, grouped)
    _check_dimensions(program.program, part.input_names, shapes)
    _check_bounds(program.program, longest)
    names = list(part.input_names), list(part.output_names)
    model = to_onnx(program, opset, *names, dtype=dtype)
    name_dimensions(model.graph, shapes)
    tidy(model.graph)
    return model


def _check_dimensions(
    program: torch.export.ExportedProgram, names: Sequence[str], shapes: dict[str, Any]
) -> None:
    """Raise ExportError if the code of a model has fixed a size that varies to the example's."""
    nodes = {node.name: node for node in program.graph.nodes}
    for name, given in zip(names, program.graph_signature.user_inputs, strict=True):
        for size, wanted in zip(nodes[str(given)].meta["val"].shape, shapes[name], strict=True):
            if isinstance(wanted, str) and is_concrete_int(size):
                raise ExportError(
                    f"{name} expected {wanted!r} of any size, got {size} only: the model's code "
                    f"reads it as a number, as len(x) does in the place of x.shape[0]"
                )


def _check_bounds(program: torch.export.ExportedProgram, longest: int) -> None:
    """Raise ExportError if the code of a model computes rows below ``longest`` in its own way.

    What was traced would then hold for rows as short as the example. A bound is that of a size
    beside others, which are at least two.
    """
    for symbol, bounds in program.range_constraints.items():
        if free_unbacked_symbols(symbol):  # a value of a tensor, not a size
            continue
        if bounds.upper < longest - _LEAST:
            raise ExportError(
                f"expected a forward pass that computes rows of up to {longest} tokens in one way, "
                f"got one that does so up to {bounds.upper + _LEAST}"
            )


def _put_weights(graph: ir.Graph, traced: Traced) -> None:
    """Give initializers the weights that are not in the program; they are computed to be written.

    Before anything folds constants: what was traced has no values.
    """
    empty = {traced.program.state_dict[name].data_ptr() for name in traced.weights}
    for name, initializer in graph.initializers.items():
        given: Any = initializer.const_value
        if name in traced.weights:
            initializer.const_value = ir.LazyTensor(
                functools.partial(_written, name, traced.weights[name]),
                given.dtype,
                given.shape,
                name=name,
            )
        elif isinstance(given.raw, LazyWeight) or (given.size and given.raw.data_ptr() in empty):
            raise RuntimeError(f"expected a weight of the model, got the initializer {name}")


def _keep_constants(graph: ir.Graph) -> None:
    """Make initializers of constants that nodes read and the graph does not have.

    The optimizer names the bounds of a Clip after what is clipped, and a second Clip of it puts its
    own bounds in the place of the first one's.
    """
    known = {*graph.initializers.values(), *graph.inputs}
    for node in graph:
        for value in node.inputs:
            if value is None or value in known or value.producer() or value.const_value is None:
                continue
            value.name = f"{value.name}_of_{node.name}"
            graph.register_initializer(value)
            known.add(value)


def _written(name: str, weight: LazyWeight) -> ir.TensorProtocol:
    value = weight.value().contiguous()
    if not_finite(value):
        raise ExportError(
            f"{name} has values that {weight.dtype} cannot hold: pass dtype='bfloat16' or 'float32'"
        )
    return tensor_adapters.TorchTensor(value, name=name)


def _reason(error: BaseException) -> str:
    """Return torch's reason in one line, without its advice on how to debug torch.export."""
    text = str(error)
    if not isinstance(error, GuardOnDataDependentSymNode):
        return " ".join(text.partition(_ADVICE)[0].split()) or type(error).__name__
    frames = traceback.extract_tb(error.__traceback__)
    code = [frame for frame in frames if not Path(frame.filename).is_relative_to(_TORCH)][-1]
    sentence = text.partition(" (unhinted")[0]
    return (
        f"{sentence}, at {code.filename}:{code.lineno} ({code.line}): expected code that does the "
        f"same for all values of its tensors, got a branch, a loop or a number that depends on "
        f"them; use torch.where or torch.cond"
    )


def _cause(error: BaseException) -> str:
    """Return the cause of torch's error in one line, without the code that torch made itself.

    The error's own message says how to report a bug in torch.
    """
    while error.__cause__ is not None:
        error = error.__cause__
    reason = str(error).partition("\n\nWhile executing")[0]
    return " ".join(reason.split()) or type(error).__name__


def _translations() -> dict[Any, Any]:
    table = translation_table()
    traced = traced_translations(table) | scaled_rows.translations()
    return {**table, **traced, **torch_translations()}


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Suppress messages on optional packages, deprecations, progress and what is not folded.

    Suppressed are also graphs, which torch prints as far as it came when it fails.
    """
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "torch.fx", "onnxscript")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with (
            warnings.catch_warnings(),
            contextlib.redirect_stdout(io.StringIO()),
            contextlib.redirect_stderr(io.StringIO()),
        ):
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def _uncached() -> contextlib.AbstractContextManager[Any]:
    """Let torch compute traced results anew: with open sizes its cache costs more than it saves.

    An export takes a tenth less time so.
    """
    return torch._dynamo.config.patch(fake_tensor_cache_enabled=False)


def finish(model: ir.Model, path: Path, report: ExportReport, findings: Findings) -> None:
    """Attach function bodies, write the file, and fill the report with its contents."""
    report.without_body = attach_function_bodies(model)
    scaled_rows.attach_functions(model)
    graph = model.graph
    report.nodes = count_nodes(graph)
    join_groups(model)
    # Those that have to be given: others are initializers, too.
    report.inputs = [_signature(value) for value in graph.inputs if value.const_value is None]
    report.outputs = [_signature(value) for value in graph.outputs]
    report.add_findings(findings)
    for op_type in report.without_body:
        report.warnings.append(f"{op_type} has no portable body: the file needs the NPU provider")
    model.producer_name, model.producer_version = (
        "onnxruntime-npu",
        report.versions["onnxruntime_npu"],
    )
    data = f"{path.name}.data"
    save(model, path, data)
    report.files = {p.name: p.stat().st_size for p in (path, path.with_name(data)) if p.exists()}


def save(model: ir.Model, path: Path, data: str) -> None:
    """Write the model, its weights in ``data``; frees each computed weight when it is written."""
    saving.save(model, path, data, _free)


def _free(tensor: Any) -> None:
    if isinstance(tensor, ir.LazyTensor) and isinstance(tensor.raw, functools.partial):
        tensor.raw.args[1].free()


def _signature(value: ir.Value) -> dict[str, Any]:
    shape = (
        [] if value.shape is None else [d if isinstance(d, int) else d.value for d in value.shape]
    )
    return {"name": value.name, "dtype": str(value.dtype).lower(), "shape": shape}
