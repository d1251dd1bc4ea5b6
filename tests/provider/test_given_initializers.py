"""SessionOptions.add_initializer: weights that replace those of the model, on the NPU, too."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper
from provider_models import CPU, NPU, left_to_the_cpu, make_model

FLOAT = TensorProto.FLOAT
X = np.arange(6, dtype=np.float32).reshape(2, 3)
OWN = {"w": np.ones((3, 4), np.float32), "b": np.ones(4, np.float32)}
GIVEN = {"w": np.arange(12, dtype=np.float32).reshape(3, 4), "b": np.full(4, 7, np.float32)}


def product() -> bytes:
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["m"], "product"),
        helper.make_node("Add", ["m", "b"], ["y"], "sum"),
    ]
    return make_model(nodes, [("x", FLOAT, [2, 3])], [("y", FLOAT, [2, 4])], OWN)


def giving(*names: str) -> tuple[ort.SessionOptions, list[ort.OrtValue]]:
    options = ort.SessionOptions()
    options.log_severity_level = 3  # onnxruntime warns of a value that it cannot use by itself
    values = [ort.OrtValue.ortvalue_from_numpy(GIVEN[name]) for name in names]
    for name, value in zip(names, values, strict=True):
        options.add_initializer(name, value)
    return options, values


def expected(*names: str) -> np.ndarray:
    weights = OWN | {name: GIVEN[name] for name in names}
    return X @ weights["w"] + weights["b"]


@pytest.mark.parametrize("names", [("w",), ("b",), ("w", "b")])
def test_given_weights_are_used(names):
    options, _kept = giving(*names)
    for providers in ([NPU], [CPU], [NPU, CPU]):  # the same options for several sessions
        session = ort.InferenceSession(product(), options, providers=providers)
        np.testing.assert_array_equal(session.run(None, {"x": X})[0], expected(*names))
    session.set_providers([NPU])
    np.testing.assert_array_equal(session.run(None, {"x": X})[0], expected(*names))


def test_given_weights_are_used_by_device():
    options, _kept = giving("w")
    devices = [d for d in ort.get_ep_devices() if d.ep_name == NPU]
    options.add_provider_for_devices(devices[:1], {})
    session = ort.InferenceSession(product(), options)
    np.testing.assert_array_equal(session.run(None, {"x": X})[0], expected("w"))


def test_weights_in_files_are_read_and_replaced(tmp_path: Path):
    path = str(tmp_path / "model.onnx")
    model = onnx.load_from_string(product())
    onnx.save(model, path, save_as_external_data=True, location="w.bin", size_threshold=0)
    options, _kept = giving("b")
    for _ in range(2):
        session = ort.InferenceSession(path, options, providers=[NPU])
        np.testing.assert_array_equal(session.run(None, {"x": X})[0], expected("b"))


def test_nodes_of_the_cpu_and_of_the_npu_read_the_same_weight():
    nodes = [
        helper.make_node("Add", ["x", "w"], ["a"], "npu"),
        left_to_the_cpu("w", "c"),
        helper.make_node("Add", ["a", "c"], ["y"], "both"),
    ]
    weight = np.ones((2, 3), np.float32)
    shapes = [("x", FLOAT, [2, 3])], [("y", FLOAT, [2, 3])]
    model = make_model(nodes, *shapes, {"w": weight})
    given = ort.OrtValue.ortvalue_from_numpy(3 * weight + X)
    options = ort.SessionOptions()
    options.log_severity_level = 3
    options.add_initializer("w", given)
    on_cpu, on_npu = (
        ort.InferenceSession(model, options, providers=[p]).run(None, {"x": X})[0]
        for p in (CPU, NPU)
    )
    np.testing.assert_allclose(on_npu, on_cpu, rtol=1e-6)


def test_weight_of_control_flow_is_used():
    inner = helper.make_graph(
        [helper.make_node("Add", ["x", "w"], ["z"], "inner")],
        "then",
        [],
        [helper.make_tensor_value_info("z", FLOAT, [2, 3])],
        [onnx.numpy_helper.from_array(np.ones((2, 3), np.float32), "w")],
    )
    node = helper.make_node("If", ["c"], ["y"], "if", then_branch=inner, else_branch=inner)
    inputs = [("x", FLOAT, [2, 3]), ("c", TensorProto.BOOL, [])]
    model = make_model([node], inputs, [("y", FLOAT, [2, 3])])
    given = ort.OrtValue.ortvalue_from_numpy(X)
    options = ort.SessionOptions()
    options.log_severity_level = 3
    options.add_initializer("w", given)
    session = ort.InferenceSession(model, options, providers=[NPU])
    np.testing.assert_array_equal(session.run(None, {"x": X, "c": np.array(True)})[0], 2 * X)


def test_value_of_another_shape_or_type_is_refused():
    for value in (np.ones((4, 3), np.float32), np.ones((3, 4), np.float64)):
        given = ort.OrtValue.ortvalue_from_numpy(value)
        options = ort.SessionOptions()
        options.add_initializer("w", given)
        with pytest.raises(Exception, match=r"\[add_initializer\] expected 'w' of element type 1"):
            ort.InferenceSession(product(), options, providers=[NPU])


def test_names_that_the_model_does_not_have_are_ignored():
    options = ort.SessionOptions()
    given = ort.OrtValue.ortvalue_from_numpy(X)
    options.add_initializer("another", given)
    session = ort.InferenceSession(product(), options, providers=[NPU])
    np.testing.assert_array_equal(session.run(None, {"x": X})[0], expected())
