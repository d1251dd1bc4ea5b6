"""What both dynamic quantisations share: the semantics, the body and the calls."""

from onnxruntime_npu.opdef import FLOATS, INDICES, Sample, TypeCodes, TypedBy, check, torch

from ._groups import body_rows_of_groups, check_groups, rows_of_groups
from ._integers import (
    INT8,
    INT32,
    body_saturated,
    check_packable,
    saturated,
    storage,
    type_named,
)

# torch_npu writes 2 for int8 and 3, the type of the storage, for int4.
_TYPES = {"int8": INT8, "int4": INT32}
TYPE_CODES = {"dst_type": TypeCodes(_TYPES)}
TYPED_BY = {"y": TypedBy("dst_type", {name: storage(name) for name in _TYPES}, "int8")}
ARGUMENTS = (
    "Tensor input, *, Tensor? smooth_scales=None, Tensor? group_index=None, int? dst_type=None,"
    " str quant_mode='pertoken', float dst_type_max=0.0"
)
DTYPES = {
    "input": FLOATS,
    "smooth_scales": FLOATS,
    "group_index": INDICES,
    "y": ["int8", "int32"],
    "scale": ["float32"],
}
_MODES = ("pertoken", "perchannel", "pertensor")
_TOPS = {"int8": 127.0, "int4": 7.0}


def _check(op, input, quant_mode, dst_type_max):
    check(
        quant_mode in _MODES,
        f"[{op}] expected quant_mode pertoken, perchannel or pertensor, got '{quant_mode}'",
    )
    check(
        dst_type_max == 0,
        f"[{op}] expected dst_type_max 0, the range of dst_type, got {dst_type_max}",
    )
    shape = list(input.shape)
    check(len(shape) >= 2, f"[{op}] expected input of rank >= 2, got {shape}")
    if quant_mode == "pertensor":
        reduced = input.numel()
    else:
        reduced = shape[-1 if quant_mode == "pertoken" else -2]
    check(reduced > 0, f"[{op}] expected input with values to take a scale from, got {shape}")


def _check_smooth_scales(op, input, smooth_scales, group_index, quant_mode):
    rows, columns = input.shape[-2:]
    given = None if smooth_scales is None else list(smooth_scales.shape)
    if group_index is not None:
        check(
            quant_mode != "perchannel",
            f"[{op}] expected no group_index with quant_mode perchannel",
        )
        check(given is not None, f"[{op}] expected smooth_scales with group_index")
        check(
            len(given) == 2 and given[0] > 0 and given[1] == columns,
            f"[{op}] expected smooth_scales [E, {columns}] with group_index, got {given}",
        )
        check(
            group_index.dim() == 1 and group_index.shape[0] == given[0],
            f"[{op}] expected group_index [{given[0]}], got {list(group_index.shape)}",
        )
    elif given is not None and quant_mode == "perchannel":
        check(
            given in ([rows], [rows, 1]),
            f"[{op}] expected smooth_scales [{rows}] or [{rows}, 1] with quant_mode perchannel, "
            f"got {given}",
        )
    elif given is not None:
        check(given == [columns], f"[{op}] expected smooth_scales [{columns}], got {given}")


def smoothed(op, input, smooth_scales, group_index, dst_type, quant_mode, dst_type_max):
    """Return the float32 values that are quantised, and the axis that has one scale."""
    _check(op, input, quant_mode, dst_type_max)
    if dst_type == "int4":
        check_packable(op, "input", input.shape)
    _check_smooth_scales(op, input, smooth_scales, group_index, quant_mode)
    values = input.float()
    if group_index is not None:
        rows = values.reshape(-1, values.shape[-1])
        check_groups(op, group_index, rows.shape[0])
        scales = rows_of_groups(smooth_scales.float(), group_index, rows.shape[0])
        values = (rows * scales).reshape(values.shape)
    elif smooth_scales is not None:
        scales = smooth_scales.float()
        values = values * (scales.reshape(-1, 1) if quant_mode == "perchannel" else scales)
    return values, {"pertoken": -1, "perchannel": -2, "pertensor": None}[quant_mode]


def top_of(dst_type):
    """Return the largest integer of a type, int8 by default."""
    return _TOPS[dst_type or "int8"]


def extreme(values, axis, largest):
    """Return the extremes along an axis, kept as one of size 1, or of everything, as [1]."""
    reduce = torch.amax if largest else torch.amin
    return reduce(values.reshape(-1) if axis is None else values, axis or 0, keepdim=True)


def results(values, axis, dst_type, scale, offset):
    """Return y, scale and offset."""
    y = saturated(values / scale + offset, dst_type or "int8")
    parts = (scale, offset) if axis is None else (scale.squeeze(axis), offset.squeeze(axis))
    return (y, *parts)


class DynamicBody:
    """The nodes that both bodies have."""

    def __init__(self, b, call, input, smooth_scales, group_index):
        self._b, self._type = b, type_named(call.attrs["dst_type"], _TYPES, "int8")
        mode = call.attrs["quant_mode"]
        self._axis = {"pertoken": -1, "perchannel": -2, "pertensor": None}[mode]
        self.top = _TOPS[self._type]
        self.values = b.Cast(input, to="float32")
        self._shape = b.Shape(input)
        if smooth_scales is None:
            return
        scales = b.Cast(smooth_scales, to="float32")
        if group_index is not None:
            rows = b.ReduceProd(b.Slice(self._shape, [0], [-1]), [0], keepdims=0)
            scales = body_rows_of_groups(b, scales, group_index, rows)
            scales = b.Reshape(scales, self._shape, allowzero=1)
        elif mode == "perchannel" and call.rank("smooth_scales") == 1:
            scales = b.Unsqueeze(scales, [1])
        self.values = b.Mul(self.values, scales)

    def extreme(self, values, largest):
        """Build extreme."""
        reduce = self._b.ReduceMax if largest else self._b.ReduceMin
        if self._axis is None:
            return reduce(self._b.Reshape(values, [-1]), [0], keepdims=1)
        return reduce(values, [self._axis], keepdims=1)

    def results(self, scale, offset):
        """Build results; without offset, which is None, only y and scale."""
        b = self._b
        quotient = b.Div(self.values, scale)
        sums = quotient if offset is None else b.Add(quotient, offset)
        parts = [scale] if offset is None else [scale, offset]
        if self._axis is not None:
            # Not Squeeze: the CPU provider's reductions keep the shape of an empty tensor.
            cut = 1 if self._axis == -1 else 2
            kept = b.Slice(self._shape, [0], [-cut])
            if cut == 2:
                kept = b.Concat(kept, b.Slice(self._shape, [-1], [2**62]), axis=0)
            parts = [b.Reshape(part, kept, allowzero=1) for part in parts]
        return (body_saturated(b, sums, self._type), *parts)


def samples(make, catalogue, smoothed_catalogue, constant):
    """Yield the calls; the arguments are the results of those with known ones."""
    small = make.tensor([[1.0, -2.0, 4.0], [0.5, 0.25, -1.0]])
    yield Sample(small, id="catalogue", expect=catalogue)
    smooth = make.tensor([1.0, 2.0, 0.5])
    yield Sample(
        small, smooth_scales=smooth, id="catalogue_smooth_scales", expect=smoothed_catalogue
    )
    yield Sample(make.tensor([[0.0] * 4, [2.0] * 4, [-2.0] * 4]), id="constant", expect=constant)
    x = make(3, 5, 48, scale=4.0)
    yield Sample(x)
    yield Sample(x, smooth_scales=make(48), dst_type=torch.quint4x2, id="int4")
    groups = make.tensor([0, 4, 4, 15], "int32")
    yield Sample(x, smooth_scales=make(4, 48), group_index=groups, dst_type=1, id="groups")
    yield Sample(
        x,
        smooth_scales=make(4, 48),
        group_index=groups.to(torch.int64),
        dst_type=285,
        quant_mode="pertensor",
        id="groups_of_a_tensor",
    )
    yield Sample(x, quant_mode="pertensor", id="tensor")
    yield Sample(x, smooth_scales=make(48), quant_mode="pertensor", id="smooth_tensor")
    yield Sample(x, quant_mode="perchannel", id="channels")
    yield Sample(x, smooth_scales=make(5), quant_mode="perchannel", id="smooth_channels")
    yield Sample(
        x,
        smooth_scales=make(5, 1, dtype="float32"),
        dst_type=torch.quint4x2,
        quant_mode="perchannel",
        id="int4_channels",
    )
    yield Sample(make(40, 640), quant_mode="perchannel", id="blocks_of_channels")
    yield Sample(make(700, 333), id="threads")
    yield Sample(make(3, 9000), quant_mode="pertensor", id="pieces")
    yield Sample(make(0, 48), id="no_rows")
    yield Sample(make(3, 5, 0), quant_mode="perchannel", id="no_columns")
    yield Sample(x.transpose(0, 2), id="not_contiguous")


def refusals(op):
    """Add the refused calls to a definition."""
    name = rf"\[{op.name}\] "

    def refuse(id, match, make_sample, **options):
        op.errors(make_sample, match=name + match, id=id, **options)

    def ends(*values):
        return lambda make: make.tensor(values, "int32")

    refuse("rank", r"expected input of rank >= 2, got \[16\]", lambda make: Sample(make(16)))
    refuse(
        "nothing_to_reduce",
        r"expected input with values to take a scale from, got \[3, 0\]",
        lambda make: Sample(make(3, 0)),
    )
    refuse(
        "smooth_scales_shape",
        r"expected smooth_scales \[16\], got \[8\]",
        lambda make: Sample(make(3, 16), smooth_scales=make(8)),
    )
    refuse(
        "smooth_scales_dtype",
        r"expected smooth_scales of dtype float32, float16, bfloat16, got int8",
        lambda make: Sample(make(3, 16), smooth_scales=make(16, dtype="int8")),
    )
    refuse(
        "smooth_scales_of_channels",
        r"expected smooth_scales \[3\] or \[3, 1\] with quant_mode perchannel, got \[16\]",
        lambda make: Sample(make(3, 16), smooth_scales=make(16), quant_mode="perchannel"),
    )
    refuse(
        "groups_without_scales",
        r"expected smooth_scales with group_index",
        lambda make: Sample(make(3, 16), group_index=ends(3)(make)),
    )
    refuse(
        "groups_of_channels",
        r"expected no group_index with quant_mode perchannel",
        lambda make: Sample(make(3, 16), group_index=ends(3)(make), quant_mode="perchannel"),
    )
    for id, values, match in (
        ("descends", (2, 1), r"to ascend up to the 3 rows, entry 1 in \[2, 3\], got 1"),
        ("beyond_the_rows", (1, 4), r"to ascend up to the 3 rows, entry 1 in \[1, 3\], got 4"),
        ("negative", (-1, 3), r"to ascend up to the 3 rows, entry 0 in \[0, 3\], got -1"),
        ("ends_early", (1, 2), r"to end with the 3 rows, got 2"),
    ):
        refuse(
            f"group_index_{id}",
            rf"expected group_index {match}",
            lambda make, values=values: Sample(
                make(3, 16), smooth_scales=make(2, 16), group_index=ends(*values)(make)
            ),
            needs_values=True,
        )
    refuse(
        "group_index_shape",
        r"expected group_index \[2\], got \[1\]",
        lambda make: Sample(make(3, 16), smooth_scales=make(2, 16), group_index=ends(3)(make)),
    )
    refuse(
        "int4_width",
        r"expected input whose last axis is a multiple of 8 for int4, got \[3, 12\]",
        lambda make: Sample(make(3, 12), dst_type=torch.quint4x2),
    )
    refuse(
        "mode",
        r"expected quant_mode pertoken, perchannel or pertensor, got 'perblock'",
        lambda make: Sample(make(3, 16), quant_mode="perblock"),
    )
    refuse(
        "dst_type_max",
        r"expected dst_type_max 0, the range of dst_type, got 15",
        lambda make: Sample(make(3, 16), dst_type_max=15.0),
    )
    for number, described in ((24, "float8_e4m3fn"), (23, "float8_e5m2"), (290, "hifloat8")):
        refuse(
            described,
            rf"expected dst_type to name int8 or int4, got {described}; "
            r"the host NPU has no float8",
            lambda make, number=number: Sample(make(3, 16), dst_type=number),
        )
