"""The operators as Python functions with torch_npu's signatures: ``ops.npu_rms_norm(x, gamma)``.

Each function is made from the operator's definition when it is first asked for, and calls
``torch.ops.npu``: on CPU tensors the kernel runs at once.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from .opdef.definition import Op
from .opdef.discovery import all_ops
from .opdef.schema import Argument, Schema


def torch_names() -> dict[str, tuple[Op, Schema]]:
    """Return every torch name, twins and aliases included, with its operator and schema."""
    return {s.name: (op, s) for op in all_ops().values() for s in op.torch_schemas()}


def signature(schema: Schema) -> inspect.Signature:
    """Return the Python signature, in which ``self`` is called ``input`` as in torch_npu."""
    return inspect.Signature(
        [
            inspect.Parameter(
                "input" if a.name == "self" else a.name,
                inspect.Parameter.KEYWORD_ONLY
                if a.keyword_only
                else inspect.Parameter.POSITIONAL_OR_KEYWORD,
                default=inspect.Parameter.empty if a.required else a.default,
                annotation=python_type(a),
            )
            for a in schema.arguments
        ],
        return_annotation=return_type(schema),
    )


_PYTHON_TYPES = {
    "Tensor": "torch.Tensor",
    "int": "int",
    "SymInt": "int",
    "float": "float",
    "bool": "bool",
    "str": "str",
    "Scalar": "float",
    "ScalarType": "torch.dtype",
    "Device": "torch.device",
    "Layout": "torch.layout",
    "Generator": "torch.Generator",
}


def python_type(argument: Argument) -> str:
    """Return the type annotation of an argument or result."""
    type_ = argument.type
    name = _PYTHON_TYPES[type_.base]
    if type_.is_list:
        element = f"{name} | None" if type_.optional_elements else name
        name = f"Sequence[{element}]"
    return f"{name} | None" if type_.optional else name


def return_type(schema: Schema) -> str:
    """Return the annotation of the result."""
    types = [python_type(r).replace("Sequence", "list") for r in schema.returns]
    if len(types) == 1:
        return types[0]
    return f"tuple[{', '.join(types)}]" if types else "None"


def _make(op: Op, schema: Schema) -> Callable[..., Any]:
    import torch

    from .opdef.torch_library import register

    register()
    packet = getattr(torch.ops.npu, schema.name)

    def function(*args: Any, **kwargs: Any) -> Any:
        if "self" in kwargs:  # the dispatcher's older spelling
            kwargs["input"] = kwargs.pop("self")
        return packet(*args, **kwargs)

    function.__name__ = function.__qualname__ = schema.name
    function.__module__ = __name__
    function.__signature__ = signature(schema)  # type: ignore[attr-defined]
    function.__doc__ = describe(op, schema)
    return function


def describe(op: Op, schema: Schema) -> str:
    """Return the documentation of one torch name."""
    lines = [op.doc]
    reference = inspect.getdoc(op.reference_function)
    if reference:
        lines += ["", reference]
    lines += ["", f"Schema: {schema}", f"ONNX: npu::{op.onnx_type}", ""]
    lines += [f"{x.name}: {', '.join(x.dtypes)}" for x in op.inputs]
    lines += [f"-> {y.name}: {', '.join(y.dtypes)}" for y in op.outputs]
    return "\n".join(lines)


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
