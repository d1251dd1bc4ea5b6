"""What exports of several files have in common: the files that runners need, and the reports."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnx_ir as ir

from ..onnx_models.fuse_added_norms import fuse_added_norms
from .checkpoint import Checkpoint
from .encoder import copy_processor
from .parts_report import PartsReport
from .proof import Findings
from .report import ExportReport
from .sampling_graph import SAMPLER_FILE, write_sampler
from .tracing import finish


def save_companions(out: Path, checkpoint: Checkpoint, source: Path | None) -> list[str]:
    """Write the files that a runner needs in addition to the models; return warnings."""
    model = checkpoint.model
    write_sampler(out / SAMPLER_FILE)
    model.config.save_pretrained(out)
    model.generation_config.save_pretrained(out)
    copy_processor(source, out)
    if checkpoint.tokenizer is None:
        return [*checkpoint.warnings, checkpoint.without_tokenizer]
    checkpoint.tokenizer.save_pretrained(out)
    return list(checkpoint.warnings)


def write_parts(
    folder: Path,
    models: dict[str, ir.Model],
    findings: dict[str, Findings],
    started: float,
    **about: Any,
) -> PartsReport:
    """Write the models and return their reports, all by the names of files.

    ``started``: the monotonic time at which the export began; ``about``: what all reports say.
    """
    report = PartsReport({})
    for name, model in models.items():
        found = findings[name]
        found.joined(fuse_added_norms(model.graph), "npu_rms_norm", into="npu_add_rms_norm")
        part = report.parts[name] = ExportReport(**about)
        finish(model, folder / name, part, found)
        part.exported(started)
    return report
