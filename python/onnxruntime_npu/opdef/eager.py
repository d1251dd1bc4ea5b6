"""Runs an operator's kernel on CPU or npu tensors: what ``torch.ops.npu.*`` does on both."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from ..errors import ArgumentError
from . import dtypes as dt
from .definition import Op
from .node_parts import Input

# Distinct attribute values of one operator whose kernels are kept.
_MAX_KERNELS = 256


def check_dtypes(op: Op, bound: Mapping[str, Any]) -> None:
    """Raise ArgumentError for a tensor whose element type the definition does not name."""
    for node_input, value in op.iterate_inputs(bound):
        if node_input.is_list_of_ints or value is None:
            continue
        for tensor in value if node_input.variadic else (value,):
            if dt.from_torch(tensor.dtype) not in node_input.dtypes:
                raise ArgumentError(
                    f"[{op.name}] expected {node_input.name} of dtype "
                    f"{', '.join(node_input.dtypes)}, got {dt.from_torch(tensor.dtype)}"
                )


_given = threading.local()


@contextmanager
def writing_over(tensors: Sequence[torch.Tensor]) -> Iterator[None]:
    """Let the calls within write their results over dense tensors instead of making new ones.

    Raises:
        ArgumentError: a result has another shape or dtype than its tensor; from within.

    """
    _given.tensors = tensors
    try:
        yield
    finally:
        _given.tensors = ()


class EagerKernels:
    """The kernels of one operator, by attribute values and presence of inputs."""

    def __init__(self, op: Op):
        self._op = op
        self._kernels: dict[tuple[Any, ...], Any] = {}

    def run(
        self, bound: Mapping[str, Any], in_place: Mapping[int, str], output_count: int
    ) -> list[torch.Tensor]:
        """Run the kernel: on CPU tensors to its end, on npu tensors in order of the stream.

        Args:
            bound: every argument of the schema by name; tensors are on one device, but those whose
                values the kernel reads on the host may be there, too.
            in_place: for outputs that are written over an argument, the argument's name.
            output_count: number of node outputs.

        Returns:
            The node outputs; one that is written in place is the argument itself.

        """
        inputs: list[Any] = []
        keep_alive: dict[str, torch.Tensor] = {}  # contiguous forms, whose addresses the call uses
        position: dict[str, int] = {}
        device = self._device(bound)
        for node_input, value in self._op.iterate_inputs(bound):
            position[node_input.name] = len(inputs)
            values = value if node_input.variadic and value is not None else (value,)
            for i, v in enumerate(values):
                key = f"{node_input.name}.{i}"
                inputs.append(self._describe(node_input, v, device, keep_alive, key))
        outputs: list[Any] = [None] * output_count

        given = getattr(_given, "tensors", ())

        def allocate(i: int, dtype: int, shape: tuple[int, ...]) -> int:
            element = dt.to_torch(dt.NAMES[dtype])
            if i >= len(given):
                outputs[i] = torch.empty(shape, dtype=element, device=device)
            elif given[i].shape != shape or given[i].dtype != element:
                raise ArgumentError(
                    f"[{self._op.name}] expected a result {given[i].dtype} of shape "
                    f"{tuple(given[i].shape)}, as it was captured, got {element} of shape {shape}"
                )
            else:
                outputs[i] = given[i]
            return outputs[i].data_ptr()

        kernel = self._kernel(bound, len(inputs), output_count)
        written_over = [(i, position[name]) for i, name in in_place.items()]
        try:
            if device.type == "cpu":
                kernel.run(inputs, allocate, written_over)
            else:
                kernel.launch(inputs, allocate, written_over, device.index)
        except ArgumentError as error:
            if str(error).startswith("["):
                raise
            raise ArgumentError(f"[{self._op.name}] {error}") from None
        for i, name in in_place.items():
            target, written = bound[name], keep_alive[f"{name}.0"]
            if target is not written:
                target.copy_(written)
            torch.autograd.graph.increment_version(target)
            outputs[i] = target
        return outputs

    def _device(self, bound: Mapping[str, Any]) -> torch.device:
        """Return the npu of the call's tensors, if one of them is on any, else the CPU."""
        for node_input, value in self._op.iterate_inputs(bound):
            if value is None or node_input.is_list_of_ints:
                continue
            for tensor in value if node_input.variadic else (value,):
                if tensor.device.type == "npu":
                    return tensor.device
        return torch.device("cpu")

    def _describe(
        self,
        node_input: Input,
        value: Any,
        device: torch.device,
        keep_alive: dict[str, torch.Tensor],
        key: str,
    ) -> Any:
        if value is None:
            return None
        if node_input.is_list_of_ints:
            return [int(v) for v in value]
        if node_input.cpu:  # the kernel reads the values while it is called: wait for them
            value = value.cpu()
        elif value.device != device:
            raise ArgumentError(
                f"[{self._op.name}] expected {node_input.name} on {device} like the other tensors, "
                f"got {value.device}"
            )
        tensor = keep_alive[key] = value.contiguous()
        return (tensor.data_ptr(), dt.NUMBERS[dt.from_torch(tensor.dtype)], tensor.shape)

    def _kernel(self, bound: Mapping[str, Any], input_count: int, output_count: int) -> Any:
        values = (bound[a.name] for a in self._op.attributes)
        key = (
            input_count,
            output_count,
            *(tuple(v) if isinstance(v, (list, tuple)) else v for v in values),
        )
        kernel = self._kernels.get(key)
        if kernel is None:
            from .. import _C

            if len(self._kernels) >= _MAX_KERNELS:
                self._kernels.clear()
            attributes = self._op.attribute_values(bound)
            kernel = _C.Kernel("npu", self._op.onnx_type, 1, attributes, input_count, output_count)
            self._kernels[key] = kernel
        return kernel
