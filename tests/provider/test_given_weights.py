"""Weights that session options bring along instead of the model's file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper
from provider_models import make_model, npu_session, providers_of

FLOAT = TensorProto.FLOAT


@pytest.fixture
def model(rng, tmp_path) -> bytes:
    """y = x @ w, whose weight is in a file beside it."""
    weight = rng.standard_normal((64, 48), dtype=np.float32)
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"], "matmul")]
    content = make_model(nodes, [("x", FLOAT, ["n", 64])], [("y", FLOAT, ["n", 48])], {"w": weight})
    path = tmp_path / "model.onnx"
    onnx.save(
        onnx.load_from_string(content),
        path,
        save_as_external_data=True,
        location="weights.bin",
        size_threshold=0,
    )
    return path.read_bytes()


def check(session: ort.InferenceSession, weight: np.ndarray, rng: np.random.Generator) -> None:
    assert set(providers_of(session).values()) == {"NPUExecutionProvider"}
    for rows in (1, 40):
        x = rng.standard_normal((rows, 64), dtype=np.float32)
        # Sums of 64 products of float32 in another order.
        np.testing.assert_allclose(session.run(None, {"x": x})[0], x @ weight, rtol=1e-5, atol=2e-5)


def test_external_initializers_of_sessions_stay_apart(model, rng):
    weights = [rng.standard_normal((64, 48), dtype=np.float32) for _ in range(2)]
    values = [ort.OrtValue.ortvalue_from_numpy(weight) for weight in weights]
    sessions = []
    for value in values:
        options = ort.SessionOptions()
        options.add_external_initializers(["w"], [value])
        sessions.append(npu_session(model, options))
    for session, weight in zip(sessions, weights, strict=True):
        check(session, weight, rng)


def test_files_of_weights_in_memory_of_sessions_stay_apart(model, rng):
    weights = [rng.standard_normal((64, 48), dtype=np.float32) for _ in range(2)]
    contents = [weight.tobytes() for weight in weights]
    sessions = []
    for content in contents:
        options = ort.SessionOptions()
        options.add_external_initializers_from_files_in_memory(
            ["weights.bin"], [content], [len(content)]
        )
        sessions.append(npu_session(model, options))
    for session, weight in zip(sessions, weights, strict=True):
        check(session, weight, rng)


def test_a_folder_of_weights_is_read_at_each_session(model, rng, tmp_path: Path):
    options = ort.SessionOptions()
    options.add_session_config_entry(
        "session.model_external_initializers_file_folder_path", str(tmp_path)
    )
    for _ in range(2):
        weight = rng.standard_normal((64, 48), dtype=np.float32)
        (tmp_path / "weights.bin").write_bytes(weight.tobytes())
        check(npu_session(model, options), weight, rng)
