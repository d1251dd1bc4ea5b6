"""tools/check.py fails on a tree that breaks a rule, by the check for that rule."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))

import check

# Of each check that is the project's own, files that break its rule.
BROKEN = {
    "machine names": {"docs/a.md": "see " + "/".join(["", "root", "notes"])},
    "links": {"docs/a.md": "[there](nowhere.md)"},
    "one definition": {
        "ep/a.h": "namespace npu { class A { int b; }; }",
        "ep/b.h": "namespace npu { class A { int c; }; }",
    },
    "import circles": {
        "python/onnxruntime_npu/a.py": "def f():\n    from .converters import b\n",
        "converters/b.py": "from onnxruntime_npu import a\n",
    },
    "loops outside kernels": {"python/csrc/torch/a.cc": "ParallelFor(n, 1, f);"},
    "test names": {"tests/a/test_x.py": "", "tests/b/test_x.py": ""},
}
TOOLS = {"ruff format", "ruff lint", "clang-format", "mypy"}


@pytest.mark.parametrize("name", BROKEN)
def test_broken_rule_fails_its_check_and_no_other(name, tmp_path, monkeypatch):
    monkeypatch.setattr(check, "ROOT", tmp_path)
    for place, text in BROKEN[name].items():
        path = tmp_path / place
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    failed = {each for each in BROKEN if not check.CHECKS[each](False, files)}
    assert failed == {name}


def test_every_check_is_a_tool_or_tested_here():
    assert set(check.CHECKS) == TOOLS | set(BROKEN)
