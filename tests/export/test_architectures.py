"""Tests, document and command agree with the list of supported architectures."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from onnxruntime_npu import cli
from onnxruntime_npu.exporter.architectures import (
    ARCHITECTURES,
    Architecture,
    supported,
    with_table,
)

from . import models_table
from .conftest import CONFIGS, tiny_model
from .kinds import marks_of_kind
from .test_causal_lm import test_ragged_prefill_and_decode_match_transformers as compare

DOCS = Path(__file__).resolve().parents[2] / "docs"


def test_every_architecture_has_a_tested_configuration():
    for architecture in ARCHITECTURES:
        assert CONFIGS[architecture.model_type] == (architecture.model_type, architecture.tested)
        assert tiny_model(architecture.model_type).config.model_type == architecture.model_type


def test_document_matches_the_list():
    text = models_table.DOCUMENT.read_text()
    assert text == with_table(text), (
        "run: python -m onnxruntime_npu.exporter.architectures docs/models.md"
    )


def test_document_without_markers_is_refused():
    with pytest.raises(ValueError, match="expected <!-- architectures: begin -->"):
        with_table("# Export\n")
    with pytest.raises(ValueError, match="expected <!-- models: begin -->"):
        models_table.with_rows("# Models\n", [])


def test_table_of_models_has_every_architecture():
    lines = models_table.rows(models_table.DOCUMENT.read_text())
    expected = [models_table.known(architecture) for architecture in ARCHITECTURES]
    assert [line[:4] for line in lines] == expected, "run: python -m tests.export.models_table"


@pytest.mark.parametrize(
    "architecture",
    [pytest.param(a, marks=marks_of_kind(a.model_type)) for a in ARCHITECTURES],
    ids=lambda each: each.model_type,
)
def test_table_of_models_is_what_the_exports_report(exported, architecture):
    """Of exports that other tests need, too, so that it takes no time of its own."""
    _, _, report = exported(architecture.model_type, cache="dynamic")
    lines = {line.name: line for line in models_table.rows(models_table.DOCUMENT.read_text())}
    expected = models_table.Row.of(architecture, report)
    assert lines[expected.name] == expected, "run: python -m tests.export.models_table"


def test_command_prints_the_list(capsys):
    with pytest.raises(SystemExit):
        cli.main(["export", "--help"])
    assert supported() in " ".join(capsys.readouterr().out.split())


def test_reading_the_list_does_not_import_torch(run_python):
    code, output = run_python(
        "import sys, onnxruntime_npu.cli; print({'torch', 'transformers'} & set(sys.modules))"
    )
    assert (code, output) == (0, "set()\n")


def test_howto_architecture_matches_transformers(exported, monkeypatch):
    page = (DOCS / "howto" / "architecture.md").read_text()
    line = re.findall(r"^```python\n(.*?),\n```$", page, re.M | re.S)
    added = eval(line[0], {"Architecture": Architecture})
    assert added.model_type not in CONFIGS
    monkeypatch.setitem(CONFIGS, added.model_type, (added.model_type, added.tested))
    compare(exported, added.model_type, "static", "NPUExecutionProvider")
