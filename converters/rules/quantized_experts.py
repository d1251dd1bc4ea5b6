"""onnxruntime's QMoE: experts with weights of 4 or 8 bits."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import torch

from ..packing import packed_columns
from .experts import Layer, RoutedExperts, columns_apart, constant
from .integers import Array, float_type, floats, unpacked
from .rule import Nodes, Rule, attribute, given, require

# Inputs by position: after a weight come its scales, then its bias; zero points come behind all.
_SCALES = 1
_ZERO_POINTS = {2: 11, 5: 12}
_ROUTER_WEIGHTS, _FIRST_UNKNOWN = 14, 15


class QMoE(RoutedExperts):
    """Experts with weights of integers, which become those of the grouped matmul.

    It has no float32 form: as in MatMulNBits, rows and scales are rounded to bfloat16.
    """

    op_type, layers, bias, third, router_weights = "QMoE", (2, 5), 2, 8, _ROUTER_WEIGHTS

    def check_node(self, node: ir.Node) -> None:
        """Refuse weights of floats, and weights that only some kernels of onnxruntime normalise."""
        kind = attribute(node, "quant_type", "int")
        require(kind == "int", f"its weights are {kind}")
        require(attribute(node, "weights_prepacked", -1) != 1, "its weights are in an own layout")
        extra = [i for i in range(_FIRST_UNKNOWN, len(node.inputs)) if given(node, i) is not None]
        require(not extra, "it has scales of all its weights")
        normalised = attribute(node, "normalize_routing_weights", 0)
        # Its CPU kernel takes the softmax of the best k all the same.
        require(
            normalised or given(node, _ROUTER_WEIGHTS) is not None,
            "its router's weights are not normalised, which onnxruntime's kernel ignores",
        )

    def row_type(self, dtype: ir.DataType) -> ir.DataType:
        """Round float32 to bfloat16."""
        return float_type(dtype)

    def weights(
        self, nodes: Nodes, node: ir.Node, layer: Layer, dtype: ir.DataType
    ) -> dict[str, ir.Value | None]:
        """Repack integers [E, N, K] with scales [E, N] or [E, N, blocks]."""
        place = layer.weight
        tensor, scales = constant(node, place), constant(node, place + _SCALES)
        given_bits = attribute(node, "expert_weight_bits", 4)
        bits = attribute(node, f"{layer.name}_expert_weight_bits", given_bits)
        block = attribute(node, "block_size", 0)
        require(bits in (4, 8), f"its weight has {bits} bits")
        require(len(tensor.shape) == 3, "its weight is not one for each expert")
        experts, columns, row = tensor.shape
        depth = row * 8 // bits
        blocks = depth // block if block > 0 else 1
        shape = (experts, columns, blocks) if block > 0 else (experts, columns)
        require(
            tuple(scales.shape) == shape and (block <= 0 or depth % block == 0),
            "its scales have not the size that it tells",
        )
        require(bits == 8 or columns % 8 == 0 or depth % 8 == 0, "its sizes are no multiples of 8")
        middle = 1 << bits - 1  # of the unsigned integers
        integers = unpacked(tensor.numpy(), bits).reshape(experts, columns, depth)
        signed = columns_apart(integers - middle, layer).swapaxes(1, 2)
        words = torch.from_numpy(np.ascontiguousarray(signed))
        packed = packed_columns(words) if bits == 4 else words.to(torch.int8)
        name = node.inputs[place].name  # type: ignore[union-attr]

        def per_block(values: Array, what: str) -> ir.Value:
            turned = columns_apart(values.reshape(experts, columns, blocks), layer).swapaxes(1, 2)
            made = turned if blocks > 1 else turned[:, 0]
            return nodes.weight(floats(made, dtype), f"{name}.{what}")

        offset = None
        zeros = given(node, _ZERO_POINTS[place])
        if zeros is not None:
            held = constant(node, _ZERO_POINTS[place]).numpy()
            points = unpacked(held.reshape(-1, held.shape[-1]), bits)
            count = blocks if block > 0 else columns
            offset = per_block(middle - points[:, :count], "offset")
        return {
            "weight": nodes.weight(ir.tensor(packed.contiguous().numpy()), f"{name}.packed"),
            "antiquant_scale": per_block(scales.numpy(), "scale"),
            "antiquant_offset": offset,
        }


def rules() -> list[Rule]:
    """Return the rules of this file."""
    return [QMoE()]
