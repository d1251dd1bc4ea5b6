"""One-node models, and how a converted file is compared with what onnxruntime computes of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnxruntime_npu.converters import ConversionReport, convert

MICROSOFT = "com.microsoft"
PROVIDERS = ("NPUExecutionProvider", "CPUExecutionProvider")
_TYPES = {
    np.dtype(np.float32): TensorProto.FLOAT,
    np.dtype(np.float16): TensorProto.FLOAT16,
    np.dtype(np.int32): TensorProto.INT32,
    np.dtype(np.int64): TensorProto.INT64,
    np.dtype(np.bool_): TensorProto.BOOL,
}


# Float32 sums in another order, 1e-5 of the largest value; float16 results are rounded once by us
# and up to three times by kernels of several steps, 2e-3.
TOLERANCE = {np.float32: 1e-5, np.float16: 2e-3}
DTYPES = pytest.mark.parametrize("dtype", [np.float32, np.float16])


def normal(*shape, dtype=np.float32, scale=1.0, seed=3):
    return (np.random.default_rng(seed).standard_normal(shape) * scale).astype(dtype)


def tables(length, half, dtype=np.float32):
    """Return cosines and sines of rotary embeddings, [length, half]."""
    angles = np.arange(length)[:, None] * 0.3 ** np.arange(half)[None]
    return np.cos(angles).astype(dtype), np.sin(angles).astype(dtype)


def model_of(
    nodes: list[onnx.NodeProto],
    inputs: dict[str, np.ndarray],
    outputs: dict[str, np.dtype],
    weights: dict[str, np.ndarray] | None = None,
    *,
    opset: int = 21,
) -> onnx.ModelProto:
    """Return a model whose inputs have the shapes of the arrays."""
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info(n, _TYPES[v.dtype], v.shape) for n, v in inputs.items()],
        [helper.make_tensor_value_info(n, _TYPES[np.dtype(t)], None) for n, t in outputs.items()],
        [numpy_helper.from_array(value, name) for name, value in (weights or {}).items()],
    )
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid(MICROSOFT, 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def run(model: Any, provider: str, inputs: dict[str, np.ndarray]) -> list[np.ndarray]:
    source = model.SerializeToString() if isinstance(model, onnx.ModelProto) else str(model)
    return onnxruntime.InferenceSession(source, providers=[provider]).run(None, inputs)


def converted(model: onnx.ModelProto, folder: Path) -> tuple[ConversionReport, Path]:
    path = folder / "converted.onnx"
    return convert(model, path), path


def check(
    model: onnx.ModelProto,
    folder: Path,
    inputs: dict[str, np.ndarray],
    nodes: dict[str, int],
    tolerance: float,
    reference: onnx.ModelProto | None = None,
) -> ConversionReport:
    """Convert, expect these fused nodes, and compare with onnxruntime's own kernels.

    They run the model, or another one that means the same where they have not all of it.
    """
    report, path = converted(model, folder)
    fused = {name: n for name, n in report.nodes.items() if name.startswith("npu::")}
    assert fused == {f"npu::{name}": n for name, n in nodes.items()}, report
    assert not any(name.startswith(MICROSOFT) for name in report.nodes)
    assert report.without_body == []
    expected = run(model if reference is None else reference, PROVIDERS[1], inputs)
    for provider in PROVIDERS:
        for actual, wanted in zip(run(path, provider, inputs), expected, strict=True):
            assert actual.dtype == wanted.dtype and actual.shape == wanted.shape
            np.testing.assert_allclose(
                actual.astype(np.float32),
                wanted.astype(np.float32),
                rtol=0,
                atol=tolerance * max(1.0, float(np.abs(wanted).max(initial=0))),
                err_msg=provider,
            )
    return report
