"""Matmuls of groups: of rows with a weight each, of parts of K, or of lists of tensors.

Source: torch_npu.npu_grouped_matmul. A node has no lists of tensors: the operator here is the
product of one x and one weight, and torch's function puts lists together for it.
"""

import math

from onnxruntime_npu.opdef import FLOATS, TypeCodes, TypedBy, npu_op, torch

from ..quant._integers import BFLOAT16, FLOAT16, INT8, INT32, type_named
from ._group_list import (
    DEPTH,
    NONE,
    ROWS,
    body_members,
    check_group_list,
    check_groups,
    members,
)
from ._grouped_lists import grouped_matmul
from ._grouped_matmul import ACTIVATIONS, body_product, product
from ._grouped_matmul_calls import refusals, samples_of
from ._grouped_scheme import FLOAT_NAMES, OP, refuse_unless
from ._quantized import dtype_name

_RESULTS = {"float32": 0, "float16": FLOAT16, "bfloat16": BFLOAT16, "int8": INT8, "int32": INT32}
_OPERANDS = [*FLOATS, "int8", "int32"]

op = npu_op(
    "_npu_grouped_matmul(Tensor x, Tensor weight, Tensor? bias=None, Tensor? scale=None,"
    " Tensor? antiquant_scale=None, Tensor? antiquant_offset=None, Tensor? per_token_scale=None,"
    " Tensor? group_list=None, *, int group_type=-1, int group_list_type=0, int act_type=0,"
    " int? output_dtype=None) -> Tensor",
    onnx="NPUGroupedMatmul",
    dtypes={
        "x": _OPERANDS,
        "weight": _OPERANDS,
        "bias": ["int32", *FLOATS],
        "scale": ["float32", "bfloat16", "int64", "uint64"],
        "antiquant_scale": FLOATS,
        "antiquant_offset": FLOATS,
        "per_token_scale": ["float32"],
        "group_list": ["int64"],
        "y": _OPERANDS,
    },
    type_codes={"output_dtype": TypeCodes(_RESULTS)},
    typed_by={"y": TypedBy("output_dtype", {name: name for name in _RESULTS})},
    ignored_attributes=["split_item"],
)
op.static("weight", 0, -2, reason="the groups, and blocks of K, are multiplied one after the other")
op.static("x", -1, reason="blocks of K are multiplied one after the other")
for _name in ("scale", "antiquant_scale", "antiquant_offset"):
    op.static(_name, reason="blocks of K are multiplied one after the other")
op.static("group_list", 0, reason="it has an entry for each group")


def _result_type(x, output_dtype):
    refuse_unless(
        output_dtype is not None or x != "int32",
        "expected output_dtype with x of int4 in int32, got none",
    )
    return output_dtype or x


@op.reference
def reference(
    x,
    weight,
    bias=None,
    scale=None,
    antiquant_scale=None,
    antiquant_offset=None,
    per_token_scale=None,
    group_list=None,
    group_type=-1,
    group_list_type=0,
    act_type=0,
    output_dtype=None,
):
    """y = activation(x @ weight + bias), with a weight for every group of rows.

    group_type 0: x [M, K], weight [g, K, N], y [M, N]; -1, one group: x [.., M, K], weight [K, N],
    y [.., M, N]; 2, groups of K: x [M, K], weight [K, N], y [g, M, N]. group_list says where the
    groups end (group_list_type 0), how many rows they have (1), or both which weight they have and
    how many rows (2, [groups, 2]). Rows of no group become zeros, as do groups without rows of K.

    x and weight of one type of floats: summed in float32, bias [g, N] added. x of floats, weight of
    int8, or int4 packed in int32 along either axis: the weight becomes (weight + antiquant_offset)
    * antiquant_scale of x's type, [g, N], or [g, B, N] with B equal blocks of K. Both of int8: the
    sums of int32 with a bias of int32, times scale ([g, N], [g, 1] or [g]) and per_token_scale
    ([M] or [M, 1]), and a bias of floats after that. Both of int4: per_token_scale * x @ (weight *
    scale), scale [g, N] or [g, B, N]. x of int8, weight of int4: per_token_scale * (x @ (weight *
    scale) - 8 * colsum(weight * scale) + bias), as the device computes it; bias normally is 8
    times those column sums. Without groups bias and scales have no axis g.

    Steps in float32 are one operation each, in this order. act_type: 0 none, 1 relu, 2 gelu of
    tanh, 4 fast gelu, 5 silu. output_dtype: x's by default. int8 adds the offset of a packed scale
    and is rounded half to even, saturated; int32 is the sum itself.
    """
    refuse_unless(
        group_type in (NONE, ROWS, DEPTH), f"The group type must be -1, 0 or 2, got {group_type}"
    )
    refuse_unless(act_type in ACTIVATIONS, f"expected act_type 0, 1, 2, 4 or 5, got {act_type}")
    dtype = _result_type(dtype_name(x), output_dtype)
    rank = 3 if group_type == ROWS else 2
    refuse_unless(
        weight.dim() == rank and (x.dim() == 2 or (group_type == NONE and x.dim() > 2)),
        f"expected x of rank {'2 or more' if group_type == NONE else 2} and weight of rank {rank} "
        f"with group_type {group_type}, got {list(x.shape)} and {list(weight.shape)}",
    )
    given = {
        "bias": bias,
        "scale": scale,
        "antiquant_scale": antiquant_scale,
        "antiquant_offset": antiquant_offset,
        "per_token_scale": per_token_scale,
    }
    groups = weight.shape[0] if group_type == ROWS else None
    check_group_list(group_list, group_type, group_list_type, groups)
    if group_type == NONE:
        rows = x.reshape(math.prod(x.shape[:-1]), x.shape[-1])
        y = product(rows, weight.unsqueeze(0), given, act_type, dtype, one_matrix=True)
        return y.reshape([*x.shape[:-1], y.shape[-1]])
    if group_type == ROWS:
        check_groups(group_list, group_list_type, x.shape[0], groups)
        y = product(x, weight, given, act_type, dtype, one_matrix=False)
        inside = members(group_list, group_list_type, x.shape[0], groups)
        # At most one term of a sum is not zero.
        return torch.where(inside[:, :, None], y, torch.zeros_like(y)).sum(0, dtype=y.dtype)
    refuse_unless(
        dtype_name(x) in FLOAT_NAMES and weight.dtype == x.dtype and dtype in FLOAT_NAMES,
        f"expected x, weight and y of floats with group_type 2, got {dtype_name(x)}, "
        f"{dtype_name(weight)} and {dtype}",
    )
    for name, tensor in given.items():
        refuse_unless(tensor is None, f"expected no {name} with group_type 2, got one")
    refuse_unless(act_type == 0, f"expected act_type 0 with group_type 2, got {act_type}")
    refuse_unless(
        x.shape[1] == weight.shape[0],
        f"expected weight [{x.shape[1]}, N], got {list(weight.shape)}",
    )
    check_groups(group_list, group_list_type, x.shape[1], None)
    inside = members(group_list, group_list_type, x.shape[1], None)
    parts = torch.where(inside[:, None, :], x.float(), 0.0)
    rows = torch.where(inside[:, :, None], weight.float(), 0.0)
    return torch.matmul(parts, rows).to(getattr(torch, dtype))


@op.function
def body(
    b,
    call,
    x,
    weight,
    bias,
    scale,
    antiquant_scale,
    antiquant_offset,
    per_token_scale,
    group_list,
):
    group_type, list_type = call.attrs["group_type"], call.attrs["group_list_type"]
    dtype = type_named(call.attrs["output_dtype"], _RESULTS, call.dtype("x"))
    if group_type == DEPTH:
        k = b.Gather(b.Shape(x), b.const(1, "int64"), axis=0)
        inside = body_members(b, group_list, list_type, k, None)
        zero = b.const(0.0, "float32")
        parts = b.Where(b.Unsqueeze(inside, [1]), b.Cast(x, to="float32"), zero)
        rows = b.Where(b.Unsqueeze(inside, [2]), b.Cast(weight, to="float32"), zero)
        return b.Cast(b.MatMul(parts, rows), to=dtype)
    one_matrix = group_type == NONE

    def columns(name, values):
        if values is None:
            return None
        if one_matrix:
            return b.Unsqueeze(values, [0, 1] if call.rank(name) == 1 else [0])
        return b.Unsqueeze(values, [1, 2] if call.rank(name) == 1 else [1])

    def blocks(name, values):
        if values is None:
            return None
        if one_matrix:
            return b.Unsqueeze(values, [0, 1] if call.rank(name) == 1 else [0])
        return b.Unsqueeze(values, [1]) if call.rank(name) == 2 else values

    integers = call.dtype("x") == "int8" and call.dtype("weight") == "int8"
    given = {
        "bias": b.Unsqueeze(bias, [0])
        if bias is not None and one_matrix and call.rank("bias") == 1
        else bias,
        "scale": (columns if integers else blocks)("scale", scale),
        "antiquant_scale": blocks("antiquant_scale", antiquant_scale),
        "antiquant_offset": blocks("antiquant_offset", antiquant_offset),
        "per_token_scale": per_token_scale,
    }
    act_type = call.attrs["act_type"]
    if one_matrix:
        shape = b.Shape(x)
        lead, depth = b.Slice(shape, [0], [-1]), b.Slice(shape, [-1], [2**62])
        m = b.ReduceProd(lead, [0], keepdims=1)
        rows = b.Reshape(x, b.Concat(m, depth, axis=0), allowzero=1)
        y = body_product(b, call, rows, b.Unsqueeze(weight, [0]), given, act_type, dtype)
        n = b.Slice(b.Shape(y), [-1], [2**62])
        return b.Reshape(y, b.Concat(lead, n, axis=0), allowzero=1)
    y = body_product(b, call, x, weight, given, act_type, dtype)
    m = b.Gather(b.Shape(x), b.const(0, "int64"), axis=0)
    groups = b.Gather(b.Shape(weight), b.const(0, "int64"), axis=0)
    inside = b.Unsqueeze(body_members(b, group_list, list_type, m, groups), [2])
    # Types that every runtime adds; at most one term of a sum is not zero.
    wide = "float32" if dtype in FLOAT_NAMES else "int32"
    chosen = b.Where(inside, b.Cast(y, to=wide), b.const(0, wide))
    return b.Cast(b.ReduceSum(chosen, [0], keepdims=0), to=dtype)


_ARGUMENTS = (
    "Tensor[] x, Tensor[] weight, *, Tensor[]? bias=None, Tensor[]? scale=None,"
    " Tensor[]? offset=None, Tensor[]? antiquant_scale=None, Tensor[]? antiquant_offset=None,"
    " Tensor[]? per_token_scale=None, {list}? group_list=None, Tensor[]? activation_input=None,"
    " Tensor[]? activation_quant_scale=None, Tensor[]? activation_quant_offset=None,"
    " int? split_item=0, int? group_type=None, int? group_list_type=0, int? act_type=0"
)


@op.partner(
    f"{OP}({_ARGUMENTS.replace('{list}', 'Tensor')}, int[]? tuning_config=None,"
    " int? output_dtype=None, int? x_dtype=None, int? weight_dtype=None, int? scale_dtype=None,"
    " int? per_token_scale_dtype=None) -> Tensor[]"
)
def of_tensor(x, weight, group_type=None, **arguments):
    """Multiply lists of tensors, or one tensor in groups; the result is a list.

    x, weight: lists. One x [M, K] and one weight [g, K, N], or g weights [K, N], with group_type 0;
    lists of one length with group_type -1; x [M, K] and weight [K, N], divided along K, with
    group_type 2. bias, scale, antiquant_scale and antiquant_offset: lists as long as weight;
    per_token_scale: as long as x. group_list: int64 on the device of x. split_item 0 or 1 returns a
    tensor for each group, 2 or 3 one tensor.

    Lists are put together to one tensor by a copy: pass one tensor where speed matters. A list of
    results of groups waits for the values of group_list. tuning_config is a hint for other devices.
    For the schemes see torch.ops.npu._npu_grouped_matmul, which this calls.
    """
    refuse_unless(group_type is not None, "Requires manual passing group_type, got none")
    return grouped_matmul(x, weight, group_type=group_type, **arguments)


@op.partner(
    f"{OP}.List({_ARGUMENTS.replace('{list}', 'int[]')}, ScalarType? output_dtype=None) -> Tensor[]"
)
def of_list(x, weight, group_list=None, group_type=None, group_list_type=None, **arguments):
    """Multiply with group_list as numbers: where the groups of rows end, ascending.

    As the overload with a tensor; group_type is -1 without group_list and 0 with it.
    """
    refuse_unless(
        not group_list_type, f"expected group_list_type 0 with a list of int, got {group_list_type}"
    )
    if not group_list:
        chosen = NONE if group_type is None else group_type
        return grouped_matmul(x, weight, group_type=chosen, **arguments)
    refuse_unless(
        group_type in (None, ROWS), f"expected group_type 0 with a list of int, got {group_type}"
    )
    ends = torch.tensor(list(group_list), dtype=torch.int64, device=x[0].device)
    return grouped_matmul(
        x, weight, group_type=ROWS, group_list=ends, numbers=list(group_list), **arguments
    )


@op.samples
def samples(make):
    yield from samples_of(make)


for _dtype in ("float32", "float16", "bfloat16"):
    op.tolerance(
        _dtype,
        rtol={"float32": 2e-5, "float16": 2e-3, "bfloat16": 1.6e-2}[_dtype],
        atol={"float32": 2e-5, "float16": 2e-3, "bfloat16": 1.6e-2}[_dtype],
        reason="products are summed in another order, and activations approximated",
    )

refusals(op)
