"""Portable bodies: the ONNX functions that make a model with ``npu::`` nodes run anywhere.

A definition's ``@op.function`` is a Python function that builds the body for one *specialisation*:
given attribute values, presence of optional inputs, element types and, if it reads them, ranks.
Every specialisation in a model is one FunctionProto, distinguished by its ``overload``; the
first of each op type has the empty overload.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir
import onnxscript

from . import dtypes as dt
from .definition import NotPortable, Op
from .node_parts import DefinitionError


@dataclass(frozen=True)
class TensorType:
    """The type of a node input: its dtype name and, if known, its rank."""

    dtype: str
    rank: int | None = None


class Call:
    """The specialisation that a body is built for, as ``call`` in ``body(b, call, *inputs)``."""

    def __init__(
        self,
        op: Op,
        attrs: Mapping[str, Any],
        types: Mapping[str, TensorType | list[TensorType] | None],
        opset: int,
    ):
        self.attrs = dict(attrs)
        self.opset = opset
        self.used_ranks: dict[str, int | None] = {}
        self._op = op
        self._types = types

    def dtype(self, name: str) -> str:
        """Return the element type of input ``name``, for instance ``"float16"``."""
        return self._type(name).dtype

    def rank(self, name: str) -> int | None:
        """Return the rank of input ``name``; None if the model does not specify it."""
        rank = self._type(name).rank
        self.used_ranks[name] = rank
        return rank

    def present(self, name: str) -> bool:
        """Whether the optional input ``name`` is given."""
        return self._types.get(name) is not None

    def _type(self, name: str) -> TensorType:
        if name not in self._types:
            raise DefinitionError(f"[{self._op.name}] has no input {name!r}")
        found = self._types[name]
        if isinstance(found, list):
            found = found[0] if found else None
        if found is None:
            raise DefinitionError(f"[{self._op.name}] input {name!r} is absent in this call")
        return found


class Builder:
    """Builds nodes: ``b.Mul(x, 2.0)``, ``b.Cast(x, to="float32")``, ``b.Split(x, num_outputs=2)``.

    Python numbers and lists among the inputs become constants of the type of the operator's other
    inputs. An operator with several results returns them all.
    """

    def __init__(self, op: onnxscript.OpBuilder):
        self._op = op
        self._scans = itertools.count()

    def __getattr__(self, op_type: str) -> Callable[..., Any]:
        if op_type.startswith("_"):
            raise AttributeError(op_type)
        make = getattr(self._op, op_type)

        def node(*inputs: Any, **attributes: Any) -> Any:
            for key in ("to", "dtype"):
                if isinstance(attributes.get(key), str):
                    attributes[key] = dt.NUMBERS[attributes[key]]
            count = attributes.get("num_outputs") or _RESULT_COUNTS.get(op_type, 1)
            return make(*inputs, **{"_outputs": count, **attributes})

        return node

    def scan(
        self,
        step: Callable[..., Sequence[ir.Value]],
        dtype: str,
        states: Sequence[ir.Value],
        sequences: Sequence[ir.Value],
        *,
        results: int,
        reverse: bool = False,
        final: bool = False,
    ) -> list[ir.Value]:
        """Return the results of every step, stacked along axis 0; with ``final`` after the states.

        ``step(b, *states, *elements)`` builds one step, from the states before it and from what the
        sequences have for it along axis 0, and returns the new states and its results; it may use
        values of the body. All are of ``dtype``. With ``reverse`` the last step comes first, and
        its results stay in its place. The states with ``final`` are those after another step that
        follows the last, whose elements are zeros.
        """
        name, number = "step", next(self._scans)
        # onnxruntime's Scan needs a step: another one follows the last, and its results are left.
        pads = self.const([1, 0] if reverse else [0, 1], "int64")
        axis = self.const([0], "int64")
        sequences = [self._op.Pad(x, pads, None, axis) for x in sequences]
        type_ = ir.TensorType(ir.DataType(dt.NUMBERS[dtype]))

        def declare(kind: str, count: int) -> list[ir.Value]:
            return [ir.Value(name=f"{name}{number}_{kind}{i}", type=type_) for i in range(count)]

        # Values have numbers that begin anew in a graph: without a name before them, a step would
        # give its own the names of some of the body's.
        self._op.builder.push_module(f"{name}{number}")
        body = self._op.builder.subgraph(
            lambda op, *values: list(step(Builder(op), *values)),
            declare("in", len(states) + len(sequences)),
            declare("out", len(states) + results),
            name=f"{name}{number}",
        )
        self._op.builder.pop_module()
        directions = {
            f"scan_{kind}_directions": [int(reverse)] * count
            for kind, count in (("input", len(sequences)), ("output", results))
        }
        made = self._op.Scan(
            *states,
            *sequences,
            body=body,
            num_scan_inputs=len(sequences),
            _outputs=len(states) + results,
            **directions,
        )
        begin, end = (1, _END) if reverse else (0, -1)
        stacked = [self.Slice(y, [begin], [end], [0]) for y in made[len(states) :]]
        return [*made[: len(states)], *stacked] if final else stacked

    def const(self, value: Any, dtype: str) -> ir.Value:
        """Return a constant of the given element type."""
        data_type = ir.DataType(dt.NUMBERS[dtype])
        array = np.asarray(value).astype(data_type.numpy())
        return self._op.Constant(value=ir.tensor(array, dtype=data_type))


_END = 2**31 - 1
_RESULT_COUNTS = {"TopK": 2}


@dataclass
class _Built:
    function: ir.Function
    used_ranks: dict[str, int | None]


class BodyLibrary:
    """The bodies of one model, each specialisation built once."""

    def __init__(self, opset: int, taken: Sequence[tuple[str, str]] = ()):
        self._opset = opset
        self._built: dict[tuple[Any, ...], list[_Built]] = {}
        self._count: dict[str, int] = {}
        self._taken = set(taken)

    def body_for(
        self,
        op: Op,
        op_type: str,
        attrs: Mapping[str, Any],
        types: Sequence[TensorType | None],
    ) -> ir.Function | None:
        """Return the function for a node, or None if it has no portable form.

        Args:
            op: the node's operator.
            op_type: the node's op type, possibly an alias.
            attrs: the node's attributes.
            types: of the node's inputs, None where one is omitted.

        """
        if op.body_function is None:
            return None
        named = _by_name(op, types)
        values = {a.name: _as_stored(a.given(attrs.get, a.default)) for a in op.attributes}
        key = (
            op_type,
            op.name,
            tuple(None if t is None else t.dtype for t in types),
            tuple(tuple(v) if isinstance(v, list) else v for v in values.values()),
        )
        for built in self._built.get(key, ()):
            if all(Call(op, {}, named, 0).rank(n) == r for n, r in built.used_ranks.items()):
                return built.function
        call = Call(op, values, named, self._opset)
        try:
            function = self._build(op, op_type, call, named)
        except NotPortable:
            return None
        self._built.setdefault(key, []).append(_Built(function, call.used_ranks))
        return function

    def _build(
        self,
        op: Op,
        op_type: str,
        call: Call,
        named: Mapping[str, TensorType | list[TensorType] | None],
    ) -> ir.Function:
        formal: list[ir.Value] = []
        actual: list[Any] = []

        def declare(name: str, type_: TensorType | None) -> ir.Value | None:
            value = ir.Value(name=name)
            formal.append(value)
            if type_ is None:
                return None
            value.type = ir.TensorType(ir.DataType(dt.NUMBERS[type_.dtype]))
            return value

        for node_input in op.inputs:
            type_ = named[node_input.name]
            if isinstance(type_, list):
                names = (f"{node_input.name}_{i}" for i in range(len(type_)))
                actual.append([declare(n, t) for n, t in zip(names, type_, strict=True)])
            else:
                actual.append(declare(node_input.name, type_))

        def trace(builder: onnxscript.OpBuilder, *_: Any) -> list[ir.Value]:
            b = Builder(builder)
            assert op.body_function is not None
            results = op.body_function(b, call, *actual)
            results = list(results) if isinstance(results, (list, tuple)) else [results]
            if len(results) != len(op.outputs) and not op.outputs[-1].variadic:
                raise DefinitionError(
                    f"[{op.name}] expected {len(op.outputs)} outputs of the function body, "
                    f"got {len(results)}"
                )
            # An output must be the result of its own node.
            seen: set[int] = {id(v) for v in formal}
            for i, value in enumerate(results):
                if id(value) in seen:
                    results[i] = b.Identity(value)
                seen.add(id(results[i]))
            return results

        function = onnxscript.build_function(
            trace,
            formal,
            domain="npu",
            name=op_type,
            attributes=[
                ir.convenience.convert_attribute(a.name, v, a_type)
                for a, v, a_type in (
                    (a, call.attrs[a.name], IR_ATTRIBUTE_TYPES[a.kind]) for a in op.attributes
                )
                if v is not None
            ],
            opset_imports={"": self._opset},
        )
        function.overload = self._overload(op_type)
        for node in function:
            node.metadata_props.clear()
        return function

    def _overload(self, op_type: str) -> str:
        while True:
            number = self._count.get(op_type, 0)
            self._count[op_type] = number + 1
            overload = str(number) if number else ""
            if (op_type, overload) not in self._taken:
                return overload


IR_ATTRIBUTE_TYPES = {
    "int": ir.AttributeType.INT,
    "float": ir.AttributeType.FLOAT,
    "string": ir.AttributeType.STRING,
    "ints": ir.AttributeType.INTS,
    "floats": ir.AttributeType.FLOATS,
    "strings": ir.AttributeType.STRINGS,
}


def _as_stored(value: Any) -> Any:
    """Round floats to their stored precision, so that an explicit default equals the default."""
    if isinstance(value, float):
        return float(np.float32(value))
    return [_as_stored(v) for v in value] if isinstance(value, list) else value


def _by_name(
    op: Op, types: Sequence[TensorType | None]
) -> dict[str, TensorType | list[TensorType] | None]:
    named: dict[str, TensorType | list[TensorType] | None] = {}
    for i, node_input in enumerate(op.inputs):
        if node_input.variadic:
            named[node_input.name] = [t for t in types[i:] if t is not None]
        else:
            named[node_input.name] = types[i] if i < len(types) else None
    return named
