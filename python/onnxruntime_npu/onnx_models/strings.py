"""Constants of strings, which onnx_ir cannot measure: their elements have no size."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import onnx_ir as ir


@contextlib.contextmanager
def without_strings(model: ir.Model) -> Iterator[None]:
    """Take the values of strings away from passes that ask how many bytes each constant has."""
    held = {
        value: value.const_value
        for graph in model.graphs()
        for value in graph.initializers.values()
        if value.const_value is not None and value.const_value.dtype == ir.DataType.STRING
    }
    for value in held:
        value.const_value = None
    try:
        yield
    finally:
        for value, tensor in held.items():
            value.const_value = tensor
