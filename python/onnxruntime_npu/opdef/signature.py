"""The Python interface of a definition: signature, annotations and documentation."""

from __future__ import annotations

import inspect
import re

from .composition import Composition
from .definition import Op
from .schema import Argument, Schema


def signature(schema: Schema) -> inspect.Signature:
    """Return the Python signature, in which ``self`` is named ``input`` as in torch_npu."""
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


def describe(op: Op | Composition, schema: Schema) -> str:
    """Return the documentation of one torch name, with ``input`` for ``self`` as in `signature`."""
    for partner in op.partners:
        if partner.schema is schema:
            return f"{_text(inspect.getdoc(partner.function))}\n\nSchema: {schema}"
    if isinstance(op, Composition):
        what = _text(inspect.getdoc(op.function_body))
        return "\n\n".join([_text(op.doc), what, f"Schema: {schema}\nONNX: standard operators"])
    lines = [_text(op.doc)]
    reference = inspect.getdoc(op.reference_function)
    if reference:
        lines += ["", _text(reference)]
    lines += ["", f"Schema: {schema}", f"ONNX: npu::{op.onnx_type}"]
    if op.backward_formula:
        lines.append(_text(f"Gradient: {', '.join(op.backward_formula.arguments)}"))
    lines.append("")
    lines += [f"{_text(x.name)}: {', '.join(x.dtypes)}" for x in op.inputs]
    lines += [f"-> {y.name}: {', '.join(y.dtypes)}" for y in op.outputs]
    return "\n".join(lines)


def _text(text: str | None) -> str:
    return re.sub(r"\bself\b", "input", text or "")
