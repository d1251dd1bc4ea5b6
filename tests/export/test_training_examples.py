"""The examples that train on npu and export: a detector and a recogniser of lines."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType

import onnx
import pytest
import torch
from onnxruntime_npu import torch_device

pytestmark = pytest.mark.skipif(
    not torch_device.is_built(), reason="this build has no torch device"
)

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
# Sums of float32 in another order; nothing is rounded to less.
DIFFERENCE = 1e-4


@pytest.fixture
def example(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(EXAMPLES)
    torch.manual_seed(0)
    return importlib.import_module(request.param)


def _fell(losses: list[float], by: float) -> bool:
    few = max(len(losses) // 5, 1)
    return sum(losses[-few:]) < by * sum(losses[:few])


def _types(path: Path) -> set[str]:
    return {node.op_type for node in onnx.load(path).graph.node if node.domain == "npu"}


@pytest.mark.parametrize("example", ["detector"], indirect=True)
def test_detector(example: ModuleType, tmp_path: Path) -> None:
    model = example.Detector()
    assert _fell(example.train(model, example.sample, 40, example.LEARNING_RATE), by=0.7)
    image, _ = example.sample(torch.Generator().manual_seed(1))
    path = tmp_path / "detector.onnx"
    found = example.largest_difference(model, image, path, (example.NPU, example.CPU))
    assert len(found) == 3 and max(found.values()) < DIFFERENCE * example.SIZE
    types = {"NPUBoundingBoxDecode", "NPUNmsV4", "NPURoiAlign", "NPUNmsWithMask"}
    assert _types(path) == types


@pytest.mark.parametrize("example", ["recogniser"], indirect=True)
def test_recogniser(example: ModuleType, tmp_path: Path) -> None:
    model = example.Recogniser()
    losses = example.train(model, lambda g: example.batch(16, g), 30, example.LEARNING_RATE)
    assert _fell(losses, by=0.5)
    lines, _ = example.batch(4, torch.Generator().manual_seed(1))
    path = tmp_path / "recogniser.onnx"
    found = example.largest_difference(model, lines, path, (example.NPU, example.CPU))
    assert len(found) == 3 and max(found.values()) < DIFFERENCE
    assert _types(path) == {"NPULstm"}
