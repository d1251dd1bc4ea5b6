"""The report of an export, written next to the model and returned to the caller."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

from ..opdef import all_ops
from .proof import Findings

_PACKAGES = ("torch", "transformers", "onnx", "onnxscript", "onnxruntime")


def _versions() -> dict[str, str]:
    """Return the versions of the packages used by the export."""
    from .. import __version__

    found = {"onnxruntime_npu": __version__}
    for name in _PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


@dataclass
class ExportReport:
    """The report of one export; ``export_report.json`` holds the same."""

    model: str
    architecture: str
    opset: int
    dtype: str | None = None
    cache: str | None = None
    cache_dtype: str | None = None
    logits: str | None = None
    quant: str | None = None
    adapters: list[str] = field(default_factory=list)
    integers: dict[str, int] = field(
        default_factory=dict
    )  # layers of a checkpoint, by their layout
    pooling: str | None = None
    inputs: list[dict[str, Any]] = field(default_factory=list)
    outputs: list[dict[str, Any]] = field(default_factory=list)
    nodes: dict[str, int] = field(default_factory=dict)
    replaced: dict[str, dict[str, Any]] = field(default_factory=dict)
    kept: list[dict[str, str]] = field(default_factory=list)
    gaps: list[str] = field(default_factory=list)
    without_body: list[str] = field(default_factory=list)
    files: dict[str, int] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=_versions)
    warnings: list[str] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def node_count(self) -> int:
        """Number of nodes in the main graph."""
        return sum(self.nodes.values())

    def add_findings(self, findings: Findings) -> None:
        """Set the replaced and the kept parts; ``nodes`` must have been counted."""
        operators = all_ops()
        self.kept = findings.kept
        for op, count in sorted(findings.expected_nodes.items()):
            emitted = self.nodes.get(f"npu::{operators[op].onnx_type}", 0)
            self.replaced[op] = {
                "replaced": count,
                "emitted": emitted,
                "worst_relative_difference": findings.worst_difference.get(op),
            }
            if emitted != count:
                self.gaps.append(f"{op}: {count} replaced, but {emitted} nodes emitted")

    def kept_by_role(self) -> list[str]:
        """Return a line for each role of kept parts: how many, and the first one's reason."""
        roles: dict[str, list[str]] = {}
        for part in self.kept:
            roles.setdefault(part["role"], []).append(part["reason"])
        return [
            f"{role}{f' ({len(reasons)} times)' if len(reasons) > 1 else ''}: {reasons[0]}"
            for role, reasons in roles.items()
        ]

    def write(self, path: Path) -> None:
        """Write the report as JSON."""
        path.write_text(json.dumps(asdict(self), indent=2) + "\n")
