"""Dataclasses among a module's arguments and results, and results that are numbers."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.export import dynamic_shapes
from torch.utils import _pytree as pytree

_NUMBERS = (bool, int, float)  # and no sizes that vary


@contextmanager
def nested_values(model: torch.nn.Module, *given: Any) -> Iterator[None]:
    """Let torch take apart the dataclasses in ``given`` and in the model's results, inside.

    Dataclasses that the user has registered stay registered; others are known inside only. Numbers
    among the results become tensors, which graphs can return.
    """
    registered: list[type] = []

    def register(value: Any) -> None:
        for found in _types(value):
            if found not in pytree.SUPPORTED_NODES:
                torch.export.register_dataclass(found)
                registered.append(found)

    def returned(_model: object, _args: object, result: Any) -> Any:
        register(result)
        return pytree.tree_map(lambda x: torch.tensor(x) if type(x) in _NUMBERS else x, result)

    register(given)
    hook = model.register_forward_hook(returned)
    try:
        yield
    finally:
        hook.remove()
        for each in registered:
            pytree._deregister_pytree_node(each)


def sizes_of_inputs(
    model: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any] | None, shapes: Any
) -> list[Any]:
    """Return what ``dynamic_shapes`` says of each input of the graph, or an empty list for none.

    torch.onnx names dimensions only where every argument is an input; those that are no tensors
    are constants, unless they are numbers that vary.
    """
    if not shapes:
        return []
    bound = dynamic_shapes._combine_args(model, args, kwargs)
    if isinstance(shapes, dynamic_shapes.ShapesCollection):
        shapes = shapes.dynamic_shapes(model, args, kwargs)
    elif not isinstance(shapes, dict):
        shapes = dict(zip(bound, shapes, strict=True))
    found: list[Any] = []

    def note(_path: object, value: Any, sizes: Any = None) -> None:
        if isinstance(value, torch.Tensor):
            found.append(sizes)
        elif sizes is not None:
            found.append(None)  # a number that varies, which has no dimensions

    dynamic_shapes._tree_map_with_path(note, bound, shapes)
    return found


def _types(value: Any) -> Iterator[type]:
    """Yield the types of all dataclasses in nested containers."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        yield type(value)
        inner: Any = [getattr(value, field.name) for field in dataclasses.fields(value)]
    elif isinstance(value, dict):
        inner = value.values()
    elif isinstance(value, (list, tuple)):
        inner = value
    else:
        return
    for each in inner:
        yield from _types(each)
