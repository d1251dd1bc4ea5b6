"""The operators as data, for ``onnxruntime-npu ops`` and the documentation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .discovery import all_compositions, all_ops


def op_table() -> list[dict[str, Any]]:
    """Return a row per ``npu::`` operator, sorted by name. Needs neither torch nor a device."""
    return [
        {
            "name": op.name,
            "family": op.family,
            "schema": str(op.schema),
            "inplace": str(op.inplace) if op.inplace else None,
            "out": str(op.out) if op.out else None,
            "torch_aliases": [s.name for s in op.torch_aliases],
            "partners": [str(p.schema) for p in op.partners],
            "domain": "npu",
            "onnx_type": op.onnx_type,
            "onnx_aliases": [a.type for a in op.type_aliases],
            "inputs": [
                {"name": x.name, "dtypes": list(x.dtypes), "optional": x.optional, "cpu": x.cpu}
                for x in op.inputs
            ],
            "attributes": [
                {"name": a.name, "type": a.kind, "required": a.required, "default": a.default}
                for a in op.attributes
            ],
            "outputs": [{"name": y.name, "dtypes": list(y.dtypes)} for y in op.outputs],
            "dtypes": list(op.sample_dtypes),
            "function_body": op.body_function is not None,
            "not_portable": op.not_portable or None,
            "summary": op.doc.split("\n\n")[0].replace("\n", " "),
        }
        for op in all_ops().values()
    ]


def composition_table() -> list[dict[str, Any]]:
    """Return a row per operator that consists of standard ones, sorted by name."""
    return [
        {
            "name": op.name,
            "family": op.family,
            "schema": str(op.schema),
            "out": str(op.out) if op.out else None,
            "partners": [str(p.schema) for p in op.partners],
            "file_type": op.file_type or None,
            "summary": op.doc.split("\n\n")[0].replace("\n", " "),
        }
        for op in all_compositions().values()
    ]


def portability(row: Mapping[str, Any]) -> str:
    """Describe whether a model with the operator of this row runs on other providers."""
    if not row["function_body"]:
        return f"no: {row['not_portable']}"
    return f"yes, except {row['not_portable']}" if row["not_portable"] else "yes"
