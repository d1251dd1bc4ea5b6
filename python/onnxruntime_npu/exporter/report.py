"""The report of an export, written next to the model and returned to the caller."""

from __future__ import annotations

import json
import resource
import sys
import time
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


def _peak_memory() -> int:
    """Return the largest amount of memory that this process has had, in bytes."""
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


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
    inner_precise: int = 0
    quant_head: bool = False
    adapters: list[str] = field(default_factory=list)  # that were merged
    switched_adapters: dict[str, dict[str, Any]] = field(default_factory=dict)
    tensor_parallel: int = 1  # number of ranks that heads and MLPs are divided among
    expert_parallel: int = 1  # number of ranks that experts are divided among
    rank: int | None = None  # whose part this is, if there are several
    group: str | None = None  # what the file calls all of them, several names with ";" between
    integers: dict[str, int] = field(
        default_factory=dict
    )  # layers of a checkpoint, by their layout
    # Layers of w8a8 whose activations have a scale per token: one for all would err too much.
    per_token: list[str] = field(default_factory=list)
    pooling: str | None = None
    context_length: int | None = None  # most tokens of a text, of an encoder
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
    peak_memory: int = 0  # bytes of the process's memory, until the file was written
    check: dict[str, Any] | None = None  # the written file against the eager model

    @property
    def node_count(self) -> int:
        """Number of nodes in the main graph, before groups of them are joined."""
        return sum(self.nodes.values())

    def add_findings(self, findings: Findings) -> None:
        """Set the replaced and the kept parts; ``nodes`` must have been counted."""
        operators = all_ops()
        self.kept = findings.kept
        self.warnings += findings.warnings
        for op, count in sorted(findings.expected_nodes.items()):
            name = f"npu::{operators[op].onnx_type}" if op in operators else op  # one of ONNX
            emitted = self.nodes.get(name, 0)
            self.replaced[op] = {
                "replaced": count,
                "emitted": emitted,
                "worst_relative_difference": findings.worst_difference.get(op),
            }
            if emitted != count:
                self.gaps.append(f"{op}: {count} replaced, but {emitted} nodes emitted")

    def exported(self, started: float) -> None:
        """Set time and memory once the files are written; ``started``: of time.monotonic."""
        self.seconds = round(time.monotonic() - started, 1)
        self.peak_memory = _peak_memory()

    def checked(self, entry: dict[str, Any], failures: list[str]) -> None:
        """Set the check's results; a failure is a warning."""
        self.check = {**entry, "peak_memory": _peak_memory()}
        self.warnings += [f"check failed: {text}" for text in failures]

    def check_lines(self) -> list[str]:
        """Return a line for each provider that the check ran on."""
        if self.check is None:
            return []
        lines, check = [], self.check
        for provider, found in check["providers"].items():
            if "max_error" not in found:
                lines.append(f"{provider}: {next(iter(found.values()))}")
                continue
            of_text = (
                f"perplexity {found['perplexity']:.2f} (eager {check['eager_perplexity']:.2f}), "
                if check["is_text"]
                else ""
            )
            same = ", ".join(map(str, found["same_greedy_tokens"]))
            lines.append(
                f"{provider}: logits differ by {found['max_error']:.2g} at most, "
                f"{found['mean_error']:.2g} on average, {of_text}"
                f"same greedy tokens: {same} of {check['greedy_tokens']}"
            )
        return lines

    def replaced_by_operator(self) -> str:
        """Return how many nodes of each operator stand for replaced parts, or nothing."""
        return ", ".join(f"{counts['emitted']} {op}" for op, counts in self.replaced.items())

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
