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
    from .report import ExportReport

_HOMES = {
    "ExportReport": "report",
    "export": "export_module",
    "export_causal_lm": "causal_lm",
    "export_encoder": "encoder",
}
__all__ = ["ExportReport", "export", "export_causal_lm", "export_encoder"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f".{_HOMES[name]}", __name__), name)
