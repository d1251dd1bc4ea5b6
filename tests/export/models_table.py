"""The table of docs/models.md, from the reports of the tested exports.

``python -m tests.export.models_table`` exports a tiny model of every architecture and writes it.
"""

from __future__ import annotations

import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

from onnxruntime_npu.exporter import export_causal_lm
from onnxruntime_npu.exporter.architectures import (
    ARCHITECTURES,
    Architecture,
    with_text_between,
)

from .conftest import tiny_model

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "models.md"
# Of test_causal_lm.py and test_precisions.py, which compare every architecture with transformers.
PRECISIONS = ("float32", "bfloat16")
_BEGIN, _END = "<!-- models: begin -->", "<!-- models: end -->"
_HEAD = (
    "| `model_type` | form | precisions | caches | fused operators | kept as they are |",
    "|---|---|---|---|---|---|",
)


class Row(NamedTuple):
    """The cells of an architecture's line."""

    name: str
    form: str
    precisions: str
    caches: str
    fused: str
    kept: str

    @staticmethod
    def of(architecture: Architecture, report: Any) -> Row:
        """Return the line of an architecture; ``report``: of its export with a growing cache."""
        # Whether a norm follows an addition is a matter of the graph, not of the architecture.
        operators = Counter[str]()
        for op, counts in report.replaced.items():
            name = op.lstrip("_").replace("npu_add_rms_norm", "npu_rms_norm")
            operators[name] += counts["emitted"]
        fused = ", ".join(f"{count} `{op}`" for op, count in sorted(operators.items()))
        roles = {part["role"] for part in report.kept}
        form = "original" if "decoder" in roles else "rebuilt"
        kept = ", ".join(sorted(roles - {"decoder"}))
        name, _, precisions, caches = known(architecture)
        return Row(name, form, precisions, caches, fused or "—", kept or "—")

    def __str__(self) -> str:
        return f"| {' | '.join(self)} |"


def known(architecture: Architecture) -> tuple[str, str, str, str]:
    """Return the cells that need no export."""
    form = "rebuilt" if architecture.rebuilt else "original"
    name, caches = f"`{architecture.model_type}`", ", ".join(architecture.caches)
    return name, form, ", ".join(PRECISIONS), caches


def rows(document: str) -> list[Row]:
    """Return the lines of the table in a document."""
    table = document.partition(_BEGIN)[2].partition(_END)[0].strip()
    return [
        Row(*(cell.strip() for cell in line.strip("|").split("|")))
        for line in table.splitlines()[len(_HEAD) :]
    ]


def with_rows(document: str, lines: list[Row]) -> str:
    """Return the document with other lines in its table."""
    return with_text_between(document, _BEGIN, _END, "\n".join([*_HEAD, *map(str, lines)]))


def main() -> None:
    """Write the table."""
    lines = []
    for architecture in ARCHITECTURES:
        with tempfile.TemporaryDirectory() as folder:
            report = export_causal_lm(tiny_model(architecture.model_type), folder, check=False)
        lines.append(Row.of(architecture, report))
        print(lines[-1], file=sys.stderr, flush=True)
    DOCUMENT.write_text(with_rows(DOCUMENT.read_text(), lines))


if __name__ == "__main__":
    main()
