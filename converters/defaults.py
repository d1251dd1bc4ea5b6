"""Inputs that have a value in the file, which is used where a run gives no other one."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import onnx_ir as ir

_NO_OTHERS = 4  # from this version of ONNX's format on, initializers need not be inputs


def drop_constant_inputs(model: ir.Model) -> None:
    """Let initializers of old files be initializers only: no run may give them another value."""
    if model.ir_version < _NO_OTHERS:
        graph = model.graph
        for i in reversed(range(len(graph.inputs))):
            if graph.inputs[i].is_initializer():
                graph.inputs.pop(i)


@contextlib.contextmanager
def without_defaults(model: ir.Model) -> Iterator[None]:
    """Take the values of inputs away, so that nothing takes them for constants."""
    defaults = [value for value in model.graph.inputs if value.is_initializer()]
    tensors = [value.const_value for value in defaults]
    for value in defaults:
        assert value.name is not None
        model.graph.initializers.pop(value.name)
        value.const_value = None
    yield
    for value, tensor in zip(defaults, tensors, strict=True):
        value.const_value = tensor
        model.graph.register_initializer(value)
