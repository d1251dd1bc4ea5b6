"""Compiled models with a file of weights, as onnxruntime writes them while a session is created.

Where a session names that file, onnxruntime moves every constant to it. Its inference of shapes
reads constants such as the axes of an Unsqueeze or the shape of a Reshape, and only those inside a
model: it could not load what it has written. ``onnxruntime.ModelCompiler`` has a threshold for
this, which no entry of the session's configuration sets
(https://github.com/microsoft/onnxruntime/pull/24207).
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import onnx

_WEIGHTS_KEY = "ep.context_model_external_initializers_file_name"
_SMALL = 1024  # bytes; the threshold of ModelCompiler unless it is given another one


def to_be_written(entry: Callable[[str], str], model_path: str | None) -> Path | None:
    """Return where onnxruntime will write a compiled model with a file of weights, if it will.

    Args:
        entry: the session's configuration, empty where it has no entry.
        model_path: the model to be compiled; None if it comes from memory.
    """
    if entry("ep.context_enable") != "1" or not entry(_WEIGHTS_KEY):
        return None
    given = entry("ep.context_file_path")
    if not given and not model_path:
        return None
    path = Path(given or os.path.splitext(str(model_path))[0] + "_ctx.onnx")
    return None if path.exists() else path  # which onnxruntime refuses to overwrite


def keep_small_constants(path: Path) -> None:
    """Move the small constants of a compiled model from its file of weights into the model.

    Without the package onnx they stay there, with a warning.
    """
    try:
        import onnx
        from onnx.external_data_helper import load_external_data_for_tensor, uses_external_data
    except ModuleNotFoundError:
        warnings.warn(
            f"{path} has all constants in its file of weights, from which onnxruntime reads no "
            "axes or shapes: if it does not load, compile it again after pip install onnx, or by "
            "onnxruntime.ModelCompiler",
            stacklevel=2,
        )
        return

    model = onnx.load(path, load_external_data=False)
    moved = [
        tensor
        for tensor in model.graph.initializer
        if uses_external_data(tensor) and _stored_bytes(tensor) <= _SMALL
    ]
    if not moved:
        return
    for tensor in moved:
        load_external_data_for_tensor(tensor, str(path.parent))
        tensor.data_location = onnx.TensorProto.DEFAULT
        del tensor.external_data[:]

    unfinished = path.with_name(f"{path.name}.unfinished.{os.getpid()}")
    try:
        onnx.save(model, unfinished, format="protobuf")
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)


def _stored_bytes(tensor: onnx.TensorProto) -> int:
    return next((int(e.value) for e in tensor.external_data if e.key == "length"), _SMALL + 1)
