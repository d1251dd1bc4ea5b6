"""Quantisation where each group of rows has a row of scales. Source: torch_npu.npu_group_quant."""

from onnxruntime_npu.opdef import FLOATS, INDICES, Sample, TypeCodes, TypedBy, check, npu_op, torch

from ._groups import body_rows_of_groups, check_groups, rows_of_groups
from ._integers import INT4, INT8, body_saturated, check_packable, saturated, storage, type_named

_TYPES = {"int8": INT8, "int4": INT4}

op = npu_op(
    "npu_group_quant(Tensor x, Tensor scale, Tensor group_index, *, Tensor? offset=None,"
    " ScalarType? dst_dtype=None) -> Tensor",
    onnx="NPUGroupQuant",
    dtypes={
        "x": FLOATS,
        "scale": FLOATS,
        "group_index": INDICES,
        "offset": FLOATS,
        "y": ["int8", "int32"],
    },
    type_codes={"dst_dtype": TypeCodes(_TYPES, attribute="dst_type")},
    typed_by={"y": TypedBy("dst_dtype", {name: storage(name) for name in _TYPES}, "int8")},
)


@op.reference
def reference(x, scale, group_index, offset=None, dst_dtype=None):
    """y = round(x * scale[e] + offset) in the rows from group_index[e - 1] to group_index[e].

    x: [S, H]; scale: [E, H], E > 0; group_index: [E], ascending (groups may be empty) to S; offset:
    [1] or a scalar, None for 0; dst_dtype: int8, the default, or int4; y: x's shape in it, int4 as
    int32 [S, H / 8] with H a multiple of 8, the first value in the lowest bits.

    float32 arithmetic, half to even, saturated; NaN becomes 0. torch.onnx.export knows no
    quantised type of torch, so that int4 cannot be exported.
    """
    check(x.dim() == 2, f"[npu_group_quant] expected x [S, H], got {list(x.shape)}")
    rows, columns = x.shape
    check(
        scale.dim() == 2 and scale.shape[0] > 0 and scale.shape[1] == columns,
        f"[npu_group_quant] expected scale [E, {columns}] with E > 0, got {list(scale.shape)}",
    )
    check(
        group_index.dim() == 1 and group_index.shape[0] == scale.shape[0],
        f"[npu_group_quant] expected group_index [{scale.shape[0]}], got {list(group_index.shape)}",
    )
    check(
        offset is None or (offset.dim() <= 1 and offset.numel() == 1),
        f"[npu_group_quant] expected offset of one value, "
        f"got {list(offset.shape) if offset is not None else None}",
    )
    if dst_dtype == "int4":
        check_packable("npu_group_quant", "x", x.shape)
    check_groups("npu_group_quant", group_index, rows)
    shift = 0.0 if offset is None else offset.float().reshape(())
    scales = rows_of_groups(scale.float(), group_index, rows)
    return saturated(x.float() * scales + shift, dst_dtype or "int8")


@op.function
def body(b, call, x, scale, group_index, offset):
    rows = b.Squeeze(b.Slice(b.Shape(x), [0], [1]), [0])
    scales = body_rows_of_groups(b, b.Cast(scale, to="float32"), group_index, rows)
    y = b.Mul(b.Cast(x, to="float32"), scales)
    y = y if offset is None else b.Add(y, b.Cast(offset, to="float32"))
    return body_saturated(b, y, type_named(call.attrs["dst_type"], _TYPES, "int8"))


@op.samples
def samples(make):
    yield Sample(
        make.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]),
        make.tensor([[1.0, 2.0], [10.0, 0.5]]),
        make.tensor([1, 3], "int64"),
        offset=make.tensor([1.0]),
        id="catalogue",
        expect=[[[2, 5], [31, 3], [51, 4]]],
    )
    ends = make.tensor([0, 2, 2, 7], "int32")
    x, scale = make(7, 24, scale=3.0), make(4, 24, scale=10.0)
    yield Sample(x, scale, ends, id="empty_groups")
    yield Sample(x, scale.float(), ends, offset=make.tensor(-0.5), id="scalar_offset")
    yield Sample(x, scale, ends, dst_dtype=torch.int8, id="int8")
    if (
        make.dtype != "float32"
    ):  # torch.onnx.export, which all of these go through, refuses the type
        two = make.tensor([2.0])
        yield Sample(x, scale, ends, offset=two, dst_dtype=torch.quint4x2, id="int4")
        yield Sample(x, scale, ends, dst_dtype=torch.qint8, id="qint8")
    yield Sample(make(600, 333), make(2, 333), make.tensor([31, 600], "int64"), id="threads")
    yield Sample(make(0, 8), make(1, 8), make.tensor([0], "int64"), id="no_rows")
    yield Sample(make(3, 0), make(1, 0), make.tensor([3], "int64"), id="no_columns")
    yield Sample(make(24, 7).t(), make(24, 4).t(), ends, id="not_contiguous")


op.errors(
    lambda make: Sample(make(3, 4), make(2, 5), make.tensor([1, 3], "int64")),
    match=r"\[npu_group_quant\] expected scale \[E, 4\] with E > 0, got \[2, 5\]",
    id="scale_shape",
)
op.errors(
    lambda make: Sample(make(3, 4), make(2, 4, dtype="int32"), make.tensor([1, 3], "int64")),
    match=r"\[npu_group_quant\] expected scale of dtype float32, float16, bfloat16, got int32",
    id="scale_dtype",
)
op.errors(
    lambda make: Sample(make(3, 4), make(2, 4), make.tensor([3], "int64")),
    match=r"\[npu_group_quant\] expected group_index \[2\], got \[1\]",
    id="group_index_shape",
)
op.errors(
    lambda make: Sample(make(3, 4), make(2, 4), make.tensor([2, 1], "int32")),
    match=r"\[npu_group_quant\] expected group_index to ascend up to the 3 rows, "
    r"entry 1 in \[2, 3\], got 1",
    needs_values=True,
    id="group_index_descends",
)
op.errors(
    lambda make: Sample(make(3, 4), make(2, 4), make.tensor([1, 2**62], "int64")),
    match=r"\[npu_group_quant\] expected group_index to ascend up to the 3 rows, "
    r"entry 1 in \[1, 3\], got 4611686018427387904",
    needs_values=True,
    id="group_index_beyond_the_rows",
)
op.errors(
    lambda make: Sample(make(3, 4), make(2, 4), make.tensor([-1, 3], "int64")),
    match=r"\[npu_group_quant\] expected group_index to ascend up to the 3 rows, "
    r"entry 0 in \[0, 3\], got -1",
    needs_values=True,
    id="group_index_negative",
)
op.errors(
    lambda make: Sample(make(3, 4), make(2, 4), make.tensor([1, 2], "int64")),
    match=r"\[npu_group_quant\] expected group_index to end with the 3 rows, got 2",
    needs_values=True,
    id="group_index_ends_early",
)
op.errors(
    lambda make: Sample(
        make(3, 4), make(1, 4), make.tensor([3], "int64"), offset=make(4, dtype="float32")
    ),
    match=r"\[npu_group_quant\] expected offset of one value, got \[4\]",
    id="offset_shape",
)
op.errors(
    lambda make: Sample(
        make(3, 12), make(1, 12), make.tensor([3], "int64"), dst_dtype=torch.quint4x2
    ),
    match=r"\[npu_group_quant\] expected x whose last axis is a multiple of 8 for int4, "
    r"got \[3, 12\]",
    id="int4_width",
)
op.errors(
    lambda make: Sample(
        make(3, 4), make(1, 4), make.tensor([3], "int64"), dst_dtype=torch.float8_e5m2
    ),
    match=r"\[npu_group_quant\] expected dst_dtype to name int8 or int4, got float8_e5m2; "
    r"the host NPU has no float8",
    id="float8",
)
