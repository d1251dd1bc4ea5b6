"""Sizes that a file computes though its shapes tell them, such as how many heads a view has."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import onnx_ir as ir

from .rules.rule import attribute, integers, producer, rank

_COPIED, _DEDUCED = 0, -1  # in the target of a Reshape
_UNKNOWN = "unk__"  # begins the names that onnx's inference gives to sizes that it does not know


def state_known_sizes(graph: ir.Graph) -> int:
    """Make targets of Reshape constants, and those of Expand as plain, as the shapes allow.

    torch's exporter of TorchScript computes ``view(rows, tokens, -1, 64)`` from the shape of
    another value of as many rows and tokens, half the size of a head from the shape of the head,
    and replaces each -1 in ``expand(rows, -1, tokens)`` while the model runs, so that shape
    inference knows little of the results. Returns how many were changed: shape inference may know
    more then.
    """
    changed = 0
    for node in list(graph):
        if node.domain or node.op_type not in _MADE:
            continue
        made = _MADE[node.op_type](node)
        if made is None:
            continue
        graph.insert_before(node, made)
        if node.op_type in ("Gather", "Slice"):
            ir.convenience.replace_all_uses_with(node.outputs[0], made[-1].outputs[0])
        else:
            node.replace_input_with(1, made[-1].outputs[0])
        changed += 1
    return changed


def forget_unknown_sizes(graph: ir.Graph) -> None:
    """Let shape inference find sizes that it could not tell, whose names it would keep."""
    for node in graph:
        for value in node.outputs:
            if value.shape is not None and not value.is_graph_output():
                value.shape = ir.Shape(
                    [None if _is_unknown(size) else size for size in value.shape]
                )


def _is_unknown(size: int | ir.SymbolicDim) -> bool:
    return isinstance(size, ir.SymbolicDim) and (size.value or "").startswith(_UNKNOWN)


def _gathered(node: ir.Node) -> list[ir.Node] | None:
    """Return a constant in place of a number of a shape."""
    taken, index = node.outputs[0], node.inputs[1]
    size, axes = _size(taken), None if index is None else rank(index)
    if not isinstance(size, int) or axes is None or not taken.uses() or taken.is_graph_output():
        return None
    return [_constant(node, np.full([1] * axes, size))]  # a number or a vector of one


def _part(node: ir.Node) -> list[ir.Node] | None:
    """Return a constant in place of a part of a shape, by which torch scales attention."""
    shape, bounds = producer(node.inputs[0], "Shape"), [integers(v) for v in node.inputs[1:]]
    source = None if shape is None or shape.attributes else shape.inputs[0]
    if source is None or source.shape is None or not node.outputs[0].uses():
        return None
    if node.outputs[0].is_graph_output() or any(b is None or len(b) != 1 for b in bounds):
        return None
    begin, end, *more = (b[0] for b in bounds if b)
    if more not in ([], [0], [0, 1]):  # its axis, and steps
        return None
    sizes = list(source.shape)[begin:end]
    return [_constant(node, sizes)] if all(isinstance(size, int) for size in sizes) else None


def _view(node: ir.Node) -> list[ir.Node] | None:
    x, concat = node.inputs[0], producer(node.inputs[1], "Concat")
    if x is None or x.shape is None or concat is None or attribute(node, "allowzero", 0):
        return None
    target = _target(x.shape, [_size(part) for part in concat.inputs])
    return None if target is None else [_constant(node, target)]


def _expansion(node: ir.Node) -> list[ir.Node] | None:
    """Return nodes of a target with 1 in place of -1: both leave a size as it is."""
    where = producer(node.inputs[1], "Where")
    if where is None:
        return None
    kept, ones, sizes = where.inputs
    equal = producer(kept, "Equal")
    if equal is None or equal.inputs[0] is not sizes or not _is_full_of(ones, 1):
        return None
    product = producer(equal.inputs[1], "Mul")
    if product is None and not _is_full_of(equal.inputs[1], -1):
        return None
    if product and (product.inputs[0] is not ones or integers(product.inputs[1]) != [-1]):
        return None
    reshape = producer(sizes, "Reshape")  # to one axis, which it has
    concat = producer(reshape.inputs[0] if reshape is not None else sizes, "Concat")
    if concat is None:
        return None
    if reshape is not None and integers(reshape.inputs[1]) != [-1]:
        return None
    one = _constant(node, [1])
    parts = [one.outputs[0] if integers(part) == [-1] else part for part in concat.inputs]
    plain = ir.node("Concat", parts, {"axis": 0}, name=f"{node.outputs[0].name}_plain")
    return [one, plain]


def _is_full_of(value: ir.Value | None, number: int) -> bool:
    """Return whether a vector holds one number only: as it is made, or folded by onnxruntime."""
    filled = producer(value, "ConstantOfShape")
    if filled is not None:
        tensor = attribute(filled, "value", None)
        return tensor is not None and tensor.numpy().tolist() == [number]
    return set(integers(value) or ()) == {number}


_MADE = {"Reshape": _view, "Expand": _expansion, "Gather": _gathered, "Slice": _part}


def _constant(node: ir.Node, sizes: Any) -> ir.Node:
    name = f"{node.outputs[0].name}_sizes"
    tensor = ir.tensor(np.asarray(sizes, np.int64), name=name)
    return ir.node("Constant", [], {"value": tensor}, name=name)


def _target(shape: ir.Shape, sizes: list[int | ir.SymbolicDim | None]) -> list[int] | None:
    """Return the target of a Reshape, if all of ``sizes`` are numbers or sizes that it copies."""
    target, left = [], list(shape)
    for axis, size in enumerate(sizes):
        if isinstance(size, ir.SymbolicDim):
            copied = size.value is not None and axis < len(shape) and shape[axis] == size
            size = _COPIED if copied else None
        if size is None or (size == _COPIED and axis >= len(shape)):
            return None
        if size == _COPIED:
            left[axis] = 1
        target.append(size)
    known = math.prod(size for size in target if size not in (_COPIED, _DEDUCED))
    if target.count(_DEDUCED) == 1 and all(isinstance(size, int) for size in left):
        whole = math.prod(size for size in left if isinstance(size, int))
        if whole % known == 0:
            target[target.index(_DEDUCED)] = whole // known
    return target


def _size(part: ir.Value | None) -> int | ir.SymbolicDim | None:
    """Return the one size that a part of a target holds: a number, or a size of another value."""
    numbers = integers(part)
    if numbers is not None:
        return numbers[0] if len(numbers) == 1 else None
    unsqueeze = producer(part, "Unsqueeze")
    gather = producer(unsqueeze.inputs[0] if unsqueeze is not None else part, "Gather")
    if gather is None:
        return None
    shape, index = producer(gather.inputs[0], "Shape"), integers(gather.inputs[1])
    if shape is None or index is None or len(index) != 1 or shape.attributes:
        return None
    source = shape.inputs[0].shape if shape.inputs[0] is not None else None
    if source is None or not -len(source) <= index[0] < len(source):
        return None
    return source[index[0]]
