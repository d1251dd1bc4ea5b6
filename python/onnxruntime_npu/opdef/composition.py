"""Operators that consist of standard ones: torch_npu has their names, ONNX has their meaning.

A definition is one file, ``contrib_ops/<family>/<op>.py``, without a kernel beside it. Its function
is plain torch, which torch decomposes the operator into on every device, in every trace and for its
gradient; an exported model has the standard nodes, as from torch_npu's own exporter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from .definition import Partner
from .dtypes import from_torch
from .node_parts import DefinitionError, parse_out
from .samples import ErrorCase, Sample, check
from .schema import Schema, parse_schema


@dataclass(eq=False)
class Composition:
    """One such operator, created by :func:`composition`; its methods are decorators."""

    schema: Schema
    out: Schema | None
    sample_dtypes: tuple[str, ...]
    differentiable: bool
    function_body: Callable[..., Any] | None = None
    reference_function: Callable[..., Any] | None = None
    sample_function: Callable[..., Iterable[Sample]] | None = None
    error_cases: list[ErrorCase] = field(default_factory=list)
    partners: list[Partner] = field(default_factory=list)
    source: str = ""  # path of the definition, set by discovery
    doc: str = ""

    @property
    def name(self) -> str:
        """Name in torch, without the namespace."""
        return self.schema.name

    @property
    def family(self) -> str:
        """Folder of the definition."""
        return self.source.replace("\\", "/").split("/")[-2] if self.source else ""

    def torch_schemas(self) -> tuple[Schema, ...]:
        """Return the schema of its own name."""
        return (self.schema,)

    def function(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Set what it consists of, in plain torch; its docstring says what it returns."""
        self.function_body = function
        return function

    def reference(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Set an independent computation of the results, for tests."""
        self.reference_function = function
        return function

    def partner(self, schema: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        """Add a function of another torch name or overload, in plain torch."""

        def register(function: Callable[..., Any]) -> Callable[..., Any]:
            self.partners.append(Partner(parse_schema(schema), function))
            return function

        return register

    def samples(self, function: Callable[..., Iterable[Sample]]) -> Callable[..., Iterable[Sample]]:
        """Set the generator of sample calls for one dtype."""
        self.sample_function = function
        return function

    def errors(self, make: Callable[..., Sample], match: str, *, id: str) -> None:
        """Add a call that must fail with a message that matches ``match`` on every path."""
        self.error_cases.append(ErrorCase(make, match, False, id))

    def arguments(self, sample: Sample) -> dict[str, Any]:
        """Return every argument of a sample's call by name."""
        names = [a.name for a in self.schema.arguments]
        defaults = {a.name: a.default for a in self.schema.arguments if not a.required}
        given = {**defaults, **dict(zip(names, sample.args, strict=False)), **sample.kwargs}
        return {name: given[name] for name in names}


def composition(
    schema: str,
    *,
    dtypes: Sequence[str],
    out: str | None = None,
    differentiable: bool = False,
) -> Composition:
    """Define an operator that consists of standard ones.

    Args:
        schema: the torch schema, as torch_npu registers it, with the first tensor named ``self``.
        dtypes: element types that samples are made for.
        out: schema of the overload that writes the result into a tensor of the caller.
        differentiable: whether tests check the gradient of its floating arguments.

    """
    parsed = parse_schema(schema)
    if not dtypes:
        raise DefinitionError(f"[{parsed.name}] expected types to make samples of")
    return Composition(
        parsed, parse_out(parsed, out) if out else None, tuple(dtypes), differentiable
    )


def check_dtype(op: str, name: str, tensor: Any, dtypes: Sequence[str]) -> None:
    """Refuse a tensor of another element type, in the words of operators with a kernel."""
    dtype = from_torch(tensor.dtype)
    check(
        dtype in dtypes,
        f"[{op}] expected {name} of dtype {', '.join(dtypes)}, got {dtype}",
    )
