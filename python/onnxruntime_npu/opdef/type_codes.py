"""Element types that an argument names: by torch's number in a call, by another code in a node.

torch_npu's schemas take such a type as an ``int`` or a ``ScalarType``, and its exporter writes the
code of the graph engine instead. A node has that code, so that files of both exporters mean the
same; the reference gets the name of the type.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from ..errors import ArgumentError
from .dtypes import NUMBERS

# torch.ScalarType, and behind it the types that only torch_npu numbers.
_TORCH_TYPES = {
    "uint8": 0,
    "int8": 1,
    "int16": 2,
    "int32": 3,
    "int64": 4,
    "float16": 5,
    "float32": 6,
    "float64": 7,
    "complex32": 8,
    "complex64": 9,
    "complex128": 10,
    "bool": 11,
    "qint8": 12,
    "quint8": 13,
    "qint32": 14,
    "bfloat16": 15,
    "quint4x2": 16,
    "quint2x4": 17,
    "float8_e5m2": 23,
    "float8_e4m3fn": 24,
    "float8_e5m2fnuz": 25,
    "float8_e4m3fnuz": 26,
    "uint16": 27,
    "uint32": 28,
    "uint64": 29,
    "int4": 40,
    "hifloat8": 290,
    "ext_float8_e5m2": 291,
    "ext_float8_e4m3fn": 292,
    "float4_e2m1": 296,
    "float4_e1m2": 297,
}
_TORCH_NUMBERS = [*_TORCH_TYPES.items(), ("int4", 285)]  # the last is torch_npu's own
_TORCH_NAMES = {number: name for name, number in _TORCH_NUMBERS}
_ONNX_NAMES = {"float": "float32", "double": "float64"}  # where ONNX's name is not torch's
# What torch calls the quantised types, and what their elements are.
_ELEMENTS = {"qint8": "int8", "quint8": "uint8", "qint32": "int32", "quint4x2": "int4"}


@dataclass(frozen=True)
class TypeCodes:
    """The types that an argument may name.

    ``codes`` has the node's code of each by its name, ``attribute`` is what the node calls the
    argument where that differs, and ``refusal`` what an error says first.
    """

    codes: Mapping[str, int]
    attribute: str = ""
    refusal: str = ""


@dataclass(frozen=True)
class TypedBy:
    """The type of a result by the type that ``argument`` names, and the one that it has by default.

    ``types`` has the result's type for each name: int4 is held in int32. Any other integer argument
    may decide as well, by its values; ``otherwise_input`` gives the result the first tensor's type
    where no other is listed. The result has as many axes more than that tensor as the integer
    argument ``added_axes`` says, if any is named.
    """

    argument: str
    types: Mapping[Any, str]
    default: str = ""
    otherwise_input: bool = False
    added_axes: str = ""


@dataclass(frozen=True)
class NumberType:
    """The type of a number that a call gives, int64, float32 or bool, in a node's attribute.

    ``stated`` says whether nodes have it; without it a result has its default type.
    """

    attribute: str
    stated: bool = True

    def code_of(self, value: Any) -> int | None:
        """Return the number of the type, None if it is not stated."""
        if not self.stated:
            return None
        name = {bool: "bool", int: "int64"}.get(type(value), "float32")
        return NUMBERS[name]

    def typed(self, value: Any, code: int | None) -> Any:
        """Return the number of a node, a float, as a call of that type gives it."""
        convert = {NUMBERS["bool"]: bool, NUMBERS["int64"]: int}.get(code or 0)
        return convert(value) if convert else value


class TypeArgument:
    """One such argument of an operator."""

    def __init__(self, op: str, argument: str, types: TypeCodes):
        self._codes = dict(types.codes)
        self._names = {code: name for name, code in types.codes.items()}
        names = list(types.codes)
        allowed = " or ".join(filter(None, (", ".join(names[:-1]), names[-1])))
        self.refusal = f"[{op}] {types.refusal}expected {argument} to name {allowed}, got "

    def name_of(self, value: Any) -> str | None:
        """Return the name of the type that a call gives; None, the default, stays None.

        Raises:
            ArgumentError: the argument may not name this type.

        """
        if value is None:
            return None
        given = _given(value)
        name = _ELEMENTS.get(given, given)
        if name not in self._codes:
            raise ArgumentError(self.refusal + described(given))
        return name

    def code_of(self, value: Any) -> int | None:
        """Return the code that the node has for what a call gives."""
        name = self.name_of(value)
        return None if name is None else self._codes[name]

    def from_code(self, code: int | None) -> str | None:
        """Return the name of the type that a node's code stands for, its digits if for none."""
        return None if code is None else self._names.get(code, str(code))

    def numbers(self) -> list[tuple[int, int]]:
        """Return torch's number and the node's code of everything that may be named."""
        elements = ((number, _ELEMENTS.get(name, name)) for name, number in _TORCH_NUMBERS)
        return [(number, self._codes[name]) for number, name in elements if name in self._codes]


def described(name: str) -> str:
    """Return how an error names a type that is not taken."""
    return f"{name}; the host NPU has no float8" if "float8" in name else name


def described_numbers() -> list[tuple[int, str]]:
    """Return how an error names each of torch's numbers."""
    return [(number, described(name)) for name, number in _TORCH_NUMBERS]


def _given(value: Any) -> str:
    if isinstance(value, Enum):  # torch.onnx.export hands ONNX's types over
        return _ONNX_NAMES.get(value.name.lower(), value.name.lower())
    if isinstance(value, int):
        return _TORCH_NAMES.get(value, str(value))
    return str(value).removeprefix("torch.")
