"""Prints the table of operators in Markdown: ``python -m onnxruntime_npu.opdef.docs``."""

from __future__ import annotations

import importlib
import inspect
import sys

from .table import composition_table, op_table, portability

# Functions of torch_npu's list that are no operators: they change storages, or what the device
# knows of them, and check a product. A model does not have them.
_FUNCTIONS = (
    "empty_with_format",
    "empty_with_swapped_memory",
    "erase_stream",
    "get_npu_format",
    "get_storage_size",
    "matmul_checksum",
    "npu_format_cast_",
)


def markdown() -> str:
    """Return the table, one family after the other."""
    rows = sorted(op_table(), key=lambda row: (row["family"], row["name"]))
    lines = ["# Operators", "", "Domain `npu`, version 1. Generated from the definitions."]
    family = None
    for row in rows:
        if row["family"] != family:
            family = row["family"]
            lines += ["", f"## {family}", "", "| torch | ONNX | dtypes | body | what |"]
            lines += ["|---|---|---|---|---|"]
        names = [row["name"], *row["torch_aliases"]]
        twins = [row["inplace"]] if row["inplace"] else []
        names += [schema.split("(")[0] for schema in (*twins, *row["partners"])]
        types = [row["onnx_type"], *row["onnx_aliases"]]
        lines.append(
            f"| {', '.join(f'`{n}`' for n in names)} | {', '.join(f'`{t}`' for t in types)} "
            f"| {', '.join(row['dtypes'])} | {portability(row)} "
            f"| {row['summary']} |"
        )
    lines += ["", "## Operators that consist of standard ones", ""]
    lines += ["A model has their standard nodes, which every provider runs.", ""]
    lines += ["| torch | what |", "|---|---|"]
    for row in composition_table():
        others = (partner.split("(")[0] for partner in row["partners"])
        together = ", ".join(f"`{n}`" for n in (row["name"], *others))
        read = f" Files may have `{row['file_type']}` for it." if row["file_type"] else ""
        lines.append(f"| {together} | {row['summary']}{read} |")
    lines += ["", "## Functions on tensors of the device", ""]
    lines += ["A model does not have them.", "", "| torch | what |", "|---|---|"]
    package = importlib.import_module("onnxruntime_npu")
    for name in _FUNCTIONS:
        summary = inspect.getdoc(getattr(package, name)) or ""
        lines.append(f"| `{name}` | {summary.splitlines()[0]} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.stdout.write(markdown())
