"""Writes a model and, beside it, its weights."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import onnx
import onnx_ir as ir

from ..progress import bar
from .strings import without_strings

_INLINE_BYTES = 1024  # smaller tensors are stored in the model: shape inference reads some of them


def save(
    model: ir.Model, path: Path, data: str, free: Callable[[Any], None] = lambda tensor: None
) -> None:
    """Write the model, its weights in ``data`` in the same folder.

    ``free`` is called with each tensor that is in the file and will not be read again.
    """
    path.with_name(data).unlink(missing_ok=True)
    with _freed_when_written(free) as written, without_strings(model):
        unloaded = ir.external_data.unload_from_model(
            model, path.parent, data, size_threshold_bytes=_INLINE_BYTES, callback=written
        )
    proto = ir.to_proto(unloaded)
    _write_omitted_outputs(proto.graph, model.functions)
    path.write_bytes(proto.SerializeToString())


def _write_omitted_outputs(
    graph: onnx.GraphProto, functions: Mapping[ir.OperatorIdentifier, ir.Function]
) -> None:
    """Write the trailing outputs that onnx_ir drops: inlining a function body needs all of them."""
    for node in graph.node:
        body = functions.get((node.domain, node.op_type, node.overload))
        if body is not None:
            node.output.extend([""] * (len(body.outputs) - len(node.output)))
        for attribute in node.attribute:
            _write_omitted_outputs(attribute.g, functions)


@contextlib.contextmanager
def _freed_when_written(free: Callable[[Any], None]) -> Iterator[Callable[[Any, Any], None]]:
    """Give what is called with each tensor before it is written; frees the one before."""
    last: list[Any] = []
    with bar("Writing weights", "tensor") as written:

        def begin(tensor: Any, information: Any) -> None:
            written.total = information.total
            written.update()
            while last:
                free(last.pop())
            last.append(tensor)

        yield begin
        while last:
            free(last.pop())
