"""What every definition file states, whether its operator has a kernel or consists of others."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .samples import ErrorCase, Sample
from .schema import Argument, Schema, parse_schema


@dataclass(frozen=True)
class Partner:
    """A function that torch_npu has beside an operator, of its shapes or its workspace."""

    schema: Schema
    function: Callable[..., Any]


@dataclass(eq=False, kw_only=True)
class Definition:
    """The names of an operator, its documentation, and the calls that test it."""

    schema: Schema
    out: Schema | None
    sample_dtypes: tuple[str, ...]
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

    @property
    def node_arguments(self) -> tuple[Argument, ...]:
        """The arguments of the schema, and those that a call draws itself."""
        return self.schema.arguments

    def torch_schemas(self) -> tuple[Schema, ...]:
        """Return the schema of every torch name with the operator's arguments and meaning."""
        return (self.schema,)

    def reference(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Set an independent computation of the results, in plain torch."""
        self.reference_function = function
        return function

    def samples(self, function: Callable[..., Iterable[Sample]]) -> Callable[..., Iterable[Sample]]:
        """Set the generator of sample calls for one dtype."""
        self.sample_function = function
        return function

    def partner(self, schema: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        """Add a function of another torch name, in plain torch, that takes what ``schema`` says.

        It has neither a node nor a gradient of its own: a trace sees what it does.
        """

        def register(function: Callable[..., Any]) -> Callable[..., Any]:
            self.partners.append(Partner(parse_schema(schema), function))
            return function

        return register

    def errors(
        self, make: Callable[..., Sample], match: str, *, needs_values: bool = False, id: str = ""
    ) -> None:
        """Add a call that must fail with a message that matches ``match`` on every path.

        ``needs_values`` marks an error that depends on tensor values: a fake call cannot raise it.
        """
        case_id = id or f"error{len(self.error_cases)}"
        self.error_cases.append(ErrorCase(make, match, needs_values, case_id))

    def bind(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Give every argument its value, defaults included.

        Raises TypeError like a Python call for a missing, unknown or duplicate argument.
        """
        positional = [a for a in self.schema.arguments if not a.keyword_only]
        if len(args) > len(positional):
            raise TypeError(
                f"[{self.name}] expected at most {len(positional)} positional arguments, "
                f"got {len(args)}"
            )
        bound = dict(zip((a.name for a in positional), args, strict=False))
        names = {a.name for a in self.node_arguments}
        for name, value in kwargs.items():
            name = "self" if name == "input" and "input" not in names else name
            if name not in names or name in bound:
                raise TypeError(f"[{self.name}] got an unexpected argument {name!r}")
            bound[name] = value
        for argument in self.node_arguments:
            if argument.name not in bound:
                if argument.required:
                    raise TypeError(f"[{self.name}] expected the argument {argument.name!r}")
                bound[argument.name] = argument.default
        return {a.name: bound[a.name] for a in self.node_arguments}
