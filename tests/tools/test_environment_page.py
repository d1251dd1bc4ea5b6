"""docs/environment.md has a row for every variable of the project that its sources read."""

from __future__ import annotations

import re

_SOURCES = {".py", ".cc", ".h"}
_VARIABLE = re.compile(r'"((?:ORT_NPU|PYTORCH_NO_NPU|PYTORCH_NPU)_[A-Z0-9_]+)"')


def test_every_variable_has_a_row(request):
    root = request.config.rootpath
    files = [f for folder in ("ep", "python") for f in (root / folder).rglob("*.*")]
    texts = [f.read_text() for f in files if f.suffix in _SOURCES]
    variables = {name for text in texts for name in _VARIABLE.findall(text)}
    page = (root / "docs" / "environment.md").read_text()
    assert len(variables) > 10
    assert {name for name in variables if f"`{name}`" not in page} == set()
