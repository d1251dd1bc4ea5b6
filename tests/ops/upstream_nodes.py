"""A node as torch_npu's exporter writes it, and how its model is compared with the reference."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
import torch
from onnxruntime_npu.opdef import Op, all_ops
from op_paths import NPU, assert_on_npu, check_close, session, to_ortvalue, to_torch


@dataclass
class Row:
    """A node, and the torch operator that it represents.

    An array among the inputs is the constant that upstream writes for an absent tensor.
    """

    op_type: str
    op: str
    inputs: Mapping[str, torch.Tensor | np.ndarray]
    attributes: Mapping[str, Any] = field(default_factory=dict)
    outputs: int = 1
    id: str = ""


def _bound(op: Op, row: Row) -> dict[str, Any]:
    """Return the call's arguments: upstream's inputs come in the order of the op type."""
    tensors = [None if isinstance(v, np.ndarray) else v for v in row.inputs.values()]
    orders = {alias.type: alias.order for alias in op.type_aliases}
    names = orders.get(row.op_type) or [x.name for x in op.inputs]
    attributes = {a.name: a for a in op.attributes}
    arguments = {
        attributes[name].argument.name: attributes[name].from_onnx(value)
        for name, value in row.attributes.items()
        if name in attributes
    }
    return op.bind((), {**arguments, **dict(zip(names, tensors, strict=False))})


def _model(row: Row, results: Sequence[torch.Tensor]) -> onnx.ModelProto:
    """Return the model: the constants are nodes, the outputs typed as torch traced them."""
    helper = onnx.helper
    nodes, infos = [], []
    for name, value in row.inputs.items():
        if isinstance(value, np.ndarray):
            tensor = onnx.numpy_helper.from_array(value)
            nodes.append(helper.make_node("Constant", [], [name], value=tensor))
        else:
            infos.append(helper.make_tensor_value_info(name, _number(value), list(value.shape)))
    outputs = [
        helper.make_tensor_value_info(f"out{i}", _number(r), list(r.shape))
        for i, r in enumerate(results)
    ]
    nodes.append(
        helper.make_node(
            row.op_type,
            list(row.inputs),
            [o.name for o in outputs],
            name=f"/{row.op_type}",
            domain="npu",
            **row.attributes,
        )
    )
    opsets = [helper.make_opsetid("", 11), helper.make_opsetid("npu", 1)]
    graph = helper.make_graph(nodes, "main_graph", infos, outputs)
    return helper.make_model(
        graph, opset_imports=opsets, ir_version=6, producer_name="pytorch", producer_version="2.1.0"
    )


def _number(tensor: torch.Tensor) -> int:
    return onnx.helper.np_dtype_to_tensor_dtype(tensor.numpy().dtype)


def check_node(row: Row) -> None:
    """Run a row's model, which has no body, and compare with the reference."""
    op = all_ops()[row.op]
    want = list(op.call_reference(**_bound(op, row)))
    made = session(_model(row, want), NPU)
    assert_on_npu(made)
    feeds = {n: to_ortvalue(v) for n, v in row.inputs.items() if isinstance(v, torch.Tensor)}
    got = [to_torch(o) for o in made.run_with_ort_values(None, feeds)]
    assert len(got) == row.outputs
    dtype = str(next(iter(row.inputs.values())).dtype).removeprefix("torch.")
    check_close(op, dtype, got, want)
