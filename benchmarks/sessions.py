"""Sessions on graphs that a benchmark creates. Imported by the engines' processes only."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import ml_dtypes
import numpy as np
import onnxruntime as ort
import onnxruntime_npu  # noqa: F401  (registers the provider)
from onnx import GraphProto, helper


def numpy_dtype(name: str) -> np.dtype[Any]:
    """The NumPy dtype of float32, float16 or bfloat16."""
    return np.dtype(ml_dtypes.bfloat16 if name == "bfloat16" else name)


def session_of(
    graph: GraphProto,
    provider: str,
    threads: int = 0,
    provider_options: Mapping[str, str] | None = None,
) -> ort.InferenceSession:
    """A session on one provider; threads: number of onnxruntime's threads (0: its default)."""
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("npu", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3
    providers = [(provider, dict(provider_options or {}))]
    return ort.InferenceSession(model.SerializeToString(), options, providers=providers)
