"""Operators from their definitions: one ``contrib_ops/<family>/<op>.py``, everything derived.

A definition imports from here, and so does the build, which has neither torch nor onnx nor
onnxruntime: nothing in this file may import them.
"""

from __future__ import annotations

from typing import Any

from .composition import Composition, check_dtype, composition
from .definition import NotPortable, Op, TypeAlias, npu_op, torch
from .discovery import all_compositions, all_ops, load_definitions
from .dtypes import (
    FIXED_WIDTH,
    FLOATS,
    HALVES,
    INDICES,
    INTEGERS,
    NUMERIC,
    SIGNED,
    UNSIGNED,
)
from .node_parts import ABSENT, DefinitionError
from .samples import Maker, Sample, check, check_indices, is_traced, wide
from .table import op_table
from .type_codes import NumberType, TypeCodes, TypedBy

__all__ = [
    "ABSENT",
    "FIXED_WIDTH",
    "FLOATS",
    "HALVES",
    "INDICES",
    "INTEGERS",
    "NUMERIC",
    "SIGNED",
    "UNSIGNED",
    "Composition",
    "DefinitionError",
    "Maker",
    "NotPortable",
    "NumberType",
    "Op",
    "Sample",
    "TypeAlias",
    "TypeCodes",
    "TypedBy",
    "all_compositions",
    "all_ops",
    "attach_function_bodies",
    "check",
    "check_dtype",
    "check_indices",
    "composition",
    "is_traced",
    "load_definitions",
    "npu_op",
    "op_table",
    "torch",
    "translation_table",
    "wide",
]


def __getattr__(name: str) -> Any:
    """Resolve the names that need torch, onnx and onnxscript at their first use."""
    if name == "translation_table":
        from .translation import translation_table

        return translation_table
    if name == "attach_function_bodies":
        from .attach import attach_function_bodies

        return attach_function_bodies
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
