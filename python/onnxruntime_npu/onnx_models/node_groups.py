"""Groups of nodes that become one: what they have, and how they are found."""

from __future__ import annotations

from typing import NamedTuple, TypeGuard

import onnx_ir as ir

_FLOATS = (ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16)
_QUANTIZED_PRODUCT, _INTEGER_PRODUCT = "NPUWeightQuantBatchMatmulV2", "NPUQuantMatmul"
_RESULTS = (1, 27)  # float16 and bfloat16, as output_dtype names them


class Group(NamedTuple):
    """Nodes that are joined into one of domain ``npu.fused``.

    Inputs and outputs are by the names that they have in the function.
    """

    op_type: str
    nodes: list[ir.Node]
    inputs: dict[str, ir.Value]
    outputs: dict[str, ir.Value]
    attributes: list[ir.Attr]

    def is_closed(self) -> bool:
        """Whether nothing else reads what the joined node does not return."""
        inner, returned = set(self.nodes), set(self.outputs.values())
        return all(
            output in returned
            or (not output.is_graph_output() and all(use.node in inner for use in output.uses()))
            for node in self.nodes
            for output in node.outputs
        )


class Product(NamedTuple):
    """The product of rows with a constant matrix, of floats or quantised.

    The joined node's type begins with ``prefix``, and has these inputs first and last.
    """

    prefix: str
    columns: int | None
    inputs: dict[str, ir.Value]
    last_inputs: dict[str, ir.Value]
    attributes: list[ir.Attr]
    result: ir.Attr | None = None  # names the result's type where the inputs do not tell


class Search:
    """Follows values to the nodes that computed them, and remembers these."""

    def __init__(self, *nodes: ir.Node) -> None:
        self.nodes = list(nodes)

    def producer(self, value: ir.Value | None, op_type: str, domain: str = "") -> ir.Node | None:
        """Return the node of this type that computes a value."""
        node = None if value is None else value.producer()
        if node is None or (node.domain, node.op_type) != (domain, op_type):
            return None
        if node not in self.nodes:
            self.nodes.append(node)
        return node

    def product(self, value: ir.Value | None) -> Product | None:
        """Return the product with a constant matrix that computes a value."""
        node = self.producer(value, "MatMul")
        if node is not None:
            return _float_product(node)
        node = self.producer(value, _QUANTIZED_PRODUCT, "npu")
        if node is not None:
            return _quantized_product(node)
        node = self.producer(value, _INTEGER_PRODUCT, "npu")
        return None if node is None else _integer_product(node)

    def through(self, value: ir.Value | None, *op_types: str) -> ir.Value | None:
        """Return what nodes of these types, the last first, have made the value of."""
        for op_type in op_types:
            node = self.producer(value, op_type)
            if node is None or any(not is_constant(each) for each in node.inputs[1:]):
                return None
            value = node.inputs[0]
        return value

    def reader(self, value: ir.Value | None, op_type: str) -> ir.Value | None:
        """Return the result of the node of this type that alone reads a value."""
        uses = [] if value is None else list(value.uses())
        if len(uses) != 1 or uses[0].node.domain or uses[0].node.op_type != op_type:
            return None
        self.nodes.append(uses[0].node)
        return uses[0].node.outputs[0]


def _float_product(node: ir.Node) -> Product | None:
    rows, weight = node.inputs
    if rows is None or not _is_weight(weight) or weight.dtype not in _FLOATS:
        return None
    if weight.shape is None or weight.shape.rank() != 2:
        return None
    return Product("", _size(weight.shape[1]), {"A": rows, "B": weight}, {}, [])


def _quantized_product(node: ir.Node) -> Product | None:
    """Only where its result is of the type of the rows and has no bias."""
    rows, weight, scale, offset, *others = [*node.inputs, *[None] * 4][:7]
    if rows is None or any(value is not None for value in others):
        return None
    if not _is_weight(weight) or not _is_weight(scale):
        return None
    if offset is not None and not _is_weight(offset):
        return None
    if weight.shape is None or weight.shape.rank() != 2 or scale.dtype not in _FLOATS:
        return None
    if scale.shape is None or scale.shape.rank() not in (1, 2):
        return None
    columns = _size(scale.shape[-1])
    # One scale for all columns is that of a tensor.
    if columns == 1:
        return None
    inputs = {"x": rows, "weight": weight, "antiquant_scale": scale}
    last = {} if offset is None else {"antiquant_offset": offset}
    kept = ("antiquant_group_size", "inner_precise")
    attributes = [each for name in kept if (each := node.attributes.get(name)) is not None]
    return Product("WeightQuant", columns, inputs, last, attributes)


def _integer_product(node: ir.Node) -> Product | None:
    """Only of int8, where its result is of 16-bit floats, without offset, bias and groups."""
    rows, weight, scale, offset, row_scale, *others = [*node.inputs, *[None] * 4][:7]
    if rows is None or any(value is not None for value in (offset, *others)):
        return None
    if not _is_weight(weight) or not _is_weight(scale) or "group_sizes" in node.attributes:
        return None
    if {rows.dtype, weight.dtype} != {ir.DataType.INT8} or scale.dtype != ir.DataType.FLOAT:
        return None
    if weight.shape is None or weight.shape.rank() != 2 or scale.shape is None:
        return None
    if scale.shape not in (ir.Shape([weight.shape[1]]), ir.Shape([1, weight.shape[1]])):
        return None
    if row_scale is not None and not _are_rounded_rows(rows, row_scale):
        return None
    result = node.attributes.get("output_dtype")
    if result is None or result.as_int() not in _RESULTS:
        return None
    inputs = {"x1": rows, "x2": weight, "scale": scale}
    last = {} if row_scale is None else {"pertoken_scale": row_scale}
    return Product("Quant", _size(weight.shape[1]), inputs, last, [], result)


def _are_rounded_rows(rows: ir.Value, scale: ir.Value) -> bool:
    """Whether these are rows and their scales, one for each of them, whatever their axes."""
    node = rows.producer()
    if node is None or node is not scale.producer() or rows is not node.outputs[0]:
        return False
    mode = node.attributes.get("quant_mode")
    by_rows = mode is None or mode.as_string() == "pertoken"
    return (node.domain, node.op_type) == ("npu", "NPUDynamicQuant") and by_rows


def _is_weight(value: ir.Value | None) -> TypeGuard[ir.Value]:
    return value is not None and value.is_initializer() and not value.is_graph_input()


def _size(axis: int | ir.SymbolicDim) -> int | None:
    return axis if isinstance(axis, int) else None


def is_constant(value: ir.Value | None) -> bool:
    """Whether a value is left out or known."""
    return value is None or ir.convenience.get_const_tensor(value) is not None


def said(attribute: ir.Attr | None) -> object:
    """Return what tells whether two attributes are equal."""
    return None if attribute is None else (attribute.name, attribute.value)
