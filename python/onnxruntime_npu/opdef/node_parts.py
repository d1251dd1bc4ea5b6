"""The inputs, attributes and outputs of a node, derived from a torch schema."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from . import dtypes as dt
from .schema import Argument, Schema, Type, parse_schema
from .type_codes import NumberType, TypeArgument, TypeCodes, TypedBy

# Torch schema types that become attributes, with the ONNX attribute kind. A ScalarType becomes
# ONNX's type number.
_ATTRIBUTE_KINDS = {
    "int": "int",
    "SymInt": "int",
    "bool": "int",
    "ScalarType": "int",
    "float": "float",
    "Scalar": "float",
    "str": "string",
}
# Arguments that only control torch's allocation or generator; kernels get these from the stream.
_NOT_IN_ONNX = frozenset({"Device", "Layout", "Generator"})


# The additional attribute of an operator that draws random numbers: the seed; 0 lets the runtime
# choose it.
SEED = Argument("seed", Type("int"), default=0)


# In `typings`: an optional input that must be omitted.
ABSENT = "absent"


class DefinitionError(ValueError):
    """A definition contradicts itself; the message names the operator and the fix."""


@dataclass(frozen=True)
class Input:
    """A node input, derived from one argument of the schema."""

    name: str
    argument: Argument
    dtypes: tuple[str, ...]
    optional: bool
    variadic: bool
    cpu: bool  # the kernel reads the values on the host
    late: bool  # or on the device when it runs, in a session that replays graphs
    dtype_note: str = ""  # what an error says after a type that is not among them

    @property
    def is_list_of_ints(self) -> bool:
        """Whether torch passes integers, which become a 1-D int64 tensor."""
        return not self.argument.type.is_tensor


@dataclass(frozen=True)
class Attribute:
    """A node attribute, derived from one argument of the schema."""

    name: str
    argument: Argument
    kind: str  # int, float, string, ints, floats, strings
    names_type: TypeArgument | None = None  # of an argument that names an element type by a code
    number_type: NumberType | None = None  # of one that has the type of a number instead of it
    aliases: tuple[str, ...] = ()  # names that files of others give it
    words: tuple[str, ...] = ()  # strings that such files have for the integers from 0 on

    def given(self, get: Callable[[str], Any], otherwise: Any = None) -> Any:
        """Return the value that a node has under any of the names, as the kernel takes it.

        ``get`` returns the node's attribute of a name, None if it has none.
        """
        values = (get(name) for name in (self.name, *self.aliases))
        value = next((v for v in values if v is not None), None)
        if value is None:
            return otherwise
        return self.words.index(value) if value in self.words else value

    @property
    def required(self) -> bool:
        """Whether a node must have the attribute."""
        return self.argument.required and not self.argument.type.optional

    @property
    def default(self) -> Any:
        """Value of an absent attribute in ONNX's types; None when absence has its own meaning."""
        if self.argument.required or self.number_type:
            return None
        return self.to_onnx(self.argument.default)

    def to_onnx(self, value: Any) -> Any:
        """Convert an argument's value to the attribute's kind; None (absent) is unchanged."""
        if value is None:
            return None
        if self.number_type:
            return self.number_type.code_of(value)
        if self.names_type:
            return self.names_type.code_of(value)
        if self.argument.type.base == "ScalarType":
            return value if isinstance(value, int) else dt.NUMBERS[dt.from_torch(value)]
        convert = {"int": int, "float": float, "string": str}[self.kind.removesuffix("s")]
        if not self.kind.endswith("s"):
            return convert(value)
        return [convert(v) for v in value] if isinstance(value, Iterable) else [convert(value)]

    def from_onnx(self, value: Any, given: Any = None) -> Any:
        """Return the argument that a node's attribute stands for, as the reference takes it.

        ``given`` is what an attribute before this one has made of the same argument.
        """
        if self.number_type:
            return self.number_type.typed(given, value)
        if value is None:
            return None
        if self.names_type:
            return self.names_type.from_code(value)
        if self.argument.type.base == "ScalarType":
            return dt.to_torch(dt.NAMES[value])
        if self.argument.type.base == "bool" and not self.kind.endswith("s"):
            return bool(value)
        return value


@dataclass(frozen=True)
class Output:
    """A node output: a result, or an argument that the operator writes to."""

    name: str
    dtypes: tuple[str, ...]
    variadic: bool = False
    mutates: str | None = None  # the input whose new value this output is


@dataclass(frozen=True)
class AttributeTyping:
    """The types of an output by the value of an attribute."""

    output: int
    attribute: str
    types: tuple[tuple[int, str], ...]  # the node's code, and the type of the output
    absent: str | None  # the type without the attribute
    otherwise_input: bool  # whether it has the first input's type where no other is given
    added_axes: str  # the attribute that says how many axes more than that input it has, if any


def attribute_typings(
    op: str,
    stated: Mapping[str, TypedBy],
    attributes: Sequence[Attribute],
    outputs: Sequence[Output],
) -> tuple[AttributeTyping, ...]:
    """Return the outputs whose types follow from arguments that name types, or number modes."""
    named = {a.argument.name: a for a in attributes if a.kind == "int"}
    positions = {y.name: i for i, y in enumerate(outputs)}
    made = []
    for name, rule in stated.items():
        deciding = {rule.argument, rule.added_axes or rule.argument}
        if name not in positions or not deciding.issubset(named):
            raise DefinitionError(
                f"[{op}] expected 'typed_by' to name outputs, and integer arguments, "
                f"got {name!r} by {rule.argument!r}"
            )
        attribute = named[rule.argument]
        code_of = dt.NUMBERS.__getitem__ if attribute.number_type else attribute.to_onnx
        types = [(code_of(given), type_) for given, type_ in rule.types.items()]
        made.append(
            AttributeTyping(
                positions[name],
                attribute.name,
                tuple(types),
                rule.types.get(rule.default),
                rule.otherwise_input,
                rule.added_axes and named[rule.added_axes].name,
            )
        )
    return tuple(made)


def checked_typings(
    op: str,
    stated: Iterable[Mapping[str, str]],
    inputs: Sequence[Input],
    outputs: Sequence[Output],
) -> tuple[Mapping[str, str], ...]:
    """Return the combinations of types after checking that the tensors allow them."""
    allowed = {x.name: {*x.dtypes, *([ABSENT] if x.optional else [])} for x in inputs}
    allowed |= {y.name: set(y.dtypes) for y in outputs}
    checked = tuple(stated)
    for typing in checked:
        for name, type_ in typing.items():
            if type_ not in allowed.get(name, ()):
                raise DefinitionError(
                    f"[{op}] expected 'typings' to give tensors and outputs types of theirs, got "
                    f"{type_!r} for {name!r}"
                )
    return checked


def _dtype_names(op: str, name: str, dtypes: Mapping[str, Sequence[str]]) -> tuple[str, ...]:
    if name not in dtypes:
        raise DefinitionError(f"[{op}] expected 'dtypes' to give the element types of {name!r}")
    names = tuple(dtypes[name])
    unknown = [n for n in names if n not in dt.NUMBERS]
    if unknown or not names or isinstance(dtypes[name], str):
        raise DefinitionError(
            f"[{op}] expected a list of dtype names for {name!r}, got {dtypes[name]!r}"
        )
    return names


def split_arguments(
    schema: Schema,
    dtypes: Mapping[str, Sequence[str]],
    cpu: frozenset[str],
    late: frozenset[str] = frozenset(),
    type_codes: Mapping[str, TypeCodes] | None = None,
    dtype_notes: Mapping[str, str] | None = None,
) -> tuple[tuple[Input, ...], tuple[Attribute, ...]]:
    """Return the arguments of the schema as node inputs and attributes.

    ``cpu`` names those whose values the kernel reads on the host, ``late`` those of them that it
    can also read on the device when it runs, ``type_codes`` those that name element types, and
    ``dtype_notes`` has what errors say of other element types.
    """
    type_codes, dtype_notes = type_codes or {}, dtype_notes or {}
    inputs: list[Input] = []
    attributes: list[Attribute] = []
    for argument in schema.arguments:
        type_ = argument.type
        if type_.is_tensor:
            names = _dtype_names(schema.name, argument.name, dtypes)
            inputs.append(
                Input(
                    argument.name,
                    argument,
                    names,
                    type_.optional,
                    type_.is_list,
                    argument.name in cpu,
                    argument.name in late,
                    dtype_notes.get(argument.name, ""),
                )
            )
        elif type_.is_list and (type_.base == "SymInt" or argument.name in cpu):
            if type_.base not in ("int", "SymInt"):
                raise DefinitionError(
                    f"[{schema.name}] expected a tensor or an int list in 'cpu', got {argument}"
                )
            inputs.append(
                Input(
                    argument.name,
                    argument,
                    ("int64",),
                    type_.optional,
                    False,
                    cpu=True,
                    late=argument.name in late,
                )
            )
        elif argument.name in type_codes:
            if type_.is_list or _ATTRIBUTE_KINDS.get(type_.base) != "int":
                raise DefinitionError(
                    f"[{schema.name}] expected 'type_codes' to name integers, got {argument}"
                )
            types = type_codes[argument.name]
            name = types.attribute or argument.name
            type_argument = TypeArgument(schema.name, argument.name, types)
            attributes.append(Attribute(name, argument, "int", type_argument))
        elif type_.base in _ATTRIBUTE_KINDS:
            kind = _ATTRIBUTE_KINDS[type_.base] + ("s" if type_.is_list else "")
            attributes.append(Attribute(argument.name, argument, kind))
        elif type_.base not in _NOT_IN_ONNX:
            raise DefinitionError(f"[{schema.name}] has no ONNX form for the argument {argument}")
    if sum(x.variadic for x in inputs) > 1 or any(x.variadic for x in inputs[:-1]):
        raise DefinitionError(
            f"[{schema.name}] expected at most one tensor list, as the last tensor argument"
        )
    return tuple(inputs), tuple(attributes)


def understood_in_files(
    op: str,
    attributes: Sequence[Attribute],
    names: Mapping[str, str],
    aliases: Mapping[str, Sequence[str]],
    words: Mapping[str, Sequence[str]],
) -> tuple[Attribute, ...]:
    """Return attributes with their names in nodes, other names and words of files, by argument."""
    understood = []
    for attribute in attributes:
        argument = attribute.argument.name
        name = names.get(argument, attribute.name)
        others = (*([argument] if name != argument else []), *aliases.get(argument, ()))
        understood.append(
            replace(attribute, name=name, aliases=others, words=tuple(words.get(argument, ())))
        )
        if understood[-1].words and attribute.kind != "int":
            raise DefinitionError(f"[{op}] expected 'attribute_words' of integers, got {argument}")
    every = [name for a in understood for name in (a.name, *a.aliases)]
    if repeated := {name for name in every if every.count(name) > 1}:
        raise DefinitionError(
            f"[{op}] expected each name of attributes once, got {sorted(repeated)} again"
        )
    return tuple(understood)


def node_outputs(
    schema: Schema,
    dtypes: Mapping[str, Sequence[str]],
    names: Sequence[str] | None,
    inputs: tuple[Input, ...],
) -> tuple[Output, ...]:
    """Return the results, followed by the written arguments that are not results."""
    written = {x.argument.type.alias: x.name for x in inputs if x.argument.type.mutated}
    results: list[tuple[Argument, str | None]] = []
    tensors = list(schema.returns)
    while len(tensors) > 1 and str(tensors[-1].type) in ("int", "SymInt"):  # @op.host returns these
        tensors.pop()
    for result in tensors:
        if not result.type.is_tensor:
            raise DefinitionError(f"[{schema.name}] has no ONNX form for a result of {result.type}")
        results.append((result, written.pop(result.type.alias, None)))
    results += [(schema.argument(name), name) for name in written.values()]
    if names is None:
        names = [r.name for r, _ in results]
        if len(results) == 1 and not names[0]:
            names = ["y"]
    if len(names) != len(results) or not all(names) or len(set(names)) != len(names):
        raise DefinitionError(
            f"[{schema.name}] expected {len(results)} distinct output names, got {list(names)}"
        )
    outputs = []
    by_name = {x.name: x for x in inputs}
    for name, (result, mutates) in zip(names, results, strict=True):
        if mutates and name not in dtypes:
            element_types = by_name[mutates].dtypes
        else:
            element_types = _dtype_names(schema.name, name, dtypes)
        outputs.append(Output(name, element_types, result.type.is_list, mutates))
    return tuple(outputs)


def parse_twin(schema: Schema, text: str) -> Schema:
    """Parse the schema of a twin and check that it has the arguments of ``schema``."""
    twin = parse_schema(text)

    def signature(s: Schema) -> list[tuple[str, str, bool, Any]]:
        return [
            (a.type.base, a.name, a.keyword_only, None if a.required else a.default)
            for a in s.arguments
        ]

    if signature(twin) != signature(schema):
        raise DefinitionError(f"expected the arguments of {schema} in its twin, got {twin}")
    return twin


def parse_out(schema: Schema, text: str) -> Schema:
    """Parse the schema of the overload that writes into given tensors, and check it."""
    out = parse_schema(text)
    known = {a.name for a in schema.arguments}
    own = tuple(a for a in out.arguments if a.name in known)
    written = [a for a in out.arguments if a.type.mutated]
    others = [a for a in out.arguments if a.name not in known and not a.type.mutated]
    fits = len(written) == len(schema.returns) or [a.type.is_list for a in written] == [True]
    if (
        out.name != schema.name
        or own != schema.arguments
        or not fits
        or [str(a) for a in others] not in ([], ["Tensor? workspace=None"])
    ):
        raise DefinitionError(
            f"expected the arguments of {schema}, perhaps a workspace, and tensors to write to in "
            f"its overload, got {out}"
        )
    return out
