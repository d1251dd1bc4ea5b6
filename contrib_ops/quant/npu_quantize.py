"""Affine quantisation with given scales and zero points. Source: torch_npu.npu_quantize."""

from onnxruntime_npu.opdef import (
    FLOATS,
    NotPortable,
    Sample,
    TypeCodes,
    TypedBy,
    check,
    npu_op,
    torch,
)

from ._integers import (
    INT4,
    INT8,
    INT32,
    UINT8,
    body_saturated,
    check_packable,
    saturated,
    storage,
    type_named,
)

_TYPES = {"int8": INT8, "uint8": UINT8, "int32": INT32, "int4": INT4}

op = npu_op(
    "npu_quantize(Tensor self, Tensor scales, Tensor? zero_points, int dtype, int axis=1,"
    " bool div_mode=True) -> Tensor",
    onnx="NPUQuantize",
    dtypes={
        "self": FLOATS,
        "scales": FLOATS,
        "zero_points": [*FLOATS, "int8", "uint8", "int32"],
        "y": ["int8", "uint8", "int32"],
    },
    type_codes={"dtype": TypeCodes(_TYPES)},
    typed_by={"y": TypedBy("dtype", {name: storage(name) for name in _TYPES})},
    not_portable="scales for each of an axis of a tensor of unknown rank: no reshape is known",
)


def _is_along(scales, shape, axis):
    rank = len(shape)
    if not -rank <= axis < rank:
        return False
    from_end = -axis if axis < 0 else rank - axis
    size = shape[rank - from_end]
    if scales.dim() == 1:
        return scales.shape[0] == size
    if not from_end <= scales.dim() <= rank:
        return False
    return all(
        s == (size if scales.dim() - i == from_end else 1) for i, s in enumerate(scales.shape)
    )


@op.reference
def reference(self, scales, zero_points, dtype, axis=1, div_mode=True):
    """y = round(self / scales) + zero_points, or round(self * scales + zero_points), saturated.

    self: any shape; dtype: int8, uint8, int32 or int4, torch's quantised types and its numbers of
    them included; y: self's shape in dtype, int4 as int32 with an eighth of the last axis, which is
    a multiple of 8, the first value in the lowest bits. scales: of one value, or for each of an
    axis [C], or as many axes as self with 1 elsewhere; zero_points: scales' shape, or None for 0.
    With div_mode the axis is `axis`, and a sum that is no integer is rounded once more; without it,
    -2 is the last but one axis and every other axis from -1 on the last.

    float32 arithmetic, half to even. NaN becomes 0. A scale of 0 with div_mode divides as IEEE
    says: 0 / 0 becomes 0, other values saturate.
    """
    check(
        div_mode or axis >= -2,
        f"[npu_quantize] expected axis >= -2 with div_mode False, got {axis}",
    )
    if not div_mode and axis != -2:
        axis = -1
    per_tensor = scales.numel() == 1
    check(
        per_tensor or _is_along(scales, self.shape, axis),
        f"[npu_quantize] expected scales of one value, or one for each of axis {axis} of self "
        f"{list(self.shape)}, got {list(scales.shape)}",
    )
    check(
        zero_points is None or zero_points.shape == scales.shape,
        f"[npu_quantize] expected zero_points of scales' shape {list(scales.shape)}, "
        f"got {list(zero_points.shape) if zero_points is not None else None}",
    )
    if dtype == "int4":
        check_packable("npu_quantize", "self", self.shape)

    def beside(values):
        if per_tensor:
            return values.float().reshape(())
        if values.dim() > 1:
            return values.float()
        from_end = -axis if axis < 0 else self.dim() - axis
        return values.float().reshape([-1] + [1] * (from_end - 1))

    scale = beside(scales)
    offset = 0.0 if zero_points is None else beside(zero_points)
    if div_mode:
        return saturated((self.float() / scale).round() + offset, dtype)
    return saturated(self.float() * scale + offset, dtype)


@op.function
def body(b, call, self, scales, zero_points):
    axis, divides = call.attrs["axis"], call.attrs["div_mode"]
    if not divides and axis != -2:
        axis = -1

    def beside(name, values):
        values = b.Cast(values, to="float32")
        if call.rank(name) is None:
            raise NotPortable
        if call.rank(name) != 1 or axis == -1:
            return values
        if axis < 0:
            return b.Unsqueeze(values, list(range(1, -axis)))
        if call.rank("self") is None:
            raise NotPortable
        following = call.rank("self") - axis - 1
        return b.Unsqueeze(values, list(range(1, 1 + following))) if following > 0 else values

    wide, scale = b.Cast(self, to="float32"), beside("scales", scales)
    offset = None if zero_points is None else beside("zero_points", zero_points)
    result = b.Round(b.Div(wide, scale)) if divides else b.Mul(wide, scale)
    result = result if offset is None else b.Add(result, offset)
    # Scales of one value may have more axes than self.
    result = b.Reshape(result, b.Shape(self), allowzero=1)
    return body_saturated(b, result, type_named(call.attrs["dtype"], _TYPES, None))


@op.samples
def samples(make):
    values = make.tensor([[0.5, 1.5, -2.5, 300.0]])
    one, zero = make.tensor([1.0], "float32"), make.tensor([0], "int32")
    yield Sample(
        values, one, zero, torch.qint8, -1, id="catalogue_divided", expect=[[[0, 2, -2, 127]]]
    )
    two = make.tensor([2.0])
    yield Sample(
        values,
        two,
        make.tensor([1.0]),
        torch.qint8,
        -1,
        False,
        id="catalogue_multiplied",
        expect=[[[2, 4, -4, 127]]],
    )
    x = make(5, 16, 8, scale=20.0)
    scales = make.uniform(16, low=0.05, high=0.4, dtype="float32")
    points = make.ints(16, low=-20, high=20, dtype="int32")
    yield Sample(x, scales, points, torch.qint8, 1)
    yield Sample(x, scales, points.to(torch.int8), torch.qint8, -2, id="int8_points")
    yield Sample(x, scales[:8], points[:8].abs().to(torch.uint8), torch.quint8, 2, id="quint8")
    yield Sample(x, scales[:5], points[:5], torch.qint32, 0, id="qint32")
    yield Sample(x, scales.bfloat16(), points.bfloat16(), 1, 1, id="bfloat16_scales")
    yield Sample(x, scales[:, None], points[:, None], torch.uint8, 1, id="trailing_axes")
    yield Sample(x, scales[None, :, None], None, torch.qint8, 1, id="all_axes")
    yield Sample(x, scales, None, torch.qint8, -2, False, id="rows_multiplied")
    yield Sample(x, scales[:8], None, torch.qint8, 7, False, id="columns_multiplied")
    yield Sample(x, scales[:8], points[:8], torch.quint4x2, -1, False, id="int4")
    yield Sample(x, scales[:1], None, 285, id="int4_divided")
    half = make.tensor([0.25], "float32")
    yield Sample(x, half, make.tensor([0.5], "bfloat16"), torch.qint8, id="rounded_twice")
    yield Sample(
        make.tensor([3.0, 0.0, -1.0]),
        make.tensor([0.0], "float32"),
        None,
        torch.qint8,
        id="scale_of_0",
        expect=[[127, 0, -128]],
    )
    infinite = make.tensor([float("inf"), float("-inf"), float("nan"), 6e4])
    yield Sample(
        infinite,
        half,
        None,
        torch.qint32,
        0,
        id="infinities",
        expect=[[2**31 - 1, -(2**31), 0, int(4 * make.tensor(6e4).item())]],
    )
    yield Sample(infinite, half, zero, torch.quint8, id="nan", expect=[[255, 0, 0, 255]])
    yield Sample(make(), half, None, torch.qint8, id="scalar")
    yield Sample(make(0, 16), scales, None, torch.qint8, id="empty")
    yield Sample(make(3, 9000, scale=50.0), one, zero, torch.qint8, id="threads")
    yield Sample(x.transpose(0, 2), scales, points, torch.qint8, 1, id="not_contiguous")


op.errors(
    lambda make: Sample(make(4, 8), make(4, dtype="float32"), None, torch.qint8, 1),
    match=r"\[npu_quantize\] expected scales of one value, or one for each of axis 1 of self "
    r"\[4, 8\], got \[4\]",
    id="scales_shape",
)
op.errors(
    lambda make: Sample(make(4, 8), make.ints(8, dtype="int32"), None, torch.qint8),
    match=r"\[npu_quantize\] expected scales of dtype float32, float16, bfloat16, got int32",
    id="scales_dtype",
)
op.errors(
    lambda make: Sample(make(4, 8), make(8, dtype="float32"), make(4), torch.qint8),
    match=r"\[npu_quantize\] expected zero_points of scales' shape \[8\], got \[4\]",
    id="zero_points_shape",
)
op.errors(
    lambda make: Sample(make(4, 12), make(1, dtype="float32"), None, torch.quint4x2),
    match=r"\[npu_quantize\] expected self whose last axis is a multiple of 8 for int4, "
    r"got \[4, 12\]",
    id="int4_width",
)
op.errors(
    lambda make: Sample(make(4, 8), make(8, dtype="float32"), None, torch.qint8, -3, False),
    match=r"\[npu_quantize\] expected axis >= -2 with div_mode False, got -3",
    id="axis_multiplied",
)
op.errors(
    lambda make: Sample(make(4, 8), make(8, dtype="float32"), None, torch.qint8, 2),
    match=r"\[npu_quantize\] expected scales of one value, or one for each of axis 2",
    id="axis",
)
op.errors(
    lambda make: Sample(make(4, 8), make(8, dtype="float32"), None, torch.int64),
    match=r"\[npu_quantize\] expected dtype to name int8, uint8, int32 or int4, got int64",
    id="dtype",
)
for _float8 in ("float8_e4m3fn", "float8_e5m2"):
    op.errors(
        lambda make, name=_float8: Sample(make(4, 8), make(1), None, getattr(torch, name)),
        match=rf"\[npu_quantize\] expected dtype to name .*, got {_float8}; "
        r"the host NPU has no float8",
        id=_float8,
    )
op.errors(
    lambda make: Sample(make(4, 8), make(1), None, 290),
    match=r"\[npu_quantize\] expected dtype to name .*, got hifloat8; the host NPU has no float8",
    id="hifloat8",
)
