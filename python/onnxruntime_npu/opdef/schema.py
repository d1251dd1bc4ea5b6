"""Torch operator schemas: ``npu_rms_norm(Tensor self, Tensor gamma, float epsilon=1e-06) -> ...``.

The schema string is the single source of argument names, order, types and defaults. It is parsed
here, without torch, because the build reads it on machines that have no torch.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

_VALUES = ("Tensor", "int", "SymInt", "float", "bool", "str", "Scalar", "ScalarType")
BASE_TYPES = frozenset((*_VALUES, "Device", "Layout", "Generator"))


class SchemaError(ValueError):
    """The schema string is not a torch operator schema; the message says where."""


class _Missing:
    """The default of an argument that has none."""

    def __repr__(self) -> str:
        return "REQUIRED"


REQUIRED = _Missing()


@dataclass(frozen=True)
class Type:
    """A torch schema type, for instance ``Tensor(a!)``, ``SymInt[]?`` or ``int[2]``."""

    base: str
    optional: bool = False
    is_list: bool = False
    size: int | None = None  # of a fixed-size list
    optional_elements: bool = False  # Tensor?[]
    alias: str = ""  # "a!": written to; "a": a view of

    @property
    def is_tensor(self) -> bool:
        """Whether values are tensors or lists of tensors."""
        return self.base == "Tensor"

    @property
    def mutated(self) -> bool:
        """Whether the operator writes to the argument."""
        return self.alias.endswith("!")

    def __str__(self) -> str:
        alias = f"({self.alias})" if self.alias else ""
        text = self.base + alias
        if self.is_list:
            size = "" if self.size is None else str(self.size)
            text += ("?" if self.optional_elements else "") + f"[{size}]"
        return text + ("?" if self.optional else "")


@dataclass(frozen=True)
class Argument:
    """One parameter, or one result when it comes from the right-hand side."""

    name: str
    type: Type
    default: Any = REQUIRED
    keyword_only: bool = False

    @property
    def required(self) -> bool:
        """Whether a call must pass the argument."""
        return self.default is REQUIRED

    def __str__(self) -> str:
        text = f"{self.type} {self.name}".rstrip()
        return text if self.required else f"{text}={_format_value(self.default)}"


@dataclass(frozen=True)
class Schema:
    """A parsed schema; ``str()`` returns the string that torch accepts."""

    name: str
    overload: str
    arguments: tuple[Argument, ...]
    returns: tuple[Argument, ...]

    def argument(self, name: str) -> Argument:
        """Return the argument called ``name``; KeyError names the operator."""
        for argument in self.arguments:
            if argument.name == name:
                return argument
        raise KeyError(f"{self.name} has no argument {name!r}")

    def renamed(self, names: dict[str, str]) -> Schema:
        """Return the schema with arguments renamed."""
        arguments = tuple(replace(a, name=names.get(a.name, a.name)) for a in self.arguments)
        return replace(self, arguments=arguments)

    def __str__(self) -> str:
        name = f"{self.name}.{self.overload}" if self.overload else self.name
        parts: list[str] = []
        for argument in self.arguments:
            if argument.keyword_only and "*" not in parts:
                parts.append("*")
            parts.append(str(argument))
        returns = ", ".join(str(r) for r in self.returns)
        if len(self.returns) != 1:
            returns = f"({returns})"
        return f"{name}({', '.join(parts)}) -> {returns}"


_HEAD = re.compile(r"\s*(?:npu::)?([A-Za-z_]\w*)(?:\.(\w+))?\s*\(")
_TYPE = re.compile(
    r"\s*(?P<base>[A-Za-z]\w*)(?:\((?P<alias>[a-z]!?)\))?"
    r"(?:(?P<element>\?)?\[(?P<size>\d*)\])?(?P<optional>\?)?\s*"
)
_NAME = re.compile(r"[A-Za-z_]\w*\s*")


def parse_schema(text: str) -> Schema:
    """Parse a torch schema string; an ``npu::`` prefix is accepted.

    Raises SchemaError that quotes the part that is not understood.
    """
    head = _HEAD.match(text)
    if not head:
        raise SchemaError(f"expected 'name(arguments) -> returns', got {text!r}")
    arguments_text, rest = _until_closing(text, head.end())
    arrow = re.match(r"\s*->\s*", rest)
    if not arrow:
        raise SchemaError(f"expected '->' after the arguments of {head[1]}, got {rest!r}")
    arguments: list[Argument] = []
    keyword_only = False
    for part in _split(arguments_text):
        if part == "*":
            keyword_only = True
            continue
        arguments.append(_parse_argument(part, keyword_only, head[1]))
    names = [a.name for a in arguments]
    if len(set(names)) != len(names):
        raise SchemaError(f"expected distinct argument names in {head[1]}, got {names}")
    returns = _parse_returns(rest[arrow.end() :].strip(), head[1])
    return Schema(head[1], head[2] or "", tuple(arguments), returns)


def _outside_strings(text: str, start: int = 0) -> Iterator[tuple[int, str, int]]:
    """Yield index, character and bracket nesting depth."""
    depth, quote = 0, ""
    for i in range(start, len(text)):
        c = text[i]
        if quote:
            quote = "" if c == quote else quote
            continue
        if c in "\"'":
            quote = c
            continue
        depth += (c in "([") - (c in ")]")
        yield i, c, depth


def _until_closing(text: str, start: int) -> tuple[str, str]:
    """Return the text up to the parenthesis that closes ``text[start - 1]``, and the rest."""
    for i, _, depth in _outside_strings(text, start):
        if depth < 0:
            return text[start:i], text[i + 1 :]
    raise SchemaError(f"expected a closing parenthesis in {text!r}")


def _split(text: str) -> list[str]:
    """Split at the commas that are outside brackets and strings."""
    parts, start = [], 0
    for i, c, depth in _outside_strings(text):
        if c == "," and depth == 0:
            parts.append(text[start:i].strip())
            start = i + 1
    last = text[start:].strip()
    return [*parts, last] if last or parts else []


def _parse_type(text: str, op: str) -> tuple[Type, str]:
    match = _TYPE.match(text)
    if not match or match["base"] not in BASE_TYPES:
        raise SchemaError(f"expected a torch schema type in {op}, got {text!r}")
    is_list = match["size"] is not None
    return Type(
        match["base"],
        optional=match["optional"] is not None,
        is_list=is_list,
        size=int(match["size"]) if match["size"] else None,
        optional_elements=match["element"] is not None,
        alias=match["alias"] or "",
    ), text[match.end() :]


def _parse_argument(text: str, keyword_only: bool, op: str) -> Argument:
    type_, rest = _parse_type(text, op)
    name = _NAME.match(rest)
    if not name:
        raise SchemaError(f"expected an argument name in {op}, got {text!r}")
    tail = rest[name.end() :].strip()
    if not tail:
        return Argument(name[0].strip(), type_, keyword_only=keyword_only)
    if not tail.startswith("="):
        raise SchemaError(f"expected '=' before a default in {op}, got {text!r}")
    return Argument(name[0].strip(), type_, _parse_value(tail[1:].strip(), type_, op), keyword_only)


def _parse_value(text: str, type_: Type, op: str) -> Any:
    if text == "None" and type_.optional:
        return None
    if type_.is_list:
        element = replace(type_, is_list=False, optional=False, size=None)
        if text.startswith("[") and text.endswith("]"):
            return [_parse_value(item, element, op) for item in _split(text[1:-1])]
        return [_parse_value(text, element, op)] * (type_.size or 1)
    try:
        if type_.base == "bool" and text in ("True", "False"):
            return text == "True"
        if type_.base in ("int", "SymInt"):
            return int(text)
        if type_.base == "float":
            return float(text)
        if type_.base == "Scalar":
            return float(text) if re.search(r"[.eE]|inf|nan", text) else int(text)
        if type_.base == "str" and len(text) >= 2 and text[0] == text[-1] and text[0] in "\"'":
            return text[1:-1]
    except ValueError:
        pass
    raise SchemaError(f"expected a default of type {type_} in {op}, got {text!r}")


def _parse_returns(text: str, op: str) -> tuple[Argument, ...]:
    if text.startswith("("):
        inner, rest = _until_closing(text, 1)
        if rest.strip():
            raise SchemaError(f"expected the end of the schema of {op}, got {rest!r}")
        parts = _split(inner)
    else:
        parts = [text]
    returns = []
    for part in parts:
        type_, name = _parse_type(part, op)
        if name and not _NAME.fullmatch(name):
            raise SchemaError(f"expected a result of {op}, got {part!r}")
        returns.append(Argument(name.strip(), type_))
    return tuple(returns)


def _format_value(value: Any) -> str:
    if isinstance(value, str):
        return f'"{value}"'
    if isinstance(value, list):
        return f"[{', '.join(_format_value(v) for v in value)}]"
    return repr(value)
