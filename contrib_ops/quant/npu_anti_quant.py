"""Integers back to floats. Source: torch_npu.npu_anti_quant."""

from onnxruntime_npu.opdef import FLOATS, HALVES, Sample, TypeCodes, TypedBy, check, npu_op, torch

from ._integers import BFLOAT16, FLOAT16, INT4, INT8, body_unpack, storage, unpack

_RESULTS = {"float16": FLOAT16, "bfloat16": BFLOAT16}
_SOURCES = {"int8": INT8, "int4": INT4}

op = npu_op(
    "npu_anti_quant(Tensor x, Tensor scale, *, Tensor? offset=None, int? dst_dtype=None,"
    " int? src_dtype=None) -> Tensor",
    onnx="NPUAntiQuant",
    dtypes={"x": ["int8", "int32"], "scale": FLOATS, "offset": FLOATS, "y": HALVES},
    type_codes={
        "dst_dtype": TypeCodes(
            _RESULTS, refusal="Input dst_type must be valid, but got UNKNOWN_SCALAR: "
        ),
        "src_dtype": TypeCodes(_SOURCES),
    },
    typed_by={"y": TypedBy("dst_dtype", {name: name for name in _RESULTS}, "float16")},
)


@op.reference
def reference(x, scale, offset=None, dst_dtype=None, src_dtype=None):
    """y = (x + offset) * scale in float32, rounded once to dst_dtype.

    x: int8, or int32 that holds eight int4 in each element of the last axis, the first in the
    lowest bits; src_dtype: None or the one of int8 and int4 that x holds; scale: [1] or [n], n the
    size of y's last axis; offset: scale's shape, None for 0; dst_dtype: float16, the default, or
    bfloat16; y: x's shape, the last axis of int4 eight times as long.
    """
    if src_dtype is not None:
        check(
            x.dtype == getattr(torch, storage(src_dtype)),
            f"[npu_anti_quant] expected x of {storage(src_dtype)} for src_dtype {src_dtype}, "
            f"got {x.dtype}",
        )
    if x.dtype == torch.int32:
        check(x.dim() >= 1, "[npu_anti_quant] expected x of rank >= 1 for int4, got a scalar")
        values = unpack(x)
    else:
        values = x
    columns = values.shape[-1] if values.dim() else 1
    check(
        scale.dim() == 1 and scale.shape[0] in (1, columns),
        f"[npu_anti_quant] expected scale [1] or [{columns}], got {list(scale.shape)}",
    )
    check(
        offset is None or offset.shape == scale.shape,
        f"[npu_anti_quant] expected offset of scale's shape {list(scale.shape)}, "
        f"got {list(offset.shape) if offset is not None else None}",
    )
    shift = 0.0 if offset is None else offset.float()
    y = (values.float() + shift) * scale.float()
    return y.to(getattr(torch, dst_dtype or "float16")).reshape(values.shape)


@op.function
def body(b, call, x, scale, offset):
    values = body_unpack(b, x) if call.dtype("x") == "int32" else x
    wide = b.Cast(values, to="float32")
    shifted = wide if offset is None else b.Add(wide, b.Cast(offset, to="float32"))
    y = b.Mul(shifted, b.Cast(scale, to="float32"))
    y = b.Reshape(y, b.Shape(values), allowzero=1)  # of a scalar
    return b.Cast(y, to="bfloat16" if call.attrs["dst_dtype"] == BFLOAT16 else "float16")


@op.samples
def samples(make):
    if make.dtype == "int8":
        yield Sample(
            make.tensor([[-128, 3], [4, 127]]),
            make.tensor([0.5, 2.0], "float32"),
            offset=make.tensor([1.0, -1.0], "float32"),
            id="catalogue",
            expect=[[[-63.5, 4.0], [2.5, 252.0]]],
        )
        x, columns = make.ints(3, 5, 33, low=-128, high=128, dtype="int8"), 33
    else:
        words = make.tensor([[-2023406815], [15]], "int32")
        yield Sample(
            words,
            make.tensor([1.0], "float32"),
            src_dtype=torch.quint4x2,
            id="low_nibble_first",
            expect=[[[1, 2, 3, 4, 5, 6, 7, -8], [-1, 0, 0, 0, 0, 0, 0, 0]]],
        )
        x, columns = make.ints(3, 5, 9, low=-(2**31), high=2**31, dtype="int32"), 72
    scale = make(columns, dtype="float32")
    yield Sample(x, scale)
    yield Sample(x, scale.bfloat16(), offset=make(columns, dtype="bfloat16"), id="bfloat16_scale")
    yield Sample(x, scale, offset=make(columns, dtype="float32"), dst_dtype=15, id="bfloat16")
    yield Sample(x, scale[:1], offset=scale[1:2], dst_dtype=torch.float16, id="one_scale")
    yield Sample(x[:0], scale, id="empty")
    yield Sample(x[:, :, :0], scale[:1], id="no_columns")
    yield Sample(x.repeat(30, 40, 1), scale, id="threads")
    yield Sample(x.transpose(0, 1), scale, id="not_contiguous")
    if make.dtype == "int8":
        yield Sample(make.tensor(5), make.tensor([0.5], "float32"), id="scalar", expect=[2.5])


op.tolerance("float16", rtol=0, atol=0, reason="float32 operations and one rounding, as specified")
op.tolerance("bfloat16", rtol=0, atol=0, reason="float32 operations and one rounding, as specified")

op.errors(
    lambda make: Sample(make(3, 4, dtype="int8"), make(3, dtype="float32")),
    match=r"\[npu_anti_quant\] expected scale \[1\] or \[4\], got \[3\]",
    id="scale_shape",
)
op.errors(
    lambda make: Sample(make(3, 4, dtype="int8"), make(4, dtype="int32")),
    match=r"\[npu_anti_quant\] expected scale of dtype float32, float16, bfloat16, got int32",
    id="scale_dtype",
)
op.errors(
    lambda make: Sample(make(3, 1, dtype="int32"), make(1, dtype="float32"), src_dtype=1),
    match=r"\[npu_anti_quant\] expected x of int8 for src_dtype int8, got .*int32",
    id="src_dtype",
)
op.errors(
    lambda make: Sample(
        make(3, 4, dtype="int8"), make(4, dtype="float32"), offset=make(1, dtype="float32")
    ),
    match=r"\[npu_anti_quant\] expected offset of scale's shape \[4\], got \[1\]",
    id="offset_shape",
)
op.errors(
    lambda make: Sample(make(3, 4, dtype="int8"), make(4, dtype="float32"), dst_dtype=torch.int8),
    match=r"\[npu_anti_quant\] Input dst_type must be valid, but got UNKNOWN_SCALAR: "
    r"expected dst_dtype to name float16 or bfloat16, got int8",
    id="dst_dtype",
)
op.errors(
    lambda make: Sample(make(3, 4, dtype="int8"), make(4, dtype="float32"), src_dtype=290),
    match=r"\[npu_anti_quant\] expected src_dtype to name int8 or int4, got hifloat8; "
    r"the host NPU has no float8",
    id="hifloat8",
)
