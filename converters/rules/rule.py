"""What a conversion rule is: a pattern of nodes, its conditions, and the nodes that replace it."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
from onnxruntime_npu.opdef import all_ops
from onnxruntime_npu.opdef.dtypes import NAMES, NUMBERS
from onnxruntime_npu.opdef.function_body import IR_ATTRIBUTE_TYPES
from onnxruntime_npu.opdef.node_parts import Input
from onnxscript.rewriter import pattern

MICROSOFT = "com.microsoft"


class Refused(Exception):
    """A match that a rule cannot convert; the text says why."""


class Rule(pattern.RewriteRuleClassBase):
    """Base of the rules; subclasses define ``pattern`` and ``build``.

    ``count`` is how often the rule was applied; ``refusals`` holds a reason for every node that it
    matched and left.
    """

    def __init__(self, name: str | None = None, **kwargs: Any) -> None:
        super().__init__(name, **kwargs)
        self.count = 0
        self.refusals: dict[ir.Node, str] = {}

    def rule_of(self) -> pattern.RewriteRule:
        """Return the rewriter's form of this rule."""
        return pattern.RewriteRule(
            self.pattern, self.rewrite, self.check, name=self.name, remove_nodes=self.remove_nodes
        )

    @abstractmethod
    def build(self, *nodes: Any, **matched: Any) -> Any:
        """Return the values that replace the pattern's.

        None where the nodes before it are of another form; raises Refused where they are of a known
        one that has no equivalent.
        """

    def rewrite(self, op: Any, **matched: Any) -> Any:
        """Replace a match, unless ``build`` refuses."""
        node = matched["y"].producer()
        try:
            results = self.build(Nodes(op, node, self.count), **matched)
        except Refused as refusal:
            self.refusals[node] = str(refusal)
            return None
        except (TypeError, ValueError, IndexError, KeyError) as error:
            # Of attributes and shapes that contradict each other: the runtime reports them.
            self.refusals[node] = f"it is malformed: {error}"
            return None
        if results is None:
            return None
        self.count += 1
        return results


class Nodes:
    """Builds the replacing nodes, of known element types: bodies are chosen by them."""

    def __init__(self, op: Any, node: ir.Node, number: int) -> None:
        self._op = op
        self._node = node  # that is replaced
        self._number = number  # of the match: nodes may share a weight, initializers have own names

    def npu(self, operator: str, *inputs: Any, **named: Any) -> tuple[ir.Value, ...]:
        """Add a fused operator's node; ``named`` are its attributes and its later inputs by name.

        Returns its outputs, of the element type of the first input unless they have only one.
        """
        definition = all_ops()[operator]
        names = [declared.name for declared in definition.inputs]
        given = list(inputs) + [None] * (len(names) - len(inputs))
        kinds = {declared.name: declared.kind for declared in definition.attributes}
        attributes = {}
        for name, value in named.items():
            if name in names:
                given[names.index(name)] = value
            else:
                attributes[name] = ir.Attr(name, IR_ATTRIBUTE_TYPES[kinds[name]], value)
        while given and given[-1] is None:
            given.pop()
        for value, declared in zip(given, definition.inputs, strict=False):
            _check_type(value, declared)
        made = self._op.op(
            definition.onnx_type,
            *given,
            _domain="npu",
            _version=1,
            _outputs=len(definition.outputs),
            **attributes,
        )
        values = (made,) if isinstance(made, ir.Value) else tuple(made)
        for value, output in zip(values, definition.outputs, strict=True):
            only = ir.DataType(NUMBERS[output.dtypes[0]]) if len(output.dtypes) == 1 else None
            value.dtype = inputs[0].dtype if only is None else only
        return values

    def onnx(
        self, op_type: str, *inputs: Any, dtype: ir.DataType | None = None, **attrs: Any
    ) -> Any:
        """Add a standard node of one output; its element type is the first input's unless given."""
        values = [self.constant(v) if isinstance(v, list) else v for v in inputs]
        made: ir.Value = self._op.op(op_type, *values, **attrs)
        made.dtype = _known(values[0]) if dtype is None else dtype
        return made

    def cast(self, value: ir.Value, dtype: ir.DataType) -> ir.Value:
        """Return the value in another element type."""
        if value.dtype == dtype:
            return value
        made: ir.Value = self.onnx("Cast", value, dtype=dtype, to=int(dtype))
        return made

    def constant(self, values: Any, dtype: ir.DataType = ir.DataType.INT64) -> ir.Value:
        """Return a small constant, int64 unless told otherwise."""
        tensor = ir.tensor(np.asarray(values, dtype=dtype.numpy()), dtype=dtype)
        made: ir.Value = self._op.op("Constant", value=tensor)
        made.dtype, made.shape = dtype, ir.Shape(np.shape(values))
        made.const_value = tensor
        return made

    def weight(self, tensor: ir.TensorProtocol, name: str) -> ir.Value:
        """Return a new initializer."""
        made: ir.Value = self._op.initializer(tensor, name=f"{name}.{self._number}")
        return made

    def shared_weight(self, name: str, make: Callable[[], ir.TensorProtocol]) -> ir.Value:
        """Return the initializer of that name, which every match shares."""
        graph = self._node.graph
        assert isinstance(graph, ir.Graph)
        found = graph.initializers.get(name)
        if found is None:
            found = self._op.initializer(make(), name=name)
        return found

    def split(self, value: ir.Value, sizes: list[int], axis: int) -> tuple[ir.Value, ...]:
        """Return consecutive parts of an axis."""
        made = self._op.Split(value, self.constant(sizes), axis=axis, _outputs=len(sizes))
        for part in made:
            part.dtype = value.dtype
        return tuple(made)

    def size(self, value: ir.Value, axis: int) -> ir.Value:
        """Return the size of an axis as an int64 vector of one.

        Where a graph input has an axis of the same name, it is that one's: layers then share what
        depends on it.
        """
        size = value.shape[axis] if value.shape is not None and axis < len(value.shape) else None
        if isinstance(size, int):
            return self.constant([size])
        graph = self._node.graph
        assert isinstance(graph, ir.Graph)
        if size is not None and size.value is not None:
            for source in graph.inputs:
                if source.shape is not None and size in source.shape:
                    value, axis = source, list(source.shape).index(size)
                    break
        made: ir.Value = self.onnx(
            "Shape", value, dtype=ir.DataType.INT64, start=axis, end=axis + 1
        )
        return made

    def joined_sizes(self, *sizes: Any) -> ir.Value:
        """Return the shape vector of numbers and of vectors of one."""
        if all(isinstance(size, int) for size in sizes):
            return self.constant(list(sizes))
        parts = [self.constant([s]) if isinstance(s, int) else s for s in sizes]
        made: ir.Value = self.onnx("Concat", *parts, axis=0)
        return made


def _known(value: ir.Value) -> ir.DataType:
    """Return the element type; a value behind an operator of an unknown domain has none."""
    require(value.dtype is not None, f"the element type of {value.name!r} is not known")
    assert value.dtype is not None
    return value.dtype


def _check_type(value: ir.Value | None, declared: Input) -> None:
    if value is not None and (name := NAMES.get(int(_known(value)))) not in declared.dtypes:
        raise Refused(f"the fused operator has no {name} form")


def own_node(op: Any, op_type: str, *inputs: Any, outputs: Sequence[str] = ("y",)) -> Any:
    """Return the pattern of a node of onnxruntime's own, with any attributes.

    It begins with these inputs, and may have more.
    """
    return getattr(op, op_type)(
        *inputs, _domain=MICROSOFT, _allow_other_inputs=True, _outputs=list(outputs)
    )


def require(condition: object, reason: str) -> None:
    """Raise Refused unless the condition holds."""
    if not condition:
        raise Refused(reason)


def static_size(value: ir.Value, axis: int) -> int | None:
    """Return the size of an axis if the file states it."""
    if value.shape is None or not -len(value.shape) <= axis < len(value.shape):
        return None
    size = value.shape[axis]
    return size if isinstance(size, int) else None


def rank(value: ir.Value) -> int | None:
    """Return the number of axes if the file states it."""
    return None if value.shape is None else len(value.shape)


def scalar(value: ir.Value | None) -> float | None:
    """Return the number that a constant of one element holds."""
    tensor = ir.convenience.get_const_tensor(value) if value is not None else None
    if tensor is None or tensor.size != 1:
        return None
    return float(tensor.numpy().reshape(-1)[0])


def integers(value: ir.Value | None) -> list[int] | None:
    """Return the numbers of a short constant vector."""
    tensor = ir.convenience.get_const_tensor(value) if value is not None else None
    if tensor is None or tensor.size > 16:
        return None
    return [int(v) for v in tensor.numpy().reshape(-1)]


def producer(value: ir.Value | None, op_type: str, domain: str = "") -> ir.Node | None:
    """Return the node that made a value if it is of that type."""
    node = None if value is None else value.producer()
    matches = node is not None and node.op_type == op_type and node.domain == domain
    return node if matches else None


def operands(value: ir.Value | None, op_type: str) -> Iterator[tuple[ir.Value, ir.Value]]:
    """Yield the operands of the node that made a value, in both orders, if it is of that type."""
    node = producer(value, op_type)
    if node is None or len(node.inputs) != 2:
        return
    left, right = node.inputs
    if left is not None and right is not None:
        yield left, right
        yield right, left


def attribute(node: ir.Node, name: str, default: Any) -> Any:
    """Return the value of an attribute, or its default."""
    return node.attributes[name].value if name in node.attributes else default


def given(node: ir.Node, position: int) -> ir.Value | None:
    """Return an input, or None where it is omitted."""
    return node.inputs[position] if position < len(node.inputs) else None
