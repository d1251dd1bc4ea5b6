"""Result types of a bare node, determined by its input types.

onnxruntime infers the result types of a custom operator from the first declaration of its name
whose inputs match, and a declaration gives an input one type or any. So an operator is declared
once for every combination of input types that yields different result types.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

from .node_parts import DefinitionError, Input, Output
from .node_types import NodeType


@dataclass(frozen=True)
class Typing:
    """One declaration: a type, ABSENT, or None for any; a None result has the model's type."""

    inputs: tuple[str | None, ...]
    outputs: tuple[str | None, ...]


def typings(node_type: NodeType) -> list[Typing]:
    """Return the declarations of an op type, in the order in which they are tried.

    The last one accepts any types, so that the provider can reject a node with a reason.
    """
    refused = Typing((None,) * len(node_type.inputs), tuple(map(_only, node_type.outputs)))
    return [*_fitting(node_type), refused]


def _fitting(node_type: NodeType) -> list[Typing]:
    stated = [typing for _, op in node_type.ops for typing in op.typings]
    if not stated:
        return list(_followed(node_type))
    if len(node_type.ops) > 1:
        raise DefinitionError(f"{node_type.type} means several operators: expected no 'typings'")
    return [
        Typing(
            tuple(typing.get(x.name, _only(x)) for x in node_type.inputs),
            tuple(typing.get(y.name, _only(y)) for y in node_type.outputs),
        )
        for typing in stated
    ]


def _only(argument: Input | Output) -> str | None:
    return argument.dtypes[0] if len(argument.dtypes) == 1 else None


def _followed(node_type: NodeType) -> Iterator[Typing]:
    """Yield the declarations in which every result of several types has an input's type.

    The type of a result that an attribute decides comes from the attribute or the model. If neither
    gives it, onnxruntime would use the type of the last input of several types, so that every such
    input has one here.
    """
    sources = [_source(node_type, i) for i in range(len(node_type.outputs))]
    varied = sorted({source for source in sources if source is not None})
    if any(s is None and not _only(y) for s, y in zip(sources, node_type.outputs, strict=True)):
        varied = [i for i, x in enumerate(node_type.inputs) if not _only(x)]
    inputs = [_only(x) for x in node_type.inputs]
    for chosen in product(*(node_type.inputs[source].dtypes for source in varied)):
        types = {**dict(enumerate(inputs)), **dict(zip(varied, chosen, strict=True))}
        outputs = [
            _only(y) if source is None else types[source]
            for y, source in zip(node_type.outputs, sources, strict=True)
        ]
        yield Typing(tuple(types.values()), tuple(outputs))


def _source(node_type: NodeType, output: int) -> int | None:
    """Return the input whose new value an output is, else the first with the same types."""
    result = node_type.outputs[output]
    if _only(result):
        return None
    for written, updated in node_type.mutable_alias:
        if updated == output:
            return written
    allowed = set(result.dtypes)
    return next((i for i, x in enumerate(node_type.inputs) if set(x.dtypes) == allowed), None)
