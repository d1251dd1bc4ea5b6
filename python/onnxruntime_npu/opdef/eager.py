"""Runs an operator's kernel on CPU tensors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from ..errors import ArgumentError
from . import dtypes as dt
from .definition import Op
from .node_parts import Input

# Max number of kernels cached per operator, by attribute values.
_MAX_KERNELS = 256


def check_dtypes(op: Op, bound: Mapping[str, Any]) -> None:
    """Raise ArgumentError for a tensor whose element type the definition does not list."""
    for node_input, value in op.iterate_inputs(bound):
        if node_input.is_list_of_ints or value is None:
            continue
        for tensor in value if node_input.variadic else (value,):
            if dt.from_torch(tensor.dtype) not in node_input.dtypes:
                note = f": {node_input.dtype_note}" if node_input.dtype_note else ""
                raise ArgumentError(
                    f"[{op.name}] expected {node_input.name} of dtype "
                    f"{', '.join(node_input.dtypes)}, got {dt.from_torch(tensor.dtype)}{note}"
                )


class EagerKernels:
    """The kernels of one operator, by attribute values and presence of inputs."""

    def __init__(self, op: Op):
        self._op = op
        self._kernels: dict[tuple[Any, ...], Any] = {}

    def run(
        self, bound: Mapping[str, Any], in_place: Mapping[int, str], output_count: int
    ) -> list[torch.Tensor]:
        """Run the kernel and wait for it.

        Args:
            bound: every argument of the schema by name.
            in_place: for outputs that are written over an argument, the argument's name.
            output_count: number of node outputs.

        Returns:
            The node outputs; an output written in place is the argument itself.

        """
        inputs: list[Any] = []
        keep_alive: dict[str, torch.Tensor] = {}  # contiguous copies whose addresses the call uses
        position: dict[str, int] = {}
        for node_input, value in self._op.iterate_inputs(bound):
            position[node_input.name] = len(inputs)
            values = value if node_input.variadic and value is not None else (value,)
            for i, v in enumerate(values):
                key = f"{node_input.name}.{i}"
                inputs.append(self._describe(node_input, v, keep_alive, key))
        outputs: list[Any] = [None] * output_count

        def allocate(i: int, dtype: int, shape: tuple[int, ...]) -> int:
            outputs[i] = torch.empty(shape, dtype=dt.to_torch(dt.NAMES[dtype]))
            return outputs[i].data_ptr()

        written_over = [(i, position[name]) for i, name in in_place.items()]
        try:
            self._kernel(bound, len(inputs), output_count).run(inputs, allocate, written_over)
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

    def _describe(
        self,
        node_input: Input,
        value: Any,
        keep_alive: dict[str, torch.Tensor],
        key: str,
    ) -> Any:
        if value is None:
            return None
        if node_input.is_list_of_ints:
            return [int(v) for v in value]
        if not value.is_cpu:
            raise ArgumentError(
                f"[{self._op.name}] expected {node_input.name} on cpu like the other tensors, "
                f"got {value.device}"
            )
        tensor = keep_alive[key] = value.contiguous()
        return (tensor.data_ptr(), dt.NUMBERS[dt.from_torch(tensor.dtype)], tensor.shape)

    def _kernel(self, bound: Mapping[str, Any], input_count: int, output_count: int) -> Any:
        # Numbers of different types are equal: the type is part of the key.
        given = ((a, bound[a.argument.name]) for a in self._op.attributes)
        values = (a.to_onnx(v) if a.number_type else v for a, v in given)
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
