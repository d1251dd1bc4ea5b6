"""What torch has of an operator besides its kernel, made of calls of it.

The overload that writes its results into tensors of the caller, and the functions that torch_npu
has beside an operator. They are composite: on every device and in every trace they are what they
call.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ..errors import ArgumentError
from .composition import Composition
from .definition import Op
from .node_parts import DefinitionError
from .schema import Schema


def composites(op: Op | Composition) -> list[tuple[Schema, Callable[..., Any]]]:
    """Return the schema of every composite function of the operator, and what it does."""
    functions = [(p.schema, p.function) for p in op.partners]
    if isinstance(op, Composition):
        if op.function_body is None:
            raise DefinitionError(f"[{op.name}] expected an @op.function in {op.source}")
        functions.append((op.schema, op.function_body))
    if op.out is not None:
        functions.append((op.out, _writing(op, op.out)))
    return functions


def _writing(op: Op | Composition, schema: Schema) -> Callable[..., Any]:
    positional = [a.name for a in schema.arguments if not a.keyword_only]
    names = {a.name for a in op.schema.arguments}
    written = [a.name for a in schema.arguments if a.type.mutated]
    as_list = any(a.type.is_list for a in schema.arguments if a.type.mutated)
    count = len(op.schema.returns)

    def write(*args: Any, **kwargs: Any) -> Any:
        given = {**dict(zip(positional, args, strict=False)), **kwargs}
        targets = list(given[written[0]]) if as_list else [given[name] for name in written]
        if len(targets) != count:
            raise ArgumentError(
                f"[{op.name}] expected out with {count} tensors, got {len(targets)}"
            )
        call = getattr(torch.ops.npu, op.name).default
        keywords = {n: value for n, value in given.items() if n in names and n not in positional}
        results = call(*(given[n] for n in positional if n in given and n in names), **keywords)
        for i, (target, result) in enumerate(
            zip(targets, results if count > 1 else [results], strict=True)
        ):
            if not torch.can_cast(result.dtype, target.dtype):  # as torch's own
                raise ArgumentError(
                    f"[{op.name}] expected out {i} of {result.dtype} or a dtype that it can be "
                    f"cast to, got {target.dtype}"
                )
            if target.shape != result.shape:
                if target.numel():  # as torch's own: only what holds nothing may grow
                    raise ArgumentError(
                        f"[{op.name}] expected out {i} of shape {list(result.shape)}, or empty, "
                        f"got {list(target.shape)}"
                    )
                target.resize_(result.shape)
            target.copy_(result)
        return tuple(targets) if count > 1 else targets[0]

    return write
