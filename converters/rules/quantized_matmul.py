"""onnxruntime's MatMulNBits: weights of 4 or 8 bits with a scale for each block of inputs."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
import torch

from ..packing import packed_columns
from .integers import float_type, floats, unpacked
from .rule import MICROSOFT, Nodes, Rule, attribute, given, own_node, rank, require


class MatMulNBits(Rule):
    """A matmul with blocks of integers becomes ``npu_weight_quant_batchmatmul``.

    It has no float32 form: activations are rounded to bfloat16 there, and scales with them. That is
    finer than accuracy_level 4, which lets onnxruntime round activations to int8.
    """

    def pattern(self, op: Any, x: Any, weight: Any, scales: Any) -> Any:
        """Match one node."""
        return own_node(op, "MatMulNBits", x, weight, scales)

    def build(
        self, nodes: Nodes, x: ir.Value, weight: ir.Value, scales: ir.Value, y: ir.Value
    ) -> Any:
        """Multiply by the repacked weight, and add the bias."""
        node = y.producer()
        assert node is not None
        bits, block = attribute(node, "bits", 4), attribute(node, "block_size", 0)
        depth, columns = attribute(node, "K", 0), attribute(node, "N", 0)
        zeros, bias = given(node, 3), given(node, 5)
        require(bits in (4, 8), f"its weight has {bits} bits")
        require(rank(x) != 1, "its input is a vector")
        require(not attribute(node, "weight_prepacked", 0), "its weight is in an own layout")
        require(given(node, 4) is None, "its inputs are permuted")
        packs = bits == 8 or columns % 8 == 0 or depth % 8 == 0
        require(packs, "its sizes are no multiples of 8")
        require(x.dtype is not None, "its type is unknown")
        constants = [weight, scales] if zeros is None else [weight, scales, zeros]
        require(all(v.const_value is not None for v in constants), "its weight is no initializer")
        require(
            zeros is None or zeros.dtype == ir.DataType.UINT8, "its zero points are no integers"
        )
        assert x.dtype is not None
        dtype = float_type(x.dtype)
        require(block >= 16 and depth > 0 and columns > 0, "its sizes are no positive numbers")
        blocks = -(-depth // block)
        sizes = (
            columns * blocks * block * bits // 8,
            columns * blocks,
            columns * -(-blocks * bits // 8),
        )
        held = [0 if v.const_value is None else v.const_value.size for v in constants]
        require(held == list(sizes[: len(held)]), "its weight has not the size that it tells")
        held_bytes = _numbers(weight.const_value).reshape(columns, -1)
        integers = unpacked(held_bytes, bits)[:, :depth]
        middle = 1 << bits - 1  # of the unsigned integers
        signed = torch.from_numpy(np.ascontiguousarray(integers.T - middle))
        packed = packed_columns(signed) if bits == 4 else signed.to(torch.int8)
        scale = _numbers(scales.const_value).reshape(columns, blocks).T
        given_offset = None
        if zeros is not None:
            held_bytes = _numbers(zeros.const_value).reshape(columns, -1)
            points = unpacked(held_bytes, bits)[:, :blocks].T
            given_offset = nodes.weight(floats(middle - points, dtype), f"{zeros.name}.offset")
        product = nodes.npu(
            "npu_weight_quant_batchmatmul",
            nodes.cast(x, dtype),
            nodes.weight(ir.tensor(packed.contiguous().numpy()), f"{weight.name}.packed"),
            nodes.weight(floats(scale, dtype), f"{scales.name}.rows"),
            antiquant_offset=given_offset,
            bias=None if bias is None else nodes.onnx("Reshape", bias, [columns]),
            antiquant_group_size=block if blocks > 1 else 0,
            # Level 4 lets onnxruntime round the rows of a block to int8, as this does.
            inner_precise=int(attribute(node, "accuracy_level", 0) == 4),
        )[0]
        return nodes.cast(product, x.dtype)


def joined_blocks(nodes: Nodes, first: ir.Node, second: ir.Node) -> ir.Value:
    """Return both results of two MatMulNBits nodes of one input, side by side, by one node."""
    alike = ("bits", "block_size", "K", "accuracy_level")
    require(
        all(attribute(first, name, 0) == attribute(second, name, 0) for name in alike)
        and not any(attribute(node, "weight_prepacked", 0) for node in (first, second)),
        "its projections' weights are of other forms",
    )
    inputs = [first.inputs[0]]
    for i in range(1, 4):
        left, right = given(first, i), given(second, i)
        require((left is None) == (right is None), "its projections' weights are of other forms")
        if left is None or right is None:
            inputs.append(None)
            continue
        tensors = (left.const_value, right.const_value)
        require(None not in tensors, "its weights are no initializers")
        together = np.concatenate([t.numpy() for t in tensors if t is not None])
        inputs.append(nodes.weight(ir.tensor(together), f"{left.name}.gate_up"))
    require(
        all(given(node, i) is None for node in (first, second) for i in (4, 5)),
        "its projections have biases or permuted inputs",
    )
    while inputs[-1] is None:
        inputs.pop()
    numbers = {name: attribute(first, name, 0) for name in alike}
    numbers["N"] = attribute(first, "N", 0) + attribute(second, "N", 0)
    made: ir.Value = nodes.onnx("MatMulNBits", *inputs, _domain=MICROSOFT, **numbers)
    return made


def _numbers(tensor: ir.TensorProtocol | None) -> np.ndarray[Any, Any]:
    assert tensor is not None
    return tensor.numpy()


def rules() -> list[Rule]:
    """Return the rules of this file."""
    return [MatMulNBits()]
