"""Plans by which the C++ side turns calls on npu tensors into kernel calls.

A plan is registered once per name. It describes the definition: which arguments are inputs, which
are attributes, what is written in place, what is returned. Each call enters Python only for values
that a definition computes there: an ``@op.host``, or the number of a variadic operator's outputs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from . import dtypes as dt
from .definition import Op
from .node_parts import Attribute
from .schema import Schema
from .type_codes import described_numbers


def call_plan(op: Op, schema: Schema, in_place: Mapping[int, str]) -> dict[str, Any]:
    """Return the plan of one torch name of an operator, as plain values.

    Args:
        op: the operator.
        schema: the schema of the name.
        in_place: which outputs are written over which arguments.

    """
    argument = {a.name: i for i, a in enumerate(schema.arguments)}
    position = {x.name: i for i, x in enumerate(op.inputs)}
    return {
        "name": op.name,
        "type": op.onnx_type,
        "inputs": [
            {
                "name": x.name,
                "argument": argument[x.name],
                "variadic": x.variadic,
                "integers": x.is_list_of_ints,
                "on_host": x.cpu,
                "dtypes": [dt.NUMBERS[name] for name in x.dtypes],
                "dtype_names": ", ".join(x.dtypes),
                "dtype_note": f": {x.dtype_note}" if x.dtype_note else "",
            }
            for x in op.inputs
        ],
        "attributes": [
            {
                "name": a.name,
                "argument": argument[a.argument.name],
                "kind": _kind(a),
                # Torch's numbers of types with the node's codes; what an error says of others.
                "codes": a.names_type.numbers() if a.names_type else [],
                "refusal": a.names_type.refusal if a.names_type else "",
                "type_names": described_numbers() if a.names_type else [],
            }
            for a in op.attributes
            if a.argument.name in argument  # false for the seed of a seeded operator
            and (a.number_type is None or a.number_type.stated)
        ],
        "in_place": [(output, position[name]) for output, name in in_place.items()],
        "outputs": len(op.outputs),
        "results": len(schema.returns),
        "list_result": any(r.type.is_list for r in schema.returns),
        "seeded": op.seeded,
        "settle": _settle(op, schema) if op.is_settled_in_python else None,
    }


def _kind(attribute: Attribute) -> str:
    if attribute.names_type:
        return "type_code"
    if attribute.number_type:
        return "number_type"
    return "dtype" if attribute.argument.type.base == "ScalarType" else attribute.kind


def _settle(op: Op, schema: Schema) -> Callable[[list[Any]], tuple[Any, ...]]:
    names = [a.name for a in schema.arguments]

    def settle(arguments: list[Any]) -> tuple[Any, ...]:
        """Return changes of arguments by position, the number of outputs, the integer results."""
        given = dict(zip(names, arguments, strict=True))
        bound, integers = op.settle(given)
        changes = [(i, bound[n]) for i, n in enumerate(names) if bound[n] is not given[n]]
        return changes, op.count_outputs(bound), list(integers)

    return settle
