"""Product of one rank's part of a matrix, summed over the ranks.

Source: torch_npu.npu_mm_all_reduce_base.
"""

import math

from onnxruntime_npu.opdef import FLOATS, Sample, check, npu_op, torch, wide

from ..matmul._quantized import (
    body_dequantized,
    body_scales,
    check_antiquant_scale,
    check_per_column,
    dequantized,
    refuse_other,
    scales,
)
from ..quant._packed_scale import pack_scale
from ._ranks import ALONE, check_alone, check_group, check_matrices, check_unused, empty

_OP = "npu_mm_all_reduce_base"
_TITLES = {
    "float": "x1 and x2 of floats",
    "weight_only": "x1 of floats and x2 of int8",
    "int8": "x1 and x2 of int8",
}
_TENSORS_OF = {
    "float": ("bias", "x3"),
    "weight_only": ("bias", "x3", "antiquant_scale!", "antiquant_offset"),
    "int8": ("bias", "x3", "dequant_scale!", "pertoken_scale"),
}

op = npu_op(
    f"{_OP}(Tensor x1, Tensor x2, str hcom, *, str reduce_op='sum', Tensor? bias=None,"
    " Tensor? antiquant_scale=None, Tensor? antiquant_offset=None, Tensor? x3=None,"
    " Tensor? dequant_scale=None, Tensor? pertoken_scale=None, Tensor? comm_quant_scale_1=None,"
    " Tensor? comm_quant_scale_2=None, int antiquant_group_size=0, int comm_turn=0,"
    " int[]? group_sizes=None, int? y_dtype=None, int? x1_dtype=None, int? x2_dtype=None,"
    " int? dequant_scale_dtype=None, int? pertoken_scale_dtype=None, int comm_quant_mode=0,"
    " str? comm_mode=None) -> Tensor",
    onnx="NPUMmAllReduceBase",
    dtypes={
        "x1": [*FLOATS, "int8"],
        "x2": [*FLOATS, "int8"],
        "bias": [*FLOATS, "int32"],
        "antiquant_scale": FLOATS,
        "antiquant_offset": FLOATS,
        "x3": FLOATS,
        "dequant_scale": ["int64", "uint64", "float32", "bfloat16"],
        "pertoken_scale": ["float32"],
        "comm_quant_scale_1": ["float16", "bfloat16"],
        "comm_quant_scale_2": ["float16", "bfloat16"],
        "y": FLOATS,
    },
    typings=[
        *({"x1": dtype, "y": dtype} for dtype in FLOATS),
        {"x1": "int8", "dequant_scale": "bfloat16", "y": "bfloat16"},
        {"x1": "int8", "y": "float16"},
    ],
    not_portable=ALONE,
)
op.static("x1", -1, reason="scales of groups are spread over the rows of x2")


def _check(condition, message):
    check(condition, f"[{_OP}] {message}")


def _scheme(x1, x2):
    if x1.dtype == torch.int8:
        _check(x2.dtype == torch.int8, f"expected x2 of int8 with x1 of int8, got {x2.dtype}")
        return "int8"
    if x2.dtype == torch.int8:
        return "weight_only"
    _check(
        x1.dtype == x2.dtype,
        f"expected x2 of x1's dtype {x1.dtype} or int8, got {x2.dtype}",
    )
    return "float"


def _check_weight_scales(x1, scale, offset, k, n, group):
    check_antiquant_scale(_OP, scale, k, n, group)
    _check(
        scale.dtype == x1.dtype,
        f"expected antiquant_scale of x1's dtype {x1.dtype}, got {scale.dtype}",
    )
    if offset is not None:
        _check(
            offset.shape == scale.shape and offset.dtype == scale.dtype,
            f"expected antiquant_offset like antiquant_scale, {scale.dtype} {list(scale.shape)}, "
            f"got {offset.dtype} {list(offset.shape)}",
        )


def _check_transfer_scale(name, scale, n, dtype):
    if scale is None:
        return
    _check(
        list(scale.shape) in ([n], [1, n]) and scale.dtype == dtype,
        f"expected {name} of y's dtype {dtype} and shape [{n}] or [1, {n}], "
        f"got {scale.dtype} {list(scale.shape)}",
    )


def _rows(values, k, group):
    """Spread values per tensor, column or group over the rows of x2."""
    if group == 0:
        return values if values.dim() == 2 else values.unsqueeze(0)
    return values.index_select(0, torch.arange(k, device=values.device) // group)


@op.reference
def reference(
    x1,
    x2,
    hcom,
    reduce_op="sum",
    bias=None,
    antiquant_scale=None,
    antiquant_offset=None,
    x3=None,
    dequant_scale=None,
    pertoken_scale=None,
    comm_quant_scale_1=None,
    comm_quant_scale_2=None,
    antiquant_group_size=0,
    comm_turn=0,
    group_sizes=None,
    y_dtype=None,
    x1_dtype=None,
    x2_dtype=None,
    dequant_scale_dtype=None,
    pertoken_scale_dtype=None,
    comm_quant_mode=0,
    comm_mode=None,
):
    """y = the sum over the ranks of x1 @ x2 + bias + x3.

    x1: [M, K] or [B, S, K]; x2: [K, N] of x1's dtype, or int8 for floats; K may differ from rank to
    rank; hcom: the group's name, as get_hccl_comm_name tells it, or the provider option groups,
    "" for this rank alone; bias: [N]; x3: y's shape and dtype; y: [M, N] or [B, S, N] of x1's
    dtype. What each rank adds is part of the sum: bias and x3 belong on one of them.

    int8 x2 for floats stands for (x2 + antiquant_offset) * antiquant_scale, rounded to x1's dtype;
    antiquant_scale: of x1's dtype, [1], [N] or [1, N], or [ceil(K/G), N] with groups of
    G = antiquant_group_size rows, here any number; antiquant_offset: like it. int8 x1 and x2: the
    term is (x1 @ x2 + bias) * dequant_scale * pertoken_scale + x3 with an int32 bias, dequant_scale
    [1], [N] or [1, N] of float32, bfloat16 or packed by npu_trans_quant_param, and pertoken_scale
    [M], [B * S]; y is bfloat16 for such a dequant_scale, otherwise float16.

    A rank's term is computed in float32 and rounded to y's dtype. The terms are added in the order
    of ranks, in float32, and their sum is rounded once: it is the same on every rank, bit for bit.

    comm_quant_scale_1 and comm_quant_scale_2, [N] or [1, N] of y's dtype float16 or bfloat16, the
    same on all ranks: terms and sums travel as int8, which loses precision. A term is sent as
    round(term / scale_1), the sum of these integers times scale_1 as round(sum / scale_2), half to
    even and saturated; y is that times scale_2. A rank alone sends nothing.
    """
    _check(reduce_op == "sum", f"expected reduce_op 'sum', got '{reduce_op}'")
    check_unused(
        _OP,
        {
            "comm_turn": (comm_turn, 0),
            "group_sizes": (group_sizes or None, None),
            "y_dtype": (y_dtype, None),
            "x1_dtype": (x1_dtype, None),
            "x2_dtype": (x2_dtype, None),
            "dequant_scale_dtype": (dequant_scale_dtype, None),
            "pertoken_scale_dtype": (pertoken_scale_dtype, None),
            "comm_quant_mode": (comm_quant_mode, 0),
        },
    )
    _check(
        0 <= antiquant_group_size < 2**31,
        f"expected antiquant_group_size from 0 to 2147483647, got {antiquant_group_size}",
    )
    check_group(_OP, hcom, None, x1)
    check_matrices(_OP, x1, x2, most_axes=3)
    scheme = _scheme(x1, x2)
    refuse_other(
        _OP,
        _TITLES[scheme],
        {
            "bias": bias,
            "antiquant_scale": antiquant_scale,
            "antiquant_offset": antiquant_offset,
            "x3": x3,
            "dequant_scale": dequant_scale,
            "pertoken_scale": pertoken_scale,
        },
        _TENSORS_OF[scheme],
    )
    k, n = x2.shape
    shape = [*x1.shape[:-1], n]
    dtype = x1.dtype
    if scheme == "int8":
        check_per_column(_OP, "dequant_scale", dequant_scale, n)
        dtype = torch.bfloat16 if dequant_scale.dtype == torch.bfloat16 else torch.float16
        rows = math.prod(x1.shape[:-1])
        if pertoken_scale is not None:
            _check(
                list(pertoken_scale.shape) == [rows],
                f"expected pertoken_scale of shape [{rows}], got {list(pertoken_scale.shape)}",
            )
    if scheme == "weight_only":
        _check_weight_scales(x1, antiquant_scale, antiquant_offset, k, n, antiquant_group_size)
    if bias is not None:
        wanted = torch.int32 if scheme == "int8" else x1.dtype
        _check(
            list(bias.shape) == [n] and bias.dtype == wanted,
            f"expected bias {wanted} [{n}], got {bias.dtype} {list(bias.shape)}",
        )
    if x3 is not None:
        _check(
            list(x3.shape) == shape and x3.dtype == dtype,
            f"expected x3 like y, {dtype} {shape}, got {x3.dtype} {list(x3.shape)}",
        )
    _check(
        (comm_quant_scale_1 is None) == (comm_quant_scale_2 is None),
        "expected comm_quant_scale_1 and comm_quant_scale_2 together, got one of them",
    )
    _check_transfer_scale("comm_quant_scale_1", comm_quant_scale_1, n, dtype)
    _check_transfer_scale("comm_quant_scale_2", comm_quant_scale_2, n, dtype)
    if hcom:
        return empty(shape, dtype, x1)
    if scheme == "int8":
        sums = torch.matmul(x1.to(torch.int32), x2.to(torch.int32))
        y = (sums if bias is None else sums + bias).float() * scales(dequant_scale)
        if pertoken_scale is not None:
            y = y * pertoken_scale.reshape([*x1.shape[:-1], 1])
    else:
        weight = x2
        if scheme == "weight_only":
            scale = _rows(antiquant_scale, k, antiquant_group_size)
            offset = antiquant_offset
            if offset is not None:
                offset = _rows(offset, k, antiquant_group_size)
            weight = dequantized(x2, scale, offset, x1.dtype)
        y = torch.matmul(wide(x1), wide(weight))
        if bias is not None:
            y = y + wide(bias)
    return (y if x3 is None else y + wide(x3)).to(dtype)


@op.function
def body(
    b,
    call,
    x1,
    x2,
    bias,
    antiquant_scale,
    antiquant_offset,
    x3,
    dequant_scale,
    pertoken_scale,
    comm_quant_scale_1,
    comm_quant_scale_2,
):
    check_alone(call.attrs["hcom"])
    dtype = call.dtype("x1")
    if dtype == "int8":
        dtype = "bfloat16" if call.dtype("dequant_scale") == "bfloat16" else "float16"
        sums = b.MatMul(b.Cast(x1, to="int32"), b.Cast(x2, to="int32"))
        sums = sums if bias is None else b.Add(sums, bias)
        y = b.Mul(b.Cast(sums, to="float32"), body_scales(b, call, "dequant_scale", dequant_scale))
        if pertoken_scale is not None:
            lead = b.Slice(b.Shape(x1), [0], [-1])
            rows = b.Concat(lead, b.const([1], "int64"), axis=0)
            y = b.Mul(y, b.Reshape(pertoken_scale, rows, allowzero=1))
    else:
        weight = x2
        if call.dtype("x2") == "int8":
            k = b.Squeeze(b.Slice(b.Shape(x2), [0], [1]), [0])
            weight = _body_weight(b, call, x2, k, antiquant_scale, antiquant_offset)
        y = b.MatMul(b.Cast(x1, to="float32"), b.Cast(weight, to="float32"))
        if bias is not None:
            y = b.Add(y, b.Cast(bias, to="float32"))
    return b.Cast(y if x3 is None else b.Add(y, b.Cast(x3, to="float32")), to=dtype)


def _body_weight(b, call, x2, k, scale, offset):
    group = call.attrs["antiquant_group_size"]

    def rows(values):
        values = b.Cast(values, to="float32")
        if group == 0:
            return values
        zero, one = b.const(0, "int64"), b.const(1, "int64")
        return b.Gather(values, b.Div(b.Range(zero, k, one), group), axis=0)

    offset = None if offset is None else rows(offset)
    return body_dequantized(b, x2, rows(scale), offset, call.dtype("x1"))


def _samples_of_floats(make):
    n = 33
    yield Sample(
        make.tensor([[1.0], [2.0]]),
        make.tensor([[1.0, 1.0]]),
        "",
        id="catalogue_rank_0",
        expect=[[[1.0, 1.0], [2.0, 2.0]]],
    )
    x2 = make(65, n, scale=65**-0.5)
    yield Sample(make(7, 65), x2, "", bias=make(n), x3=make(7, n), id="terms")
    yield Sample(make(2, 3, 65), x2, "", x3=make(2, 3, n), id="batches")
    yield Sample(make(64, 5).t(), make(64, 9, scale=0.125), "", id="not_contiguous")
    yield Sample(make(0, 4), make(4, 3), "", bias=make(3), id="no_rows")
    if make.dtype != "float32":
        sent, sums = make.uniform(n, low=0.02, high=0.04), make.uniform(1, n, low=0.03, high=0.05)
        yield Sample(
            make(7, 65), x2, "", comm_quant_scale_1=sent, comm_quant_scale_2=sums, id="sent_as_int8"
        )
    integers = make(65, n, dtype="int8")
    scale, offset = make.uniform(n, low=0.01, high=0.03), make(n)
    yield Sample(
        make(7, 65), integers, "", bias=make(n), antiquant_scale=scale, antiquant_offset=offset,
        id="weight_only",
    )  # fmt: skip
    scale = make.uniform(3, n, low=0.01, high=0.03)
    groups = {"antiquant_scale": scale, "antiquant_group_size": 32}
    yield Sample(make(7, 65), integers, "", **groups, id="groups")
    yield Sample(
        make(2, 3, 65), integers, "", **groups, antiquant_offset=make(3, n), x3=make(2, 3, n),
        id="groups_offsets",
    )  # fmt: skip
    columns = {"antiquant_scale": scale[:1], "antiquant_offset": make(1, n)}
    if make.dtype != "float32":
        columns |= {"comm_quant_scale_1": sent[None], "comm_quant_scale_2": sums[0]}
    yield Sample(make(7, 65), integers, "", **columns, id="weight_only_sent_as_int8")
    whole = {"antiquant_scale": scale[0, :1], "antiquant_offset": make(1)}
    yield Sample(make(7, 65), integers, "", bias=make(n), **whole, id="one_scale")


def _samples_of_int8(make):
    n = 33
    x1, x2 = make(2, 3, 65), make(65, n)
    scale = make.uniform(n, low=0.001, high=0.003, dtype="float32")
    bias, tokens = make(n, dtype="int32"), make.uniform(6, dtype="float32")
    yield Sample(x1, x2, "", bias=bias, dequant_scale=pack_scale(scale), id="packed")
    yield Sample(x1, x2, "", dequant_scale=scale, pertoken_scale=tokens, id="tokens")
    yield Sample(
        x1,
        x2,
        "",
        bias=bias,
        x3=make(2, 3, n, dtype="bfloat16"),
        dequant_scale=scale[:1].bfloat16(),
        pertoken_scale=tokens,
        id="bfloat16",
    )
    packed = pack_scale(scale)[None]
    unsigned, half = packed.view(torch.uint64), make(2, 3, n, dtype="float16")
    yield Sample(x1, x2, "", dequant_scale=unsigned, x3=half, id="unsigned")
    yield Sample(
        x1, x2, "", bias=bias, dequant_scale=packed, pertoken_scale=tokens, id="packed_tokens"
    )
    for dtype in ("float16", "bfloat16"):
        sent = make.uniform(n, low=0.02, high=0.04, dtype=dtype)
        transfer = {"comm_quant_scale_1": sent, "comm_quant_scale_2": sent[None] * 1.25}
        factors = scale.bfloat16() if dtype == "bfloat16" else scale
        yield Sample(x1[0], x2, "", dequant_scale=factors, **transfer, id=f"{dtype}_sent_as_int8")


@op.samples
def samples(make):
    yield from _samples_of_int8(make) if make.dtype == "int8" else _samples_of_floats(make)


op.errors(
    lambda make: Sample(make(2, 8), make(7, 4), ""),
    match=r"expected x1 \[\.\., M, K\] and x2 \[K, N\], got \[2, 8\] and \[7, 4\]",
    id="depth",
)
op.errors(
    lambda make: Sample(make(2, 8), make(8, 4), "", reduce_op="max"),
    match=r"expected reduce_op 'sum', got 'max'",
    id="reduction",
)
op.errors(
    lambda make: Sample(make(2, 8), make(8, 4), "", bias=make(5)),
    match=r"expected bias .*float32 \[4\], got .*float32 \[5\]",
    id="bias",
)
op.errors(
    lambda make: Sample(make(2, 8), make(8, 4, dtype="int8"), ""),
    match=r"expected antiquant_scale with x1 of floats and x2 of int8, got none",
    id="no_scale",
)
op.errors(
    lambda make: Sample(
        make(2, 8, dtype="float16"),
        make(8, 4, dtype="float16"),
        "",
        comm_quant_scale_1=make(4, dtype="float16"),
    ),
    match=r"expected comm_quant_scale_1 and comm_quant_scale_2 together",
    id="half_of_the_scales",
)
op.errors(
    lambda make: Sample(make(2, 8), make(8, 4), "no such group"),
    match=r"expected the name of a group of this rank, got 'no such group'",
    id="unknown_group",
    needs_values=True,
)
