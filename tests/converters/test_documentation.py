"""The examples of docs/quantization.md run, one after the other."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

PAGE = Path(__file__).resolve().parents[2] / "docs" / "quantization.md"


def test_the_examples_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    names: dict[str, object] = {}
    sizes = []
    for block in blocks:
        exec(block, names)
        result = names["y"]
        assert isinstance(result, torch.Tensor) and result.isfinite().all()
        sizes.append(list(result.shape))
    assert sizes == [[2, 64], [8, 32]]
    assert (tmp_path / "model.onnx").stat().st_size > 0
