"""Captured calls whose host-side arguments NPUGraph.update changes per replay."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from .. import torch_bridge
from .graph_tasks import (
    graph_task_group_begin,
    graph_task_group_end,
    graph_task_update_begin,
    graph_task_update_end,
)
from .streams import ExternalEvent, Stream, current_stream
from .streams import stream as use_stream


@dataclass
class _Call:
    """One captured call; its tensors are addresses in memory that the graph keeps alive."""

    operator: Any
    arguments: dict[str, Any]
    results: list[torch.Tensor]
    group: Any
    updated: ExternalEvent


class UpdatableCalls(TorchDispatchMode):
    """Captures each operator that takes lists of lengths as a task group after an event.

    A replay waits for the event at the operator, and update() records it.
    """

    def __init__(self) -> None:
        super().__init__()
        self._calls: list[_Call] = []
        self._stream: Stream | None = None

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Run an operator of the capture, and store it if it can be updated."""
        kwargs = kwargs or {}
        if not _can_be_updated(func):
            return func(*args, **kwargs)
        stream = current_stream()
        updated = ExternalEvent()
        updated.wait(stream)
        graph_task_group_begin(stream)
        results = func(*args, **kwargs)
        group = graph_task_group_end(stream)
        names = (a.name for a in func._schema.arguments)
        arguments = {**dict(zip(names, args, strict=False)), **kwargs}
        kept = [_without_owner(t) for t in tree_leaves(results) if isinstance(t, torch.Tensor)]
        call = _Call(func, tree_map(_without_owner, arguments), kept, group, updated)
        self._calls.append(call)
        return results

    def update(self, inputs: list[dict[str, Any]]) -> None:
        """Issue the calls again with new arguments: see NPUGraph.update."""
        known = {name for call in self._calls for name in _argument_names(call.operator)}
        for name in {name for values in inputs for name in values} - known:
            raise RuntimeError(
                f"NPUGraph.update: no operator of the capture has an argument {name!r}"
            )
        if len(inputs) == 1:
            inputs = inputs * len(self._calls)
        if len(inputs) != len(self._calls):
            raise RuntimeError(
                f"NPUGraph.update: expected one dict, or one for each of the {len(self._calls)} "
                f"operators that the capture lets update, got {len(inputs)}"
            )
        if self._stream is None:
            self._stream = Stream()
        with use_stream(self._stream):
            for call, values in zip(self._calls, inputs, strict=True):
                self._update(call, values, self._stream)

    @staticmethod
    def _update(call: _Call, values: dict[str, Any], stream: Stream) -> None:
        names = _argument_names(call.operator)
        arguments = call.arguments | {n: v for n, v in values.items() if n in names}
        graph_task_update_begin(stream, call.group)
        try:
            with torch_bridge.next_call_given(call.results):
                call.operator(**arguments)
        except BaseException:
            with contextlib.suppress(RuntimeError):  # the call's own error is more specific
                graph_task_update_end(stream)
            raise
        graph_task_update_end(stream)
        call.arguments = arguments
        call.updated.record(stream)


def _argument_names(operator: Any) -> set[str]:
    return {a.name for a in operator._schema.arguments}


def _can_be_updated(func: Any) -> bool:
    # torch's argument objects do not mark the integers that change between calls.
    schema = func._schema
    return schema.name.startswith("npu::") and "SymInt[]" in str(schema)


def _without_owner(value: Any) -> Any:
    """Return a tensor over the same memory without a reference to it: the graph holds one."""
    if not isinstance(value, torch.Tensor) or value.device.type != "npu" or value.numel() == 0:
        return value
    span = 1 + sum((n - 1) * s for n, s in zip(value.shape, value.stride(), strict=True))
    flat = torch_bridge.tensor_over(value.data_ptr(), [span], value.dtype, value.device.index, None)
    return flat.as_strided(value.shape, value.stride())
