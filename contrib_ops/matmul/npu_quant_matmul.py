"""Integer matmul, with the result dequantised or quantised anew.

Source: torch_npu.npu_quant_matmul.
"""

from onnxruntime_npu.opdef import FLOATS, HALVES, TypeCodes, TypedBy, check, npu_op, torch

from ..quant._integers import (
    BFLOAT16,
    FLOAT16,
    INT4,
    INT8,
    INT32,
    body_saturated,
    body_unpack,
    saturated,
    storage,
    type_named,
    unpack,
)
from ..quant._packed_scale import body_unpack_offset, unpack_offset
from ._batches import batch_of_result, check_batches
from ._quant_matmul_calls import refusals, samples_of_int4, samples_of_int8
from ._quantized import (
    body_scales,
    body_weight_matrix,
    check_per_column,
    scales,
    weight_matrix,
)

_OP = "npu_quant_matmul"
_RESULTS = {"int8": INT8, "float16": FLOAT16, "bfloat16": BFLOAT16, "int32": INT32}
_OPERANDS = TypeCodes({"int8": INT8, "int4": INT4})
# Subtracted from x1 of int8 in products with int4, as the device does.
_SHIFT = 8

op = npu_op(
    "npu_quant_matmul(Tensor x1, Tensor x2, Tensor scale, *, Tensor? offset=None,"
    " Tensor? pertoken_scale=None, Tensor? bias=None, int? output_dtype=None, int? x1_dtype=None,"
    " int? x2_dtype=None, int? pertoken_scale_dtype=None, int? scale_dtype=None,"
    " int[]? group_sizes=None, Tensor? y_scale=None) -> Tensor",
    onnx="NPUQuantMatmul",
    dtypes={
        "x1": ["int8", "int32"],
        "x2": ["int8", "int32"],
        "scale": ["float32", "bfloat16", "int64"],
        "offset": ["float32", "float16"],
        "pertoken_scale": ["float32"],
        "bias": ["int32", *FLOATS],
        "y_scale": ["float32", "int64"],
        "y": list(_RESULTS),
    },
    type_codes={
        "output_dtype": TypeCodes(_RESULTS),
        "x1_dtype": _OPERANDS,
        "x2_dtype": _OPERANDS,
    },
    typed_by={"y": TypedBy("output_dtype", {name: name for name in _RESULTS}, "int8")},
)
op.static("x1", -1, reason="groups are multiplied one after the other")
op.static("x2", -2, reason="groups are multiplied one after the other")
op.static("scale", 0, reason="groups are multiplied one after the other")


def _check(condition, message):
    check(condition, f"[{_OP}] {message}")


def _group_length(group_sizes):
    """Return the number of rows of x2 that share a scale, 0 for all."""
    if not group_sizes:
        return 0
    _check(
        len(group_sizes) == 3
        and all(0 <= size <= 1 for size in group_sizes[:2])
        and group_sizes[2] >= 0
        and group_sizes[2] % 8 == 0,
        f"expected group_sizes [0, 0, G] with G a multiple of 8 or 0, got {list(group_sizes)}",
    )
    return group_sizes[2]


def _check_operands(x1, x2, x1_dtype, x2_dtype, group):
    _check(
        x1.dim() >= 2 and x2.dim() >= 2,
        f"expected x1 [.., M, K] and x2 [.., K, N], got {list(x1.shape)} and {list(x2.shape)}",
    )
    for name, x, dtype in (("x1", x1, x1_dtype), ("x2", x2, x2_dtype)):
        wanted = x.dtype if dtype is None else getattr(torch, storage(dtype))
        _check(
            x.dtype == wanted,
            f"expected {name} of {wanted} for {name}_dtype {dtype}, got {x.dtype}",
        )
    wanted = torch.int32 if x1.dtype == torch.int32 or group else torch.int8
    _check(
        x2.dtype == wanted,
        f"expected x2 of {wanted} with x1 of {x1.dtype} and groups of {group} rows, got {x2.dtype}",
    )


def _check_scale_and_offset(scale, offset, k, n, group, of_int8, dtype):
    if group == 0:
        check_per_column(_OP, "scale", scale, n)
        if offset is not None:
            _check(
                dtype == "int8",
                f"expected offset only with a result of int8 or groups, got {dtype}",
            )
            check_per_column(_OP, "offset", offset, n)
        return
    _check(
        k % group == 0 and list(scale.shape) == [k // group, n],
        f"expected scale of shape [{k} / {group}, {n}], groups of {group} rows, "
        f"got {list(scale.shape)}",
    )
    _check(dtype in HALVES, f"expected a result of float16 or bfloat16 with groups, got {dtype}")
    if of_int8:
        _check(
            offset is not None and list(offset.shape) == [n],
            f"expected offset of shape [{n}] with x1 of int8 and groups, "
            f"got {'none' if offset is None else list(offset.shape)}",
        )
    elif offset is not None:
        _check(
            offset.shape == scale.shape,
            f"expected offset of scale's shape {list(scale.shape)}, got {list(offset.shape)}",
        )


def _scales_of_rows(pertoken_scale, rows, x2, dtype):
    """Return pertoken_scale as it broadcasts to the result; rows: the axes of x1 but the last."""
    if pertoken_scale is None:
        return None
    m, given = rows[-1], list(pertoken_scale.shape)
    every_row = given == rows and x2.dim() == 2
    _check(
        every_row or given in ([m], [m, 1]),
        f"expected pertoken_scale of shape [{m}], [{m}, 1] or, with a matrix x2, {rows}, "
        f"got {given}",
    )
    _check(dtype != "int32", "expected no pertoken_scale with a result of int32, got one")
    return pertoken_scale.reshape([*rows, 1] if every_row else [m, 1])


def _check_bias(bias, batch, n, group, dtype):
    if bias is None:
        return
    shapes = [[n]] if len(batch) != 1 else [[n], [batch[0], 1, n]]
    _check(
        list(bias.shape) in shapes,
        f"expected bias of shape {' or '.join(map(str, shapes))}, got {list(bias.shape)}",
    )
    _check(group == 0, "expected no bias with groups, got one")
    _check(
        dtype != "int32" or bias.dtype == torch.int32,
        f"expected bias of int32 with a result of int32, got {bias.dtype}",
    )


def _product_of_groups(left, right, scale, offset, group, of_int8, batch):
    """Return the sum over the groups, each scaled, in float32 and one after the other."""
    total = scale.new_zeros([*batch, left.shape[-2], right.shape[-1]])
    if of_int8:
        total = total + offset.float()
    for begin in range(0, left.shape[-1], group):
        columns, rows = left[..., begin : begin + group], right[..., begin : begin + group, :]
        part = torch.matmul(columns - _SHIFT if of_int8 else columns, rows).float()
        if offset is not None and not of_int8:
            zeros = offset[begin // group].float()
            part = part - columns.sum(-1, keepdim=True).float() * zeros
        total = total + part * scale[begin // group]
    return total


@op.reference
def reference(
    x1,
    x2,
    scale,
    offset=None,
    pertoken_scale=None,
    bias=None,
    output_dtype=None,
    x1_dtype=None,
    x2_dtype=None,
    pertoken_scale_dtype=None,
    scale_dtype=None,
    group_sizes=None,
    y_scale=None,
):
    """y = (x1 @ x2 + bias) * scale * pertoken_scale of integers, or the bias of floats added last.

    x1: int8 [.., M, K], or int4 packed in int32, [.., M, K/8]; x2: int8 [.., K, N], or for packed
    x1 int4 packed in int32, [.., K, N/8] or [.., K/8, N]; scale: [1], [N] or [1, N], float32,
    bfloat16 or int64 as npu_trans_quant_param packs it; pertoken_scale: [M] or [M, 1], or, which
    torch_npu does not take, [.., M] for every row of x1 with x2 of two axes; bias: [N], or
    [B, 1, N] for a result [B, M, N]; y: [.., M, N] of output_dtype, int8 by default.

    Products are summed in int32, which wraps, with a bias of int32; these sums are y if that is
    int32, and scale is not applied. Otherwise every step is one operation of float32, in this
    order: the sum, scale, pertoken_scale, a bias of floats. int8 is that plus offset, [1], [N] or
    [1, N], or the offset in a packed scale, rounded half to even and saturated; float16 and
    bfloat16 are rounded once.

    With group_sizes [0, 0, G] every G rows of a packed x2 have scales of their own, scale
    [K/G, N], and y is float16 or bfloat16: pertoken_scale * sum_g (x1_g @ (x2_g - offset_g)) *
    scale_g with offset of scale's shape for packed x1. For x1 of int8 it is pertoken_scale *
    (offset + sum_g ((x1_g - 8) @ x2_g) * scale_g), as the device computes it: there offset [N]
    normally is 8 times the column sums of x2 * scale, so that the 8 cancels. A sum over groups
    starts with the first one, or offset, and adds one group after the other.

    x1_dtype and x2_dtype may say what x1 and x2 hold; the other arguments steer other devices.
    """
    for name, given in (
        ("pertoken_scale_dtype", pertoken_scale_dtype),
        ("scale_dtype", scale_dtype),
    ):
        _check(given is None, f"expected no {name} on this device, got {given}")
    _check(y_scale is None, "expected no y_scale on this device, got one")
    group, dtype = _group_length(group_sizes), output_dtype or "int8"
    _check_operands(x1, x2, x1_dtype, x2_dtype, group)
    of_int8 = x1.dtype == torch.int8
    left = x1 if of_int8 else unpack(x1)
    k = left.shape[-1]
    right = weight_matrix(_OP, "x2", x2, k)
    n = right.shape[-1]
    check_batches(_OP, x1.shape[:-2], x2.shape[:-2])
    _check_scale_and_offset(scale, offset, k, n, group, of_int8, dtype)
    tokens = _scales_of_rows(pertoken_scale, list(left.shape[:-1]), x2, dtype)
    batch = batch_of_result(x1.shape[:-2], x2.shape[:-2])
    _check_bias(bias, batch, n, group, dtype)

    left, right = left.to(torch.int32), right.to(torch.int32)
    if group:
        y = _product_of_groups(left, right, scales(scale), offset, group, of_int8, batch)
        return (y if tokens is None else y * tokens).to(getattr(torch, dtype))
    sums = torch.matmul(left, right)
    if bias is not None and bias.dtype == torch.int32:
        sums = sums + bias
    if dtype == "int32":
        return sums
    y = sums.float() * scales(scale)
    if tokens is not None:
        y = y * tokens
    if bias is not None and bias.dtype != torch.int32:
        y = y + bias.float()
    if dtype != "int8":
        return y.to(getattr(torch, dtype))
    if offset is not None:
        y = y + offset.float()
    elif scale.dtype == torch.int64:
        y = y + unpack_offset(scale)
    return saturated(y, "int8")


def _body_product_of_groups(b, call, left, right, scale, offset, group):
    """Build _product_of_groups."""
    length = b.const([group], "int64")
    lead, n = b.Slice(b.Shape(left), [0], [-1]), b.Slice(b.Shape(right), [-1], [2**62])
    groups = b.Div(b.Slice(b.Shape(left), [-1], [2**62]), length)
    batch = b.Slice(b.Shape(right), [0], [-2])
    one = b.const([1], "int64")
    of_int8 = call.dtype("x1") == "int8"
    if of_int8:
        left = b.Sub(left, b.const(_SHIFT, "int32"))
    # Every row of a group is a matrix, so that the groups remain an axis.
    rows = b.Reshape(left, b.Concat(lead, groups, one, length, axis=0), allowzero=1)
    matrices = b.Reshape(right, b.Concat(batch, one, groups, length, n, axis=0), allowzero=1)
    parts = b.Squeeze(b.Cast(b.MatMul(rows, matrices), to="float32"), [-2])
    if offset is not None and not of_int8:
        sums = b.Squeeze(b.Cast(b.ReduceSum(rows, [-1], keepdims=1), to="float32"), [-2])
        parts = b.Sub(parts, b.Mul(sums, b.Cast(offset, to="float32")))
    parts = b.Mul(parts, scale)
    if of_int8:
        first = b.Slice(parts, [0], [1], [-2])
        parts = b.Concat(b.Expand(b.Cast(offset, to="float32"), b.Shape(first)), parts, axis=-2)
    return b.ReduceSum(parts, [-2], keepdims=0)


def _body_scales_of_rows(b, call, left, pertoken_scale):
    """Build _scales_of_rows."""
    rows, given = call.rank("x1"), call.rank("pertoken_scale")
    if given is not None and given > 2:
        return b.Unsqueeze(pertoken_scale, [-1])
    if given in (1, None) or rows in (2, None):
        return b.Reshape(pertoken_scale, [-1, 1])
    # [M, 1], or [B, M] beside x1 [B, M, K]. B is not inferred, which it cannot be where M is 0.
    m = b.Slice(b.Shape(left), [-2], [-1])
    first, last = b.Split(b.Shape(pertoken_scale), num_outputs=2)
    one = b.const([1], "int64")
    batch = b.Where(b.Equal(last, m), first, one)
    return b.Reshape(pertoken_scale, b.Concat(batch, m, one, axis=0), allowzero=1)


@op.function
def body(b, call, x1, x2, scale, offset, pertoken_scale, bias, y_scale):
    dtype = type_named(call.attrs["output_dtype"], _RESULTS, "int8")
    left = x1 if call.dtype("x1") == "int8" else body_unpack(b, x1)
    k = b.Slice(b.Shape(left), [-1], [2**62])
    right = b.Cast(body_weight_matrix(b, call, "x2", x2, k), to="int32")
    left = b.Cast(left, to="int32")
    tokens = None if pertoken_scale is None else _body_scales_of_rows(b, call, left, pertoken_scale)
    group_sizes = call.attrs["group_sizes"]
    if group_sizes and group_sizes[2]:
        factors = body_scales(b, call, "scale", scale)
        y = _body_product_of_groups(b, call, left, right, factors, offset, group_sizes[2])
        return b.Cast(y if tokens is None else b.Mul(y, tokens), to=dtype)
    sums = b.MatMul(left, right)
    floats_added = bias is not None and call.dtype("bias") != "int32"
    if bias is not None and not floats_added:
        sums = b.Add(sums, bias)
    if dtype == "int32":
        return sums
    y = b.Mul(b.Cast(sums, to="float32"), body_scales(b, call, "scale", scale))
    if tokens is not None:
        y = b.Mul(y, tokens)
    if floats_added:
        y = b.Add(y, b.Cast(bias, to="float32"))
    if dtype != "int8":
        return b.Cast(y, to=dtype)
    if offset is not None:
        y = b.Add(y, b.Cast(offset, to="float32"))
    elif call.dtype("scale") == "int64":
        y = b.Add(y, body_unpack_offset(b, scale))
    return body_saturated(b, y, "int8")


@op.samples
def samples(make):
    yield from samples_of_int8(make) if make.dtype == "int8" else samples_of_int4(make)


for _dtype in ("float16", "bfloat16"):
    op.tolerance(
        _dtype, rtol=0, atol=0, reason="every step is one operation of float32, then one rounding"
    )

refusals(op)
