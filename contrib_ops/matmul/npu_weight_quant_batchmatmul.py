"""Matmul of float activations and int8 or int4 weights, with the result quantised on request.

Source: torch_npu.npu_weight_quant_batchmatmul.
"""

from onnxruntime_npu.opdef import ABSENT, HALVES, Sample, check, npu_op, torch

from ..quant._integers import body_saturated, pack, saturated
from ..quant._packed_scale import body_unpack_offset, pack_scale, unpack_offset
from ._batches import check_batches
from ._quantized import (
    body_dequantized,
    body_rounded_rows,
    body_scales,
    body_weight_matrix,
    check_antiquant_scale,
    check_per_column,
    dequantized,
    rounded_rows,
    scales,
    weight_matrix,
)

_OP = "npu_weight_quant_batchmatmul"
# Elements of x that are rounded together where the weight has no groups.
_GROUP = 128

op = npu_op(
    "npu_weight_quant_batchmatmul(Tensor x, Tensor weight, Tensor antiquant_scale,"
    " Tensor? antiquant_offset=None, Tensor? quant_scale=None, Tensor? quant_offset=None,"
    " Tensor? bias=None, int antiquant_group_size=0, int inner_precise=0,"
    " int? weight_dtype=None) -> Tensor",
    onnx="NPUWeightQuantBatchMatmulV2",
    dtypes={
        "x": HALVES,
        "weight": ["int8", "int32"],
        "antiquant_scale": [*HALVES, "int64"],
        "antiquant_offset": [*HALVES, "int32"],
        "quant_scale": ["float32", "int64"],
        "quant_offset": ["float32"],
        "bias": [*HALVES, "float32"],
        "y": [*HALVES, "int8"],
    },
    typings=[
        *({"x": dtype, "quant_scale": ABSENT, "y": dtype} for dtype in HALVES),
        {"quant_scale": "float32", "y": "int8"},
        {"quant_scale": "int64", "y": "int8"},
    ],
    ignored_attributes=["dtype"],
)


def _check(condition, message):
    check(condition, f"[{_OP}] {message}")


def _check_scales(x, scale, offset, k, n, group):
    check_antiquant_scale(_OP, scale, k, n, group)
    if offset is not None:
        _check(
            offset.shape == scale.shape,
            f"expected antiquant_offset of antiquant_scale's shape {list(scale.shape)}, "
            f"got {list(offset.shape)}",
        )
    packed = scale.dtype == torch.int64
    _check(
        packed or scale.dtype == x.dtype,
        f"expected antiquant_scale of x's dtype {x.dtype}, or int64, got {scale.dtype}",
    )
    wanted = torch.int32 if packed else x.dtype
    if offset is not None:
        _check(offset.dtype == wanted, f"expected antiquant_offset of {wanted}, got {offset.dtype}")


def _rows(values, k, group):
    """Spread values per tensor, column or group over the rows of the weight."""
    if group == 0:
        return values if values.dim() == 2 else values.unsqueeze(0)
    return values.index_select(0, torch.arange(k, device=values.device) // group)


def _rounds_x(inner_precise, group):
    return inner_precise == 1 and group % 4 == 0


@op.reference
def reference(
    x,
    weight,
    antiquant_scale,
    antiquant_offset=None,
    quant_scale=None,
    quant_offset=None,
    bias=None,
    antiquant_group_size=0,
    inner_precise=0,
    weight_dtype=None,
):
    """y = x @ W + bias with W = (weight + antiquant_offset) * antiquant_scale of x's dtype.

    x: [.., M, K]; weight: int8 [.., K, N], or int4 packed in int32, [.., K, N/8] or [.., K/8, N];
    antiquant_scale: [1], [N] or [1, N], or [ceil(K/G), N] with groups of
    G = antiquant_group_size rows, of x's dtype, or int64 as npu_trans_quant_param packs it;
    antiquant_offset: of its shape, of x's dtype, or int32 beside an int64 scale; quant_scale: [1],
    [N] or [1, N]; quant_offset: of its shape; bias: [N] or [1, N]; y: [.., M, N] of x's dtype, or
    int8 with quant_scale: round(y * quant_scale + quant_offset), half to even, saturated.

    inner_precise 0: W is rounded to x's dtype (in float16 the sum is rounded, too), the products
    are summed in float32 and rounded once. 1, for speed: products of integers. Every row of x is
    rounded to int8, round(x * (127 / max|x|)) * (max|x| / 127) with the max of each group of G
    elements, 128 if G is 0, and W is not rounded; the error of an element of x is at most
    max|x| / 254. A G that is no multiple of 4 is computed as with 0, and so is what the NPU
    computes faster with 0: bfloat16 by groups of 32 to 124, 64 rows and more, with tile registers.
    """
    _check(
        x.dim() >= 2 and weight.dim() >= 2,
        f"expected x [.., M, K] and weight [.., K, N], "
        f"got {list(x.shape)} and {list(weight.shape)}",
    )
    _check(
        antiquant_group_size >= 0,
        f"expected antiquant_group_size of 0 or more, got {antiquant_group_size}",
    )
    _check(inner_precise in (0, 1), f"expected inner_precise 0 or 1, got {inner_precise}")
    _check(weight_dtype is None, f"expected no weight_dtype on this device, got {weight_dtype}")
    k = x.shape[-1]
    matrix = weight_matrix(_OP, "weight", weight, k)
    n = matrix.shape[-1]
    check_batches(_OP, x.shape[:-2], weight.shape[:-2])
    if bias is not None:
        _check(
            list(bias.shape) in ([n], [1, n]),
            f"expected a bias of shape [{n}] or [1, {n}], got {list(bias.shape)}",
        )
    if quant_scale is not None:
        check_per_column(_OP, "quant_scale", quant_scale, n)
    if quant_offset is not None:
        _check(quant_scale is not None, "expected quant_scale with quant_offset, got none")
        _check(
            quant_offset.shape == quant_scale.shape,
            f"expected quant_offset of quant_scale's shape {list(quant_scale.shape)}, "
            f"got {list(quant_offset.shape)}",
        )
    _check_scales(x, antiquant_scale, antiquant_offset, k, n, antiquant_group_size)
    packed = antiquant_scale.dtype == torch.int64
    _check(
        quant_scale is None or not packed,
        "expected no quant_scale with an antiquant_scale of 64 bits, got one of "
        f"{None if quant_scale is None else str(quant_scale.dtype).removeprefix('torch.')}",
    )
    factors, offsets = (
        None if values is None else _rows(values, k, antiquant_group_size)
        for values in (scales(antiquant_scale), antiquant_offset)
    )
    rounds = _rounds_x(inner_precise, antiquant_group_size)
    left = rounded_rows(x.float(), antiquant_group_size or _GROUP) if rounds else x.float()
    right = dequantized(matrix, factors, offsets, torch.float32 if rounds else x.dtype)
    y = torch.matmul(left, right.float())
    if bias is not None:
        y = y + bias.float()
    if quant_scale is None:
        return y.to(x.dtype)
    y = y * scales(quant_scale)
    if quant_offset is not None:
        y = y + quant_offset
    elif quant_scale.dtype == torch.int64:
        y = y + unpack_offset(quant_scale)
    return saturated(y, "int8")


@op.function
def body(b, call, x, weight, antiquant_scale, antiquant_offset, quant_scale, quant_offset, bias):
    dtype, group = call.dtype("x"), call.attrs["antiquant_group_size"]
    k = b.Slice(b.Shape(x), [-1], [2**62])

    def rows(values):
        if group == 0:
            return values
        numbers = b.Range(b.const(0, "int64"), b.Squeeze(k, [0]), b.const(1, "int64"))
        return b.Gather(values, b.Div(numbers, b.const(group, "int64")), axis=0)

    matrix = body_weight_matrix(b, call, "weight", weight, k)
    offsets = None if antiquant_offset is None else rows(b.Cast(antiquant_offset, to="float32"))
    factors = rows(body_scales(b, call, "antiquant_scale", antiquant_scale))
    left = b.Cast(x, to="float32")
    rounds = _rounds_x(call.attrs["inner_precise"], group)
    if rounds:
        left = body_rounded_rows(b, left, group or _GROUP)
    matrix = body_dequantized(b, matrix, factors, offsets, "float32" if rounds else dtype)
    y = b.MatMul(left, b.Cast(matrix, to="float32"))
    if bias is not None:
        y = b.Add(y, b.Cast(bias, to="float32"))
    if quant_scale is None:
        return b.Cast(y, to=dtype)
    y = b.Mul(y, body_scales(b, call, "quant_scale", quant_scale))
    if quant_offset is not None:
        y = b.Add(y, quant_offset)
    elif call.dtype("quant_scale") == "int64":
        y = b.Add(y, body_unpack_offset(b, quant_scale))
    return body_saturated(b, y, "int8")


@op.samples
def samples(make):
    dtype = make.dtype

    def weight(*shape):
        return make.ints(*shape, low=-128, high=128, dtype="int8")

    def words(*shape):
        return pack(make.ints(*shape, low=-8, high=8))

    def scale(*shape):
        return make(*shape, scale=0.002) + 0.01

    def offset(*shape):
        return make(*shape, scale=3.0)

    yield Sample(
        make.tensor([[1.0, 2.0, -1.0]]),
        torch.tensor([[1, 2], [-1, 0], [2, 1]], dtype=torch.int8),
        make.tensor([0.5, 2.0]),
        make.tensor([1.0, 0.0]),
        bias=make.tensor([0.5, 0.0]),
        id="catalogue",
        expect=[[[0.0, 2.0]]],
    )
    yield Sample(make(1, 576), weight(576, 192), scale(192), offset(192), id="decode")
    yield Sample(make(3, 70), weight(70, 33), scale(1), id="per_tensor")
    yield Sample(
        make(37, 65), weight(65, 33), scale(1, 33), offset(1, 33), bias=make(33), id="odd_tails"
    )
    yield Sample(
        make(130, 200), weight(200, 257), scale(7, 257), offset(7, 257),
        antiquant_group_size=32, id="groups",
    )  # fmt: skip
    yield Sample(
        make(5, 70), weight(70, 40), scale(3, 40), antiquant_group_size=29, id="odd_groups"
    )
    yield Sample(
        make(2, 256), words(256, 64), scale(8, 64), offset(8, 64),
        antiquant_group_size=32, id="int4",
    )  # fmt: skip
    yield Sample(make(40, 66), words(66, 40), scale(40), id="int4_odd_depth")
    yield Sample(make(40, 64), words(40, 64).t(), scale(40), offset(40), id="int4_along_columns")
    yield Sample(make(2, 3, 5, 8), weight(8, 4), scale(4), id="leading_axes")
    yield Sample(make(2, 3, 5, 8), weight(3, 8, 4), scale(1, 4), id="batch_of_weights")
    yield Sample(make(0, 8), weight(8, 4), scale(4), id="no_rows")
    yield Sample(make(3, 0), weight(0, 4), scale(4), bias=make(4), id="no_depth")
    fast = {"inner_precise": 1}
    yield Sample(make(1, 300), weight(300, 72), scale(72), offset(72), **fast, id="rounded")
    yield Sample(
        make(19, 256), words(256, 64), scale(8, 64), offset(8, 64),
        antiquant_group_size=32, **fast, id="rounded_int4",
    )  # fmt: skip
    yield Sample(
        make(131, 70), weight(70, 33), scale(4, 33), bias=make(33),
        antiquant_group_size=20, **fast, id="rounded_odd_tails",
    )  # fmt: skip
    yield Sample(
        make(5, 70), weight(70, 40), scale(3, 40),
        antiquant_group_size=29, **fast, id="rounded_odd_groups",
    )  # fmt: skip
    yield Sample(make(5, 66, scale=0), words(66, 40), scale(40), **fast, id="rounded_zeros")
    wide = "float32"
    yield Sample(
        make(9, 64), weight(64, 40), scale(40),
        quant_scale=make(40, dtype=wide, scale=5.0), quant_offset=make(40, dtype=wide, scale=9.0),
        bias=make(40, dtype=wide), id="quantised",
    )  # fmt: skip
    yield Sample(
        make(9, 64), weight(64, 40), scale(40),
        quant_scale=make(1, dtype=wide, scale=5.0), id="quantised_per_tensor",
    )  # fmt: skip
    packed = pack_scale(make.tensor([0.1, 2.5], wide))
    with_offset = pack_scale(make.tensor([0.1, 2.5], wide), make.tensor([0.0, -3.0], wide))
    yield Sample(
        make(4, 16), weight(16, 2), scale(2), quant_scale=with_offset, id="quantised_64_bits"
    )
    if dtype == "float16":
        yield Sample(
            make(4, 16, scale=0.01), weight(16, 2), packed,
            make.tensor([3, -4], "int32"), id="scales_of_64_bits",
        )  # fmt: skip
        yield Sample(
            make(4, 64), words(64, 16), pack_scale(scale(2, 16).float()),
            antiquant_group_size=32, id="groups_of_64_bits",
        )  # fmt: skip


op.tolerance(
    "int8", rtol=0, atol=1, reason="a sum in another order may fall on the other side of a half"
)

op.errors(
    lambda make: Sample(make(2, 8), torch.zeros(7, 4, dtype=torch.int8), make(4)),
    match=r"\[npu_weight_quant_batchmatmul\] expected weight \[.., 8, N\], got \[7, 4\]",
    id="depth",
)
op.errors(
    lambda make: Sample(make(2, 16), torch.zeros(3, 4, dtype=torch.int32), make(4)),
    match=r"\[npu_weight_quant_batchmatmul\] expected weight of packed int4 \[.., 16, N / 8\] or "
    r"\[.., 16 / 8, N\], got \[3, 4\]",
    id="words",
)
op.errors(
    lambda make: Sample(make(2, 8), torch.zeros(8, 4, dtype=torch.int8), make(3)),
    match=r"\[npu_weight_quant_batchmatmul\] expected antiquant_scale of shape \[1\], \[4\] or "
    r"\[1, 4\], got \[3\]",
    id="scale_shape",
)
op.errors(
    lambda make: Sample(
        make(2, 8), torch.zeros(8, 4, dtype=torch.int8), make(3, 4), antiquant_group_size=4
    ),
    match=r"\[npu_weight_quant_batchmatmul\] expected antiquant_scale of shape \[2, 4\], groups of "
    r"4 rows, got \[3, 4\]",
    id="groups",
)
op.errors(
    lambda make: Sample(
        make(2, 8),
        torch.zeros(8, 4, dtype=torch.int8),
        make(4),
        quant_offset=make(4, dtype="float32"),
    ),
    match=r"\[npu_weight_quant_batchmatmul\] expected quant_scale with quant_offset, got none",
    id="offset_alone",
)
op.errors(
    lambda make: Sample(
        make(2, 8), torch.zeros(8, 4, dtype=torch.int8), make(4), antiquant_group_size=-1
    ),
    match=r"\[npu_weight_quant_batchmatmul\] expected antiquant_group_size of 0 or more, got -1",
    id="negative_group",
)
op.errors(
    lambda make: Sample(make(2, 8), torch.zeros(8, 4, dtype=torch.int8), make(4), inner_precise=2),
    match=r"\[npu_weight_quant_batchmatmul\] expected inner_precise 0 or 1, got 2",
    id="inner_precise",
)
op.errors(
    lambda make: Sample(make(2, 8), torch.zeros(8, 4, dtype=torch.int8), make(4), weight_dtype=290),
    match=r"\[npu_weight_quant_batchmatmul\] expected no weight_dtype on this device, got 290",
    id="weight_dtype",
)
op.errors(
    lambda make: Sample(make(2, 2, 8), torch.zeros(3, 8, 4, dtype=torch.int8), make(4)),
    match=r"\[npu_weight_quant_batchmatmul\] expected broadcastable shapes, got \[2\] and \[3\]",
    id="batches",
)
op.errors(
    lambda make: Sample(
        make(2, 8, dtype="float16"),
        torch.zeros(8, 4, dtype=torch.int8),
        torch.zeros(4, dtype=torch.int64),
        quant_scale=make(4, dtype="float32"),
    ),
    match=r"\[npu_weight_quant_batchmatmul\] expected no quant_scale with an antiquant_scale of 64 "
    r"bits, got one of float32",
    id="both_scales",
)
