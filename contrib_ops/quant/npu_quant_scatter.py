"""Quantises updates and writes them into slices of a cache, with an in-place twin.

Source: torch_npu.npu_quant_scatter, torch_npu.npu_quant_scatter_.
"""

from onnxruntime_npu.opdef import FLOATS, INDICES, Sample, TypeCodes, check, npu_op, torch

from ..scatter._slices import body_write_slices, check_slices, write_slices
from ._integers import INT8, body_saturated, saturated

_ARGUMENTS = (
    "self, Tensor indices, Tensor updates, Tensor quant_scales, Tensor? quant_zero_points=None,"
    " int axis=-2, int quant_axis=-1, str reduce='update', int? dst_type=None,"
    " str? round_mode='rint'"
)

op = npu_op(
    f"npu_quant_scatter(Tensor {_ARGUMENTS}) -> Tensor",
    onnx="NPUQuantScatter",
    dtypes={
        "self": ["int8"],
        "indices": INDICES,
        "updates": FLOATS,
        "quant_scales": FLOATS,
        "quant_zero_points": [*FLOATS, "int32"],
        "y": ["int8"],
    },
    inplace=f"npu_quant_scatter_(Tensor(a!) {_ARGUMENTS}) -> Tensor(a!)",
    may_alias=[("self", "y")],
    type_codes={"dst_type": TypeCodes({"int8": INT8})},
    sample_dtypes=FLOATS,
)


@op.reference
def reference(
    self,
    indices,
    updates,
    quant_scales,
    quant_zero_points=None,
    axis=-2,
    quant_axis=-1,
    reduce="update",
    dst_type=None,
    round_mode="rint",
):
    """y = self with y[i, .., indices[i] : indices[i] + L, ..] = q[i] along axis.

    q = round(updates / quant_scales) + quant_zero_points, saturated, in float32 and half to even; a
    sum that is no integer is rounded once more, NaN becomes 0, and a scale of 0 divides as IEEE
    says. self: int8 [B, .., D] of rank 3 or more; updates: [K, .., D], L = its size of axis, else
    like self; axis: neither the first nor the last; quant_axis: the last; quant_scales: D values
    on its last axis; quant_zero_points: its shape, None for 0; indices: [K] with K <= B, a scalar
    for K = 1, or [K, 2] with the batch row in the first column, each in [0, size of axis - L].
    reduce: update; dst_type: int8 or None; round_mode: rint or None. Overlapping updates:
    unspecified.
    """
    name = "npu_quant_scatter"
    check(reduce == "update", f"[{name}] expected reduce 'update', got '{reduce}'")
    check(round_mode in (None, "rint"), f"[{name}] expected round_mode 'rint', got '{round_mode}'")
    rank = self.dim()
    check(rank >= 3, f"[{name}] expected self of rank >= 3, got {list(self.shape)}")
    check_slices(name, self, indices, updates, axis)
    check(axis not in (-1, rank - 1), f"[{name}] expected axis before the last one, got {axis}")
    check(
        quant_axis in (-1, rank - 1),
        f"[{name}] expected quant_axis -1 or {rank - 1}, the last one, got {quant_axis}",
    )
    columns, scales = self.shape[-1], quant_scales
    check(
        scales.dim() >= 1 and scales.shape[-1] == columns and scales.numel() == columns,
        f"[{name}] expected quant_scales of {columns} values on the last axis, "
        f"got {list(scales.shape)}",
    )
    points = quant_zero_points
    check(
        points is None or points.shape == scales.shape,
        f"[{name}] expected quant_zero_points of quant_scales' shape {list(scales.shape)}, "
        f"got {list(points.shape) if points is not None else None}",
    )
    offset = 0.0 if points is None else points.float().reshape(-1)
    quantized = (updates.float() / scales.float().reshape(-1)).round() + offset
    return write_slices(name, self, indices, saturated(quantized, "int8"), axis)


@op.function
def body(b, call, self, indices, updates, quant_scales, quant_zero_points):
    scales = b.Reshape(b.Cast(quant_scales, to="float32"), [-1])
    quantized = b.Round(b.Div(b.Cast(updates, to="float32"), scales))
    if quant_zero_points is not None:
        points = b.Reshape(b.Cast(quant_zero_points, to="float32"), [-1])
        quantized = b.Add(quantized, points)
    return body_write_slices(b, call, self, indices, body_saturated(b, quantized, "int8"))


@op.samples
def samples(make):
    def cache(*shape):
        return make.ints(*shape, low=-128, high=128, dtype="int8")

    def scales(*shape):
        return make.uniform(*shape, low=0.01, high=0.05, dtype="float32")

    yield Sample(
        make.ints(1, 1, 3, 4, low=0, high=1, dtype="int8"),
        make.tensor([1], "int32"),
        make.tensor([[[[2.0, -4.0, 6.0, 100.0]]]]),
        make.tensor([2.0, 2.0, 2.0, 2.0], "float32"),
        id="catalogue",
        expect=[[[[[0, 0, 0, 0], [1, -2, 3, 50], [0, 0, 0, 0]]]]],
    )
    starts = make.tensor([4, 0, 6], "int32")
    points = make.ints(32, low=-20, high=20, dtype="int32")
    yield Sample(cache(3, 2, 9, 32), starts, make(3, 2, 3, 32), scales(32), points)
    yield Sample(
        cache(3, 9, 2, 32),
        starts.to(torch.int64),
        make(3, 1, 2, 32),
        scales(1, 1, 32).bfloat16(),
        points.bfloat16().reshape(1, 1, 32),
        1,
        3,
        dst_type=torch.qint8,
        id="bfloat16_scales",
    )
    yield Sample(cache(5, 2, 9, 32), starts, make(3, 2, 1, 32), scales(32), id="fewer_than_rows")
    pairs = make.tensor([[4, 2], [0, 5], [4, 0]], "int32")
    yield Sample(cache(5, 2, 9, 32), pairs, make(3, 2, 2, 32), scales(32), id="batch_rows_given")
    yield Sample(
        cache(4, 9, 32),
        make.tensor(3, "int64"),
        make(1, 2, 32),
        scales(32),
        round_mode=None,
        id="scalar_index",
    )
    yield Sample(cache(2, 4, 900, 32), starts[:2], make(2, 4, 700, 32), scales(32), id="threads")
    yield Sample(cache(3, 9, 32), starts, make(3, 0, 32), scales(32), id="empty_updates")
    yield Sample(cache(3, 9, 32), make.ints(0), make(0, 2, 32), scales(32), id="no_updates")
    yield Sample(
        cache(9, 3, 32).transpose(0, 1), starts, make(3, 2, 32), scales(32), id="not_contiguous"
    )
    yield Sample(
        cache(1, 2, 3),
        make.tensor([0], "int32"),
        make.tensor([[[1.0, 0.0, float("nan")]]]),
        make.tensor([0.0, 0.0, 1.0], "float32"),
        make.tensor([5, 5, 5], "int32"),
        id="scale_of_0",
    )


def _call(make, starts=(0, 0), scales=(32,), dtype="float32", points=None, **others):
    return Sample(
        make(2, 2, 9, 32, dtype="int8"),
        make.tensor(starts, "int32"),
        make(2, 2, 2, 32),
        make(*scales, dtype=dtype),
        points and make(*points, dtype="int32"),
        **others,
    )


op.errors(
    lambda make: Sample(
        make(2, 9, 32, dtype="int8"), make.ints(2), make(2, 9, 2), make(32, dtype="float32"), axis=2
    ),
    match=r"\[npu_quant_scatter\] expected axis before the last one, got 2",
    id="last_axis",
)


def _refuse(id, match, needs_values=False, **arguments):
    op.errors(
        lambda make: _call(make, **arguments),
        match=r"\[npu_quant_scatter\] " + match,
        needs_values=needs_values,
        id=id,
    )


_refuse("index_too_large", r"expected indices in \[0, 7\], .* got 8", True, starts=(0, 8))
_refuse("negative_index", r"expected indices in \[0, 7\], .* got -1", True, starts=(-1, 0))
_refuse("batch_row", r"expected batch rows in \[0, 2\), got 2", True, starts=((2, 0), (0, 0)))
_refuse("scales_shape", r"expected quant_scales of 32 values .* got \[16\]", scales=(16,))
_refuse("scales_axis", r"expected quant_scales of 32 values .* got \[32, 1\]", scales=(32, 1))
_refuse("scales_dtype", r"expected quant_scales of dtype float32, .* got int32", dtype="int32")
_refuse(
    "zero_points_shape",
    r"expected quant_zero_points of quant_scales' shape \[32\], got \[1\]",
    points=(1,),
)
_refuse("first_axis", r"expected axis in \[-3, -1\] or \[1, 3\], got 0", axis=0)
_refuse("quant_axis", r"expected quant_axis -1 or 3, the last one, got -2", quant_axis=-2)
_refuse("reduce", r"expected reduce 'update', got 'add'", reduce="add")
_refuse("round_mode", r"expected round_mode 'rint', got 'floor'", round_mode="floor")
_refuse(
    "hifloat8",
    r"expected dst_type to name int8, got hifloat8; the host NPU has no float8",
    dst_type=290,
)
op.errors(
    lambda make: Sample(
        make(2, 32, dtype="int8"), make.ints(2), make(2, 32), make(32, dtype="float32")
    ),
    match=r"\[npu_quant_scatter\] expected self of rank >= 3, got \[2, 32\]",
    id="rank",
)
