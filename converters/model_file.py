"""Reading and writing ONNX files, whose weights stay on disk until they are written."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import onnx
import onnx_ir as ir
from onnxruntime_npu.errors import ArgumentError, ExportError
from onnxruntime_npu.onnx_models.node_groups import DOMAIN, SCALED_ROW_ATTENTION, SCALED_ROWS
from onnxruntime_npu.onnx_models.saving import save
from onnxruntime_npu.onnx_models.staging import staged
from onnxruntime_npu.session.ort_format import is_ort_format

from .defaults import drop_constant_inputs
from .maps import put_maps, take_maps
from .opsets import match_opset, raise_opset
from .sparse import make_dense

_ALIAS = "ai.onnx"  # of ONNX's domain, ""
_IR_VERSION = 8  # of ONNX's format, which opset 18 came with; the first with functions
_MAPS = "maps"  # among what is known of a model: those that are its outputs
# What the exporter has joined stays, but for products, whose weights a scheme has to find.
_KEPT = {(DOMAIN, name) for name in ("PagedSelfAttention", SCALED_ROWS, SCALED_ROW_ATTENTION)}


def read(path_or_model: str | Path | onnx.ModelProto | ir.Model) -> ir.Model:
    """Return the model, at opset 18 or later, with functions of other domains inlined.

    A given model is left unchanged.

    Raises ArgumentError for a missing file, ExportError for one that is no ONNX model.
    """
    from onnx_ir.passes.common import LiftConstantsToInitializersPass

    model = _load(path_or_model)
    if _ALIAS in model.opset_imports:  # onnx_ir knows it as the domain of nodes only
        model.opset_imports[""] = model.opset_imports.pop(_ALIAS)
    if not model.opset_imports.get("", 0):
        raise ExportError("expected a model that imports ONNX's operators, got none")
    drop_constant_inputs(model)
    inline_functions(model, _is_foreign)
    LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0)(model)
    raise_opset(model)
    model.ir_version = max(model.ir_version, _IR_VERSION)
    return model


def inline_functions(
    model: ir.Model, criteria: Callable[[ir.Function], bool] | None = None
) -> None:
    """Replace calls of functions, all unless ``criteria`` chooses, by the functions' nodes.

    Raises ExportError for functions that onnx_ir cannot inline.
    """
    from onnx_ir.passes.common import InlinePass

    for called in model.functions.values():
        if criteria is None or criteria(called):
            match_opset(called, model.opset_imports[""])
    calls = [*model.graph.all_nodes()]
    calls += [node for function in model.functions.values() for node in function.all_nodes()]
    for node in calls:
        function = model.functions.get(node.op_identifier())
        # A call may leave its last outputs out; the pass needs all of them.
        if function is not None and len(node.outputs) < len(function.outputs):
            node.resize_outputs(len(function.outputs))
    try:
        InlinePass(criteria=criteria)(model)
    except ValueError as error:  # of what onnx_ir has not, such as attributes that are graphs
        raise ExportError(f"cannot inline the functions of the model: {error}") from error


def _is_foreign(function: ir.Function) -> bool:
    return function.domain != "npu" and (function.domain, function.name) not in _KEPT


def _load(path_or_model: str | Path | onnx.ModelProto | ir.Model) -> ir.Model:
    if isinstance(path_or_model, ir.Model):
        return path_or_model.clone()
    if isinstance(path_or_model, onnx.ModelProto):
        return _from_proto(path_or_model)
    path = Path(path_or_model)
    if path.is_dir():
        raise ArgumentError(f"expected an ONNX file to read, got the directory {path}")
    if not path.is_file():
        raise ArgumentError(f"no such file: {path}")
    if is_ort_format(str(path), None):
        raise ExportError(
            f"expected an ONNX model, got one in onnxruntime's own format, {path}: let a session "
            "with SessionOptions.optimized_model_filepath store it as ONNX"
        )
    try:
        model = _from_proto(onnx.load(path, load_external_data=False))
        ir.external_data.set_base_dir(model.graph, path.parent)
        return model
    except (OSError, ExportError):
        raise
    except Exception as error:  # of protobuf and onnx_ir
        reason = str(error).strip().splitlines() or [type(error).__name__]
        raise ExportError(f"{path} is no ONNX model: {reason[0]}") from error


def _from_proto(proto: onnx.ModelProto) -> ir.Model:
    plain, maps = take_maps(make_dense(proto))
    model = ir.from_proto(plain)
    model.meta[_MAPS] = maps
    return model


def check_target(model: ir.Model, out: str | Path, source: object) -> None:
    """Raise ArgumentError if ``out`` cannot be written without harm to what is read."""
    out = Path(out)
    if not out.name or out.is_dir():
        raise ArgumentError(f"expected a file to write to, got the directory {out}")
    if not out.parent.is_dir():
        raise ArgumentError(f"no such directory to write to: {out.parent}")
    if isinstance(source, (str, Path)) and out.exists() and os.path.samefile(source, out):
        raise ArgumentError(f"expected another file to write to than the one read, {out}")
    for written in (out, _data_of(out)):
        if written.exists() and any(os.path.samefile(read, written) for read in _data_files(model)):
            raise ArgumentError(
                f"expected another name to write to: weights are read from {written}"
            )


def _data_files(model: ir.Model) -> set[str]:
    """Return the files that weights are read from, also those of branches and loops."""
    return {
        str(value.const_value.path)
        for graph in model.graphs()
        for value in graph.initializers.values()
        if isinstance(value.const_value, ir.ExternalTensor)
    }


def _data_of(out: Path) -> Path:
    return out.with_name(f"{out.name}.data")


def write(model: ir.Model, out: str | Path) -> dict[str, int]:
    """Write the model and its weights in ``<out>.data``; return the sizes of both by name."""
    out = Path(out)
    data = _data_of(out)
    with staged(out.parent, out.name) as folder:
        save(model, folder / out.name, data.name)
        if maps := model.meta.get(_MAPS):
            proto = onnx.load(folder / out.name, load_external_data=False)
            put_maps(proto, maps)
            (folder / out.name).write_bytes(proto.SerializeToString())
    return {path.name: path.stat().st_size for path in (out, data) if path.exists()}
