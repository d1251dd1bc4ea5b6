"""Models in onnxruntime's own format (``.ort``), which sessions of the NPU read by way of ONNX.

onnxruntime adds the copies between the memory of a provider and that of the CPU when it loads an
ONNX model. To one in its own format it adds none: the NPU would read results of the CPU when their
memory holds other values already. So another session stores the model as ONNX first.
"""

from __future__ import annotations

import contextlib
import tempfile
from pathlib import Path

from onnxruntime import GraphOptimizationLevel, InferenceSession, SessionOptions

from .provider_library import get_ep_name

STORING_KEY = "npu.storing"  # marks the session that stores the model
LOADING_KEY = "session.load_model_format"
_IDENTIFIER = b"ORTM"
_END = 8  # of the identifier, behind the offset that a flatbuffer begins with


def is_ort_format(path: str | None, content: bytes | None) -> bool:
    """Return whether a model is in onnxruntime's own format."""
    if content is None and path:
        with (
            contextlib.suppress(OSError),
            open(path, "rb") as file,
        ):  # a session tells what is wrong
            content = file.read(_END)
    return content is not None and bytes(content[:_END]).endswith(_IDENTIFIER)


def as_onnx(path: str | None, content: bytes | None, log_severity_level: int) -> bytes:
    """Return the same model in ONNX, with the nodes that it has."""
    options = SessionOptions()
    options.log_severity_level = log_severity_level
    options.graph_optimization_level = GraphOptimizationLevel.ORT_DISABLE_ALL
    options.add_session_config_entry(STORING_KEY, "1")
    with tempfile.TemporaryDirectory() as folder:
        stored = Path(folder) / "model.onnx"
        options.optimized_model_filepath = str(stored)
        InferenceSession(path or content, options, providers=[get_ep_name()])
        return stored.read_bytes()
