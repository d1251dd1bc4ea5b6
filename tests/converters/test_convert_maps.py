"""Classifiers whose probabilities are maps from labels, as scikit-learn's exporter writes them."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from comparison import PROVIDERS, normal, run
from onnx import TensorProto, helper
from onnxruntime_npu.converters import convert, inline
from onnxruntime_npu.errors import ExportError

LABELS = [3, 7]
MAP = onnx.TypeProto()
MAP.map_type.key_type = TensorProto.INT64
MAP.map_type.value_type.tensor_type.elem_type = TensorProto.FLOAT


def model_of_maps(kind, nodes):
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [None, 2])],
        [
            helper.make_value_info("probabilities", kind),
            helper.make_tensor_value_info("best", TensorProto.INT64, None),
        ],
    )
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("ai.onnx.ml", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def test_probabilities_by_label(tmp_path):
    nodes = [
        helper.make_node("Softmax", ["x"], ["rows"]),
        helper.make_node(
            "ZipMap", ["rows"], ["probabilities"], domain="ai.onnx.ml", classlabels_int64s=LABELS
        ),
        helper.make_node("ArgMax", ["rows"], ["best"], axis=1, keepdims=0),
    ]
    made = model_of_maps(helper.make_sequence_type_proto(MAP), nodes)
    onnx.save(made, tmp_path / "source.onnx")
    convert(tmp_path / "source.onnx", tmp_path / "fused.onnx")
    inline(tmp_path / "fused.onnx", tmp_path / "plain.onnx")
    x = normal(3, 2)
    expected = np.exp(x) / np.exp(x).sum(1, keepdims=True)
    for name in ("fused.onnx", "plain.onnx"):
        onnx.checker.check_model(tmp_path / name)
        for provider in PROVIDERS:
            probabilities, best = run(tmp_path / name, provider, {"x": x})
            assert [list(row) for row in probabilities] == [LABELS] * 3
            values = [list(row.values()) for row in probabilities]
            np.testing.assert_allclose(values, expected, rtol=0, atol=1e-6)
            assert best.tolist() == expected.argmax(1).tolist()


@pytest.mark.parametrize("change", [convert, inline])
def test_maps_in_the_middle_are_refused(tmp_path, change):
    nodes = [
        helper.make_node("ZipMap", ["x"], ["maps"], domain="ai.onnx.ml", classlabels_int64s=LABELS),
        helper.make_node("Identity", ["maps"], ["probabilities"]),
        helper.make_node("ArgMax", ["x"], ["best"], axis=1, keepdims=0),
    ]
    made = model_of_maps(helper.make_sequence_type_proto(MAP), nodes)
    with pytest.raises(ExportError, match="got a map, which is no output of a ZipMap"):
        change(made, tmp_path / "out.onnx")
