"""Weights given by ``SessionOptions.add_initializer``, for the nodes of the NPU.

onnxruntime uses such a value only where it already is in the memory of the node that reads it, and
accepts values in host memory only: a node of the NPU would compute with the model's own weight
instead, after a warning. So sessions of the NPU read a model that has the given values as its
weights. They take the values as they are when the session is created.
"""

from __future__ import annotations

import contextlib
import functools
import weakref
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from onnxruntime import SessionOptions
from onnxruntime.capi import onnxruntime_pybind11_state as C

from .changed_model import beside, read_instead, read_model
from .ortvalue import carrier_of

if TYPE_CHECKING:
    import onnx

_SESSION_KEY = "_npu_given_initializers"  # of the session, which keeps a copy of the options
_given: weakref.WeakKeyDictionary[Any, dict[str, Any]] = weakref.WeakKeyDictionary()


def install() -> None:
    """Note what ``add_initializer`` is given from now on."""
    original = SessionOptions.add_initializer

    @functools.wraps(original)
    def add_initializer(self: SessionOptions, name: str, value: Any) -> None:
        original(self, name, value)
        _given.setdefault(self, {})[name] = value

    SessionOptions.add_initializer = add_initializer  # type: ignore[method-assign]


@contextlib.contextmanager
def read_as_weights(session: Any) -> Iterator[None]:
    """Let a session read its model with the weights that its options were given."""
    given = _given.get(session._sess_options) or getattr(session, _SESSION_KEY, None)
    model = _with_weights(session._model_path, session._model_bytes, given) if given else None
    setattr(session, _SESSION_KEY, given)
    if model is None:
        yield
        return
    with read_instead(session, model, beside(session._model_path)):
        yield


def _with_weights(path: str | None, data: bytes | None, given: dict[str, Any]) -> bytes | None:
    """Return the model with the given weights, None if it has none of them."""
    try:
        from google.protobuf.message import EncodeError

        from ..opdef.nested_graphs import nested_graphs
    except ModuleNotFoundError:
        raise _refused("the package onnx (pip install onnx)", "none") from None

    model = read_model(path, data)
    if model is None:
        return None
    replaced = 0
    for graph in nested_graphs(model.graph):
        for tensor in graph.initializer:
            if tensor.name in given:
                _replace(tensor, given[tensor.name])
                replaced += 1
    if not replaced:
        return None
    try:
        return model.SerializeToString()
    except (EncodeError, ValueError):
        raise _refused("weights that fit into a model of 2 GiB", "more") from None


def _refused(expected: str, got: str) -> Exception:
    return C.InvalidArgument(
        f"[add_initializer] expected {expected} for a session of the NPU, got {got}; keep the "
        "weights in a file and give them by add_external_initializers"
    )


def _replace(tensor: onnx.TensorProto, value: Any) -> None:
    shape, kind = list(value.shape()), value.element_type()
    if shape != list(tensor.dims) or kind != tensor.data_type:
        raise C.InvalidArgument(
            f"[add_initializer] expected '{tensor.name}' of element type {tensor.data_type} and "
            f"shape {list(tensor.dims)}, as in the model, got {kind} and {shape}"
        )
    name = tensor.name
    tensor.Clear()
    tensor.name, tensor.data_type = name, kind
    tensor.dims.extend(shape)
    tensor.raw_data = carrier_of(value).tobytes()
