"""ONNX op types: the possible forms of a node of a given type.

Usually one operator has one op type. Files of other exporters also use other names (aliases), and
upstream uses ``NPURmsNorm`` for two operators, distinguished by their number of inputs. A
:class:`NodeType` is the union of its operators' signatures.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import zip_longest

from .definition import Op
from .discovery import all_ops
from .node_parts import Attribute, DefinitionError, Input, Output
from .schema import Argument, Type


@dataclass(frozen=True)
class NodeType:
    """One op type in domain ``npu``."""

    type: str
    inputs: tuple[Input, ...]
    outputs: tuple[Output, ...]
    attributes: tuple[Attribute, ...]
    min_inputs: int
    may_alias: tuple[tuple[int, int], ...]
    mutable_alias: tuple[tuple[int, int], ...]
    ops: tuple[tuple[int | None, Op], ...]  # (number of inputs that selects it, operator)

    def op_for(self, input_count: int) -> Op:
        """Return the operator of a node with that many inputs."""
        for count, op in self.ops:
            if count == input_count:
                return op
        for count, op in self.ops:
            if count is None:
                return op
        counts = sorted(count for count, _ in self.ops if count is not None)
        raise DefinitionError(f"{self.type}: expected {counts} inputs, got {input_count}")


@lru_cache(maxsize=1)
def all_node_types() -> dict[str, NodeType]:
    """Return every op type of the operators of the default roots by name, made once."""
    return node_types(all_ops().values())


def node_types(ops: Iterable[Op]) -> dict[str, NodeType]:
    """Return every op type by name."""
    variants: dict[str, list[tuple[int | None, Op]]] = {}
    for op in ops:
        variants.setdefault(op.onnx_type, []).insert(0, (None, op))
        for alias in op.type_aliases:
            meaning = op.taking(alias.order) if alias.order else op
            variants.setdefault(alias.type, []).append((alias.inputs, meaning))
    return {type_: _union(type_, tuple(found)) for type_, found in sorted(variants.items())}


def _union(type_: str, variants: tuple[tuple[int | None, Op], ...]) -> NodeType:
    counts = [count for count, _ in variants]
    if len(set(counts)) != len(counts):
        names = ", ".join(op.name for _, op in variants)
        raise DefinitionError(f"{type_} means {names}: expected TypeAlias(type, inputs=...)")
    ops = [op for _, op in variants]
    for count, op in variants:
        others = (o for c, o in variants if o is not op and c is None)
        for other in others:
            if count is not None and other.min_inputs <= count <= len(other.inputs):
                raise DefinitionError(
                    f"{type_} with {count} inputs means {op.name} and {other.name}"
                )
    min_inputs = min(op.min_inputs for op in ops)
    inputs: list[Input] = []
    for i, column in enumerate(zip_longest(*(op.inputs for op in ops))):
        merged = _union_input(i, [x for x in column if x is not None], i >= min_inputs)
        taken = {x.name for x in inputs}
        inputs.append(replace(merged, name=f"input{i}") if merged.name in taken else merged)
    outputs = [
        _union_output([y for y in column if y is not None])
        for column in zip_longest(*(op.outputs for op in ops))
    ]
    attributes = {
        name: Attribute(name, Argument(name, Type("int", optional=True), default=None), "int")
        for op in ops
        for name in op.ignored_attributes
    } | {a.name: a for op in ops for a in op.attributes}
    if any(op.mutable_alias != ops[0].mutable_alias for op in ops):
        raise DefinitionError(f"{type_}: expected its operators to write to the same inputs")
    return NodeType(
        type=type_,
        inputs=tuple(inputs),
        outputs=tuple(outputs),
        attributes=tuple(attributes.values()),
        min_inputs=min_inputs,
        may_alias=tuple(p for p in ops[0].may_alias if all(p in op.may_alias for op in ops)),
        mutable_alias=ops[0].mutable_alias,
        ops=variants,
    )


def _union_input(position: int, column: list[Input], beyond_minimum: bool) -> Input:
    first = column[0]
    if len({(x.variadic, x.cpu, x.late) for x in column}) > 1:
        raise DefinitionError(
            f"input {position}: {first.name} is a list or in CPU memory in one op"
        )
    return replace(
        first,
        dtypes=_merge(x.dtypes for x in column),
        optional=beyond_minimum or any(x.optional for x in column),
    )


def _union_output(column: list[Output]) -> Output:
    return replace(column[0], dtypes=_merge(y.dtypes for y in column))


def _merge(groups: Iterable[tuple[str, ...]]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for group in groups for name in group))
