"""Prints the table of operators in Markdown: ``python -m onnxruntime_npu.opdef.docs``."""

from __future__ import annotations

import sys

from .table import composition_table, op_table, portability


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
        if row["inplace"]:
            names.append(row["inplace"].split("(")[0])
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
        lines.append(f"| {together} | {row['summary']} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.stdout.write(markdown())
