"""Models in onnxruntime's own format: read by way of ONNX, with copies between NPU and CPU."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import onnxruntime_npu
import pytest
from onnx import TensorProto, helper
from onnxruntime.capi.onnxruntime_pybind11_state import Fail
from provider_models import CPU, NPU, left_to_the_cpu, make_model, npu_session, providers_of

FLOAT = TensorProto.FLOAT
SIZE = 512
LATER = 6


def store(model: bytes, path: Path, provider: str = CPU) -> Path:
    options = ort.SessionOptions()
    options.log_severity_level = 3
    options.optimized_model_filepath = str(path)
    options.add_session_config_entry("session.save_model_format", "ORT")
    ort.InferenceSession(model, options, providers=[provider])
    return path


def alternating_model() -> bytes:
    """Return a model in which the NPU, busy with products, reads results of the CPU late."""
    names = ["x", "a", "b", "c"]
    nodes = [
        helper.make_node("MatMul", [x, "x"], [y], f"to_{y}") for x, y in itertools.pairwise(names)
    ]
    for i in range(LATER):
        left = left_to_the_cpu(f"x{i}", f"normed{i}")
        left.name += str(i)
        before = f"s{i - 1}" if i else "c"
        nodes += [left, helper.make_node("Add", [before, f"normed{i}"], [f"s{i}"])]
    inputs = [(name, FLOAT, ["n", SIZE]) for name in ("x", *(f"x{i}" for i in range(LATER)))]
    return make_model(nodes, inputs, [(f"s{LATER - 1}", FLOAT, ["n", SIZE])])


@pytest.mark.parametrize("writer", [CPU, NPU])
@pytest.mark.parametrize("given_as", ["path", "bytes"])
def test_what_the_cpu_computes_is_kept_until_the_npu_reads_it(tmp_path, given_as, writer):
    path = store(alternating_model(), tmp_path / "model.ort", writer)
    session = npu_session(str(path) if given_as == "path" else path.read_bytes())
    assert providers_of(session)["to_c"] == NPU and CPU in providers_of(session).values()
    generator = np.random.default_rng(0)
    inputs = {
        value.name: generator.standard_normal((SIZE, SIZE)).astype(np.float32)
        for value in session.get_inputs()
    }
    inputs["x"] /= SIZE**0.5
    reference = ort.InferenceSession(alternating_model(), providers=[CPU])
    (expected,) = reference.run(None, inputs)
    for _ in range(3):
        (actual,) = session.run(None, inputs)
        # Sums of float32 in another order, of results below 1.
        np.testing.assert_allclose(actual, expected, rtol=0, atol=4e-6)


def test_values_are_copied_between_the_npu_and_the_cpu(tmp_path):
    path = store(alternating_model(), tmp_path / "model.ort")
    options = ort.SessionOptions()
    options.enable_profiling = True
    options.profile_file_prefix = str(tmp_path / "profile")
    session = npu_session(str(path), options)
    session.run(
        None, {value.name: np.ones((SIZE, SIZE), np.float32) for value in session.get_inputs()}
    )
    events = json.loads(Path(session.end_profiling()).read_text())
    types = {event.get("args", {}).get("op_name") for event in events}
    assert any(name and name.startswith("Memcpy") for name in types)


def test_the_options_of_the_session_stay(tmp_path):
    path = store(alternating_model(), tmp_path / "model.ort")
    level = ort.GraphOptimizationLevel.ORT_ENABLE_BASIC
    options = ort.SessionOptions()
    options.graph_optimization_level = level
    options.optimized_model_filepath = str(tmp_path / "stored.onnx")
    options.add_session_config_entry("session.load_model_format", "ORT")
    npu_session(str(path), options)
    assert onnx.load(tmp_path / "stored.onnx").graph.node
    assert options.optimized_model_filepath == str(tmp_path / "stored.onnx")
    assert options.graph_optimization_level == level
    assert options.get_session_config_entry("session.load_model_format") == "ORT"


def test_nodes_are_fused(tmp_path):
    nodes = [
        helper.make_node("Sigmoid", ["x"], ["s"], "sigmoid"),
        helper.make_node("Mul", ["x", "s"], ["y"], "product"),
    ]
    model = make_model(nodes, [("x", FLOAT, [2, 64])], [("y", FLOAT, [2, 64])])
    basic = store(model, tmp_path / "model.ort", NPU)
    rows = onnxruntime_npu.assignment(npu_session(str(basic)))
    assert [row["fused_into"] for row in rows] == ["Swish", "Swish"]


def test_a_broken_file_is_refused(tmp_path):
    path = store(alternating_model(), tmp_path / "model.ort")
    content = path.read_bytes()
    with pytest.raises(Fail, match="ORT model verification failed"):
        npu_session(content[: len(content) // 2])
