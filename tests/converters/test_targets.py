"""Files that a conversion is asked to write."""

from __future__ import annotations

import onnx
import pytest
from onnx import TensorProto, helper
from onnxruntime_npu.converters import convert, inline
from onnxruntime_npu.errors import ArgumentError


@pytest.fixture
def source(tmp_path):
    value = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2]) for name in "xy"]
    graph = helper.make_graph([helper.make_node("Neg", ["x"], ["y"])], "g", value[:1], value[1:])
    path = tmp_path / "model.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)]), path)
    return path


@pytest.mark.parametrize("write", [convert, inline])
def test_places_that_are_no_files_to_write(source, monkeypatch, write):
    monkeypatch.chdir(source.parent)
    for place in (".", "/", source.parent):
        with pytest.raises(ArgumentError, match=r"expected a file to write to, got the directory"):
            write(source, place)
    with pytest.raises(ArgumentError, match=r"no such directory to write to: nowhere"):
        write(source, "nowhere/out.onnx")
    with pytest.raises(ArgumentError, match=r"expected another file to write to than the one read"):
        write(source, source)
    assert list(source.parent.iterdir()) == [source]
