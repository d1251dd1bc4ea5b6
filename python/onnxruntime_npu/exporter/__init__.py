"""Export of torch models to ONNX with fused ``npu::`` operators.

This module does not import torch, because the command line reads the list of architectures.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .causal_lm import export_causal_lm
    from .encoder import export_encoder
    from .export_module import export
    from .image_text import export_image_text_to_text
    from .parts_report import PartsReport
    from .report import ExportReport
    from .seq2seq import export_seq2seq

_HOMES = {
    "ExportReport": "report",
    "PartsReport": "parts_report",
    "export": "export_module",
    "export_causal_lm": "causal_lm",
    "export_encoder": "encoder",
    "export_image_text_to_text": "image_text",
    "export_seq2seq": "seq2seq",
}
__all__ = [
    "ExportReport",
    "PartsReport",
    "export",
    "export_causal_lm",
    "export_encoder",
    "export_image_text_to_text",
    "export_seq2seq",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f".{_HOMES[name]}", __name__), name)
