"""What npu_all_gather_base_mm and npu_mm_reduce_scatter_base share: the product and its forms.

The product is one of floats, or of int8 with a scale for each column and perhaps each row.
"""

from onnxruntime_npu.opdef import FLOATS, Sample, TypeCodes, TypedBy, check, torch, wide

from ..matmul._quantized import body_scales, check_per_column, scales
from ..quant._integers import BFLOAT16, FLOAT16
from ..quant._packed_scale import pack_scale
from ._ranks import check_bias, check_comm_mode, check_matrices, check_unused

RESULTS = {"float16": FLOAT16, "bfloat16": BFLOAT16}


def types_of(result):
    """Return the arguments of npu_op that give the types, for the result of that name."""
    return {
        "dtypes": {
            "self": [*FLOATS, "int8"],
            "x2": [*FLOATS, "int8"],
            "bias": FLOATS,
            "x1_scale": ["float32"],
            "x2_scale": ["float32", "int64"],
            result: FLOATS,
        },
        "typings": [
            *({"self": dtype, result: dtype} for dtype in FLOATS),
            {"self": "int8", "x2_scale": "int64", result: "float16"},
            {"self": "int8", result: "bfloat16"},
        ],
        "type_codes": {"output_dtype": TypeCodes(RESULTS)},
        "typed_by": {result: TypedBy("output_dtype", {name: name for name in RESULTS})},
    }


def checked_result(op, x1, x2, bias, x1_scale, x2_scale, comm_turn, output_dtype, comm_mode):
    """Refuse what does not fit together; return the dtype of the product."""
    check_unused(op, {"comm_turn": (comm_turn, 0)})
    check_comm_mode(op, comm_mode)
    check_matrices(op, x1, x2)
    check(x1.dtype == x2.dtype, f"[{op}] expected x2 of x1's dtype {x1.dtype}, got {x2.dtype}")
    m, n = x1.shape[0], x2.shape[1]
    if x1.dtype != torch.int8:
        for name, given in (("x1_scale", x1_scale), ("x2_scale", x2_scale)):
            check(given is None, f"[{op}] expected no {name} with x1 of floats, got one")
        check(
            output_dtype is None,
            f"[{op}] expected no output_dtype with x1 of floats, got {output_dtype}",
        )
        check_bias(op, bias, n, [x1.dtype])
        return x1.dtype
    check(x2_scale is not None, f"[{op}] expected x2_scale with x1 of int8, got none")
    check_per_column(op, "x2_scale", x2_scale, n)
    check(
        x1_scale is None or list(x1_scale.shape) in ([m], [m, 1]),
        f"[{op}] expected x1_scale of shape [{m}] or [{m}, 1], "
        f"got {None if x1_scale is None else list(x1_scale.shape)}",
    )
    packed = x2_scale.dtype == torch.int64
    check(
        not packed or output_dtype in (None, "float16"),
        f"[{op}] expected output_dtype float16 with an x2_scale of int64, got {output_dtype}",
    )
    check_bias(op, bias, n, [torch.float16, torch.bfloat16])
    return getattr(torch, "float16" if packed else output_dtype or "bfloat16")


def product(x1, x2, bias, x1_scale, x2_scale, dtype):
    """Return the product with its terms, of `dtype`."""
    if x1.dtype != torch.int8:
        y = torch.matmul(wide(x1), wide(x2))
        return (y if bias is None else y + wide(bias)).to(dtype)
    factors = scales(x2_scale)
    y = torch.matmul(x1.to(torch.int32), x2.to(torch.int32)).float() * factors
    if bias is not None:
        y = y + bias.float() * factors
    return (y if x1_scale is None else y * x1_scale.reshape(-1, 1)).to(dtype)


def body_product(b, call, x1, x2, bias, x1_scale, x2_scale, dtype):
    """Build product."""
    if call.dtype("self") != "int8":
        y = b.MatMul(b.Cast(x1, to="float32"), b.Cast(x2, to="float32"))
        y = y if bias is None else b.Add(y, b.Cast(bias, to="float32"))
        return b.Cast(y, to=dtype)
    factors = body_scales(b, call, "x2_scale", x2_scale)
    sums = b.MatMul(b.Cast(x1, to="int32"), b.Cast(x2, to="int32"))
    y = b.Mul(b.Cast(sums, to="float32"), factors)
    if bias is not None:
        y = b.Add(y, b.Mul(b.Cast(bias, to="float32"), factors))
    y = y if x1_scale is None else b.Mul(y, b.Reshape(x1_scale, [-1, 1]))
    return b.Cast(y, to=dtype)


def body_dtype(call):
    """Return the name of the product's type."""
    dtype = call.dtype("self")
    if dtype != "int8":
        return dtype
    named = {code: name for name, code in RESULTS.items()}.get(call.attrs["output_dtype"])
    return "float16" if call.dtype("x2_scale") == "int64" else named or "bfloat16"


def samples_of(make):
    """Yield the calls of one rank, without a group."""
    n = 33
    if make.dtype in FLOATS:
        yield Sample(
            make.tensor([[1.0, 2.0], [3.0, 4.0]]),
            make.tensor([[1.0, 0.0], [0.0, 1.0]]),
            "",
            1,
            id="catalogue",
        )
        yield Sample(make(8, 65), make(65, n, scale=0.125), "", 1, bias=make(n), id="bias")
        yield Sample(make(64, 8).t(), make(64, 9, scale=0.125), "", 1, id="not_contiguous")
        yield Sample(make(0, 4), make(4, 3), "", 1, bias=make(3), id="no_rows")
        return
    x1, x2 = make(8, 65), make(65, n)
    scale = make.uniform(n, low=0.001, high=0.003, dtype="float32")
    tokens = make.uniform(8, 1, dtype="float32")
    bias = make(n, dtype="bfloat16")
    yield Sample(x1, x2, "", 1, x2_scale=scale[None], x1_scale=tokens, bias=bias, id="tokens")
    yield Sample(x1, x2, "", 1, x2_scale=pack_scale(scale), id="packed")
    yield Sample(
        x1,
        x2,
        "",
        1,
        x2_scale=scale[:1],
        output_dtype=torch.float16,
        comm_mode="aiv",
        id="float16",
    )
    half = {"bias": make(n, dtype="float16"), "output_dtype": torch.float16, "comm_mode": "ai_cpu"}
    packed = pack_scale(scale)[None]
    yield Sample(x1, x2, "", 1, x2_scale=packed, x1_scale=tokens[:, 0], **half, id="packed_tokens")
    named = {"bias": half["bias"], "output_dtype": torch.bfloat16, "comm_mode": ""}
    yield Sample(x1, x2, "", 1, x2_scale=scale, **named, id="bfloat16")


def refusals(op):
    op.errors(
        lambda make: Sample(make(2, 8), make(7, 4), "", 1),
        match=r"expected x1 \[M, K\] and x2 \[K, N\], got \[2, 8\] and \[7, 4\]",
        id="depth",
    )
    op.errors(
        lambda make: Sample(make(2, 8), make(8, 4), "", 1, bias=make(5)),
        match=r"expected a bias of shape \[4\], got \[5\]",
        id="bias",
    )
    op.errors(
        lambda make: Sample(make(2, 8), make(8, 4), "", 2),
        match=r"expected the name of a group of 2 ranks, got none",
        id="no_group",
    )
    op.errors(
        lambda make: Sample(make(2, 8), make(8, 4), "no such group", 2),
        match=r"expected the name of a group of this rank, got 'no such group'",
        id="unknown_group",
        needs_values=True,
    )
    op.errors(
        lambda make: Sample(make(2, 8, dtype="int8"), make(8, 4, dtype="int8"), "", 1),
        match=r"expected x2_scale with x1 of int8, got none",
        id="no_scale",
    )
