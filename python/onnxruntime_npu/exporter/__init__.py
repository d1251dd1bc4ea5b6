"""Export of torch models to ONNX with fused ``npu::`` operators."""

from __future__ import annotations

from .causal_lm import export_causal_lm
from .export_module import export
from .report import ExportReport

__all__ = ["ExportReport", "export", "export_causal_lm"]
