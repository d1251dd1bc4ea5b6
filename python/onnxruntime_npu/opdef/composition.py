"""Operators that consist of standard ones: torch_npu has their names, ONNX has their meaning.

A definition is one file, ``contrib_ops/<family>/<op>.py``, without a kernel beside it. Its function
is plain torch, which torch decomposes the operator into on every device, in every trace and for its
gradient; an exported model has the standard nodes, as from torch_npu's own exporter.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from .definition_base import Definition
from .dtypes import from_torch
from .node_parts import DefinitionError, parse_out
from .samples import check
from .schema import parse_schema


@dataclass(eq=False, kw_only=True)
class Composition(Definition):
    """One such operator, created by :func:`composition`; its methods are decorators."""

    differentiable: bool
    file_type: str = ""
    function_body: Callable[..., Any] | None = None

    def function(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Set what it consists of, in plain torch; its docstring says what it returns."""
        self.function_body = function
        return function


def composition(
    schema: str,
    *,
    dtypes: Sequence[str],
    out: str | None = None,
    differentiable: bool = False,
    file_type: str = "",
) -> Composition:
    """Define an operator that consists of standard ones.

    Args:
        schema: the torch schema, as torch_npu registers it, with the first tensor named ``self``.
        dtypes: element types that samples are made for.
        out: schema of the overload that writes the result into a tensor of the caller.
        differentiable: whether tests check the gradient of its floating arguments.
        file_type: op type of domain ``npu`` that files of others have for it. Its kernel is beside
            that of the standard operator, in ``ep/kernels``.

    """
    parsed = parse_schema(schema)
    if not dtypes:
        raise DefinitionError(f"[{parsed.name}] expected types to make samples of")
    return Composition(
        schema=parsed,
        out=parse_out(parsed, out) if out else None,
        sample_dtypes=tuple(dtypes),
        differentiable=differentiable,
        file_type=file_type,
    )


def check_dtype(op: str, name: str, tensor: Any, dtypes: Sequence[str]) -> None:
    """Refuse a tensor of another element type, in the words of operators with a kernel."""
    dtype = from_torch(tensor.dtype)
    check(
        dtype in dtypes,
        f"[{op}] expected {name} of dtype {', '.join(dtypes)}, got {dtype}",
    )
