"""The product of npu_grouped_matmul: x times every matrix of a weight."""

from onnxruntime_npu.opdef import torch

from ..quant._integers import body_saturated, body_unpack, saturated, unpack
from ..quant._packed_scale import body_unpack_offset, unpack_offset
from ._activations import activated, body_activated
from ._grouped_scheme import (
    OP,
    TENSORS_OF,
    TITLES,
    check_result,
    per_block,
    per_column,
    refuse_unless,
    row_bias,
    scheme_of,
    token_scale,
)
from ._quantized import (
    body_dequantized,
    body_scales,
    body_weight_matrix,
    dequantized,
    dtype_name,
    refuse_other,
    scales,
    weight_matrix,
)

ACTIVATIONS = {0: None, 1: "relu", 2: "gelu_tanh", 4: "fast_gelu", 5: "silu"}
# Subtracted from int8 in products with int4, as the device does.
SHIFT = 8


def sum_of_blocks(left, right, scale, bias):
    """Return the sum over blocks of K, each scaled, in float32 and one after the other."""
    blocks = scale.shape[1]
    length = left.shape[-1] // blocks
    total = 0.0 if bias is None else bias
    for block in range(blocks):
        columns = left[:, block * length : (block + 1) * length]
        rows = right[:, block * length : (block + 1) * length]
        part = torch.matmul(columns, rows).float() * scale[:, block : block + 1]
        total = part + total
    return total


def body_sum_of_blocks(b, left, right, scale, bias):
    """Build sum_of_blocks; scale [groups, blocks, N], bias [groups, 1, N] or None."""
    one = b.const([1], "int64")
    blocks = b.Slice(b.Shape(scale), [1], [2])
    length = b.Div(b.Slice(b.Shape(left), [-1], [2**62]), blocks)
    lead, n = b.Slice(b.Shape(left), [0], [-1]), b.Slice(b.Shape(right), [-1], [2**62])
    groups = b.Slice(b.Shape(right), [0], [1])
    rows = b.Reshape(left, b.Concat(lead, blocks, one, length, axis=0), allowzero=1)
    matrices = b.Reshape(right, b.Concat(groups, one, blocks, length, n, axis=0), allowzero=1)
    parts = b.Squeeze(
        b.Cast(b.MatMul(rows, matrices), to="float32"), [-2]
    )  # [groups, M, blocks, N]
    parts = b.Mul(parts, b.Unsqueeze(scale, [1]))
    if bias is not None:
        first = b.Slice(parts, [0], [1], [-2])
        parts = b.Concat(b.Expand(b.Unsqueeze(bias, [1]), b.Shape(first)), parts, axis=-2)
    return b.ReduceSum(parts, [-2], keepdims=0)


def body_rows_of_blocks(b, weight, values):
    """Build float32 values [groups, K, N] of values [groups, blocks, N]."""
    k = b.Gather(b.Shape(weight), b.const(1, "int64"), axis=0)
    length = b.Div(k, b.Gather(b.Shape(values), b.const(1, "int64"), axis=0))
    numbers = b.Div(b.Range(b.const(0, "int64"), k, b.const(1, "int64")), b.Max(length, 1))
    return b.Gather(b.Cast(values, to="float32"), numbers, axis=1)


def _weight_only(left, right, given, groups, one_matrix):
    k, n = right.shape[1:]
    given_scale, offset = given["antiquant_scale"], given["antiquant_offset"]
    scale = per_block("antiquant_scale", given_scale, groups, k, n, one_matrix)
    if offset is not None:
        refuse_unless(
            offset.shape == given_scale.shape,
            f"expected antiquant_offset of antiquant_scale's shape {list(given_scale.shape)}, "
            f"got {list(offset.shape)}",
        )
        refuse_unless(
            offset.dtype == scale.dtype,
            f"expected antiquant_offset of antiquant_scale's dtype {dtype_name(scale)}, "
            f"got {dtype_name(offset)}",
        )
        offset = offset.reshape(scale.shape).repeat_interleave(k // scale.shape[1], 1)
    scale = scale.repeat_interleave(k // scale.shape[1], 1)
    return torch.matmul(left.float(), dequantized(right, scale, offset, left.dtype).float())


def _of_blocks(scheme, left, right, given, bias, one_matrix):
    groups, k, n = right.shape
    factors = per_block("scale", scales(given["scale"]), groups, k, n, one_matrix)
    length = k // factors.shape[1]
    refuse_unless(
        factors.shape[1] == 1 or length % 8 == 0,
        f"expected blocks of a multiple of 8 rows of int4, got {length}",
    )
    integers = left.to(torch.int32) - (SHIFT if scheme == "a8w4" else 0)
    first = None if bias is None else bias.float()
    return sum_of_blocks(integers, right.to(torch.int32), factors, first)


def product(x, weight, given, act_type, dtype, one_matrix):
    """Return x [M, K] times every matrix of weight [groups, K, N], as [groups, M, N] of `dtype`."""
    scheme = scheme_of(dtype_name(x), dtype_name(weight))
    refuse_other(OP, TITLES[scheme], given, TENSORS_OF[scheme])
    left = unpack(x) if scheme == "int4" else x
    m, k = left.shape
    right = weight if scheme == "float" else weight_matrix(OP, "weight", weight, k)
    refuse_unless(right.shape[1] == k, f"expected weight [.., {k}, N], got {list(weight.shape)}")
    groups, n = right.shape[0], right.shape[2]
    bias = row_bias(given["bias"], scheme, groups, n, one_matrix)
    tokens = token_scale(given["per_token_scale"], m)
    check_result(scheme, dtype, tokens, act_type)
    if scheme == "float":
        y = torch.matmul(left.float(), right.float())
    elif scheme == "weight_only":
        y = _weight_only(left, right, given, groups, one_matrix)
    elif scheme == "int8":
        factors = per_column("scale", given["scale"], groups, n, one_matrix)
        sums = torch.matmul(left.to(torch.int32), right.to(torch.int32))
        if bias is not None and bias.dtype == torch.int32:
            sums, bias = sums + bias, None
        if dtype == "int32":
            refuse_unless(bias is None, "expected bias of int32 with a result of int32, got floats")
            return sums
        y = sums.float() * scales(factors)
    else:
        y, bias = _of_blocks(scheme, left, right, given, bias, one_matrix), None
    if tokens is not None:
        y = y * tokens
    if bias is not None:
        y = y + bias.float()
    y = activated(y, ACTIVATIONS[act_type])
    if dtype != "int8":
        return y.to(getattr(torch, dtype))
    if given["scale"].dtype in (torch.int64, torch.uint64):
        y = y + unpack_offset(factors)
    return saturated(y, "int8")


def body_product(b, call, x, weight, given, act_type, dtype):
    """Build product; one matrix has been given a first axis, and so have its tensors."""
    scheme = scheme_of(call.dtype("x"), call.dtype("weight"))
    left = body_unpack(b, x) if scheme == "int4" else x
    bias, tokens = given["bias"], given["per_token_scale"]
    if bias is not None:
        bias = b.Unsqueeze(bias, [1])
    added = None if bias is None else b.Cast(bias, to="float32")
    if scheme == "float":
        y = b.MatMul(b.Cast(left, to="float32"), b.Cast(weight, to="float32"))
    else:
        k = b.Slice(b.Shape(left), [-1], [2**62])
        right = body_weight_matrix(b, call, "weight", weight, k)
    if scheme == "weight_only":
        scale, offset = (
            None if given[name] is None else body_rows_of_blocks(b, right, given[name])
            for name in ("antiquant_scale", "antiquant_offset")
        )
        right = body_dequantized(b, right, scale, offset, call.dtype("x"))
        y = b.MatMul(b.Cast(left, to="float32"), b.Cast(right, to="float32"))
    elif scheme == "int8":
        sums = b.MatMul(b.Cast(left, to="int32"), b.Cast(right, to="int32"))
        if bias is not None and call.dtype("bias") == "int32":
            sums, added = b.Add(sums, bias), None
        if dtype == "int32":
            return sums
        y = b.Mul(b.Cast(sums, to="float32"), body_scales(b, call, "scale", given["scale"]))
    elif scheme != "float":
        integers = b.Cast(left, to="int32")
        if scheme == "a8w4":
            integers = b.Sub(integers, b.const(SHIFT, "int32"))
        factors = body_scales(b, call, "scale", given["scale"])
        y = body_sum_of_blocks(b, integers, b.Cast(right, to="int32"), factors, added)
        added = None
    if tokens is not None:
        y = b.Mul(y, b.Reshape(tokens, [-1, 1]))
    if added is not None:
        y = b.Add(y, added)
    y = body_activated(b, y, ACTIVATIONS[act_type])
    if dtype != "int8":
        return b.Cast(y, to=dtype)
    if call.dtype("scale") in ("int64", "uint64"):
        y = b.Add(y, body_unpack_offset(b, given["scale"]))
    return body_saturated(b, y, "int8")
