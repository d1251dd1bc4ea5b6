"""The operators as Python functions with torch_npu's signatures: ``ops.npu_rms_norm(x, gamma)``.

Each function is created from the operator's definition at its first use, and calls
``torch.ops.npu``: on CPU tensors the kernel runs immediately.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .opdef.composition import Composition
from .opdef.definition import Op
from .opdef.discovery import all_compositions, all_ops
from .opdef.schema import Schema
from .opdef.signature import describe, signature


def torch_names() -> dict[str, tuple[Op | Composition, Schema]]:
    """Return every torch name, twins, aliases and partners included, with operator and schema."""
    operators: list[Op | Composition] = [*all_ops().values(), *all_compositions().values()]
    return {
        s.name: (op, s)
        for op in operators
        for s in (*(p.schema for p in op.partners), *op.torch_schemas())
    }


def _make(op: Op | Composition, schema: Schema) -> Callable[..., Any]:
    import torch

    from .opdef.torch_library import register

    register()
    packet = getattr(torch.ops.npu, schema.name)

    def function(*args: Any, **kwargs: Any) -> Any:
        if "self" in kwargs:  # the dispatcher's older name
            kwargs["input"] = kwargs.pop("self")
        return packet(*args, **kwargs)

    function.__name__ = function.__qualname__ = schema.name
    function.__module__ = __name__
    function.__signature__ = signature(schema)  # type: ignore[attr-defined]
    function.__doc__ = describe(op, schema)
    for overload in packet.overloads():
        setattr(function, overload, getattr(packet, overload))
    return function


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        op, schema = torch_names()[name]
    except KeyError:
        raise AttributeError(f"module {__name__!r} has no operator {name!r}") from None
    globals()[name] = function = _make(op, schema)
    return function


def __dir__() -> list[str]:
    return sorted([*globals(), *torch_names()])
