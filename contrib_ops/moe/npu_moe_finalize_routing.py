"""Adds the rows of each token up, weighted, with biases and skip connections.

Source: torch_npu.npu_moe_finalize_routing.
"""

from onnxruntime_npu.opdef import FLOATS, Sample, TypeAlias, check, check_indices, npu_op, torch

from ._rows import body_numbers, body_size

op = npu_op(
    "npu_moe_finalize_routing(Tensor expanded_permuted_rows, Tensor? skip1, Tensor? skip2,"
    " Tensor? bias, Tensor? scales, Tensor expanded_src_to_dst_row,"
    " Tensor? export_for_source_row, int? drop_pad_mode=0, int? k=1) -> Tensor",
    onnx="NPUMoeFinalizeRouting",
    aliases=[
        TypeAlias(
            "NPUMoeFinalizeRoutingV2",
            order=(
                "expanded_permuted_rows",
                "expanded_src_to_dst_row",
                "skip1",
                "skip2",
                "bias",
                "scales",
                "export_for_source_row",
            ),
        )
    ],
    dtypes={
        "expanded_permuted_rows": FLOATS,
        "skip1": FLOATS,
        "skip2": FLOATS,
        "bias": FLOATS,
        "scales": FLOATS,
        "expanded_src_to_dst_row": ["int32"],
        "export_for_source_row": ["int32"],
        "y": FLOATS,
    },
)


def _check(condition, message):
    check(condition, f"[npu_moe_finalize_routing] expected {message}")


def _shape(tensor):
    return None if tensor is None else list(tensor.shape)


@op.reference
def reference(
    expanded_permuted_rows,
    skip1,
    skip2,
    bias,
    scales,
    expanded_src_to_dst_row,
    export_for_source_row,
    drop_pad_mode=0,
    k=1,
):
    """y[t] = skip1[t] + skip2[t] + the sum over j of scales[t, j] * (row + bias[expert]).

    expanded_permuted_rows: [R, H] or [E, C, H] with R = E * C; expanded_src_to_dst_row: [T * K]
    int32, which row belongs to slot j of token t: entry j * T + t in drop_pad_mode 0 and 1, entry
    t * K + j in 2 and 3; -1 in any mode is a row of zeros, to which the bias is still added; skip1,
    skip2: [T, H], skip2 only beside skip1; scales: [T, K], ones of K = k without; bias: [E, H],
    with export_for_source_row [T, K] int32, the expert of each slot, which alone is ignored; y:
    [T, H] of expanded_permuted_rows' dtype, computed in float32 and rounded once. The floats may be
    of different dtypes.
    """
    rows, index, experts = expanded_permuted_rows, expanded_src_to_dst_row, export_for_source_row
    mode = 0 if drop_pad_mode is None else drop_pad_mode
    _check(0 <= mode <= 3, f"drop_pad_mode in [0, 3], got {mode}")
    _check(
        rows.dim() in (2, 3),
        f"expanded_permuted_rows [R, H] or [E, C, H], got {_shape(rows)}",
    )
    _check(index.dim() == 1, f"expanded_src_to_dst_row [T * K], got {_shape(index)}")
    total, width = index.shape[0], rows.shape[-1]
    if scales is None:
        slots = 1 if k is None else k
        _check(slots >= 1, f"k >= 1, got {slots}")
        _check(
            total % slots == 0,
            f"expanded_src_to_dst_row [T * {slots}] for k {slots}, got {_shape(index)}",
        )
        tokens = total // slots
    else:
        _check(scales.dim() == 2, f"scales [T, K], got {_shape(scales)}")
        tokens, slots = scales.shape
        _check(
            tokens * slots == total,
            f"expanded_src_to_dst_row [T * K] for scales {_shape(scales)}, got {_shape(index)}",
        )
    _check(skip1 is not None or skip2 is None, "skip1 with skip2")
    for name, skip in (("skip1", skip1), ("skip2", skip2)):
        _check(
            skip is None or _shape(skip) == [tokens, width],
            f"{name} [{tokens}, {width}], got {_shape(skip)}",
        )
    if bias is not None:
        _check(bias.dim() == 2 and bias.shape[1] == width, f"bias [E, {width}], got {_shape(bias)}")
        _check(experts is not None, "export_for_source_row with bias")
        _check(
            _shape(experts) == [tokens, slots],
            f"export_for_source_row [{tokens}, {slots}], got {_shape(experts)}",
        )
    what = "[npu_moe_finalize_routing] expected "
    count = rows.shape[0] if rows.dim() == 2 else rows.shape[0] * rows.shape[1]
    flat = rows.reshape(count, width)
    check_indices(index, -1, flat.shape[0], what + "expanded_src_to_dst_row")
    if bias is not None:
        check_indices(experts, 0, bias.shape[0], what + "export_for_source_row")

    float_type = torch.promote_types(rows.dtype, torch.float32)
    index = index.to(torch.int64)
    places = index.reshape(tokens, slots) if mode > 1 else index.reshape(slots, tokens).t()
    padded = torch.cat([flat.to(float_type), flat.new_zeros(1, width, dtype=float_type)])
    places = torch.where(places < 0, flat.shape[0], places).reshape(-1)
    values = padded.index_select(0, places).reshape(tokens, slots, width)
    if bias is not None:
        chosen = bias.to(float_type).index_select(0, experts.reshape(-1).to(torch.int64))
        values = values + chosen.reshape(tokens, slots, width)
    if scales is not None:
        values = values * scales.to(float_type)[..., None]
    y = values.sum(1)
    if skip1 is not None:
        y = (skip1.to(float_type) if skip2 is None else skip1.to(float_type) + skip2) + y
    return y.to(rows.dtype)


@op.function
def body(b, call, rows, skip1, skip2, bias, scales, index, experts):
    def wide(value):
        return b.Cast(value, to="float32")

    def vector(size):
        return b.Unsqueeze(size, [0])

    shape = b.Shape(rows)
    width = b.Slice(shape, [-1], [2**62])
    count = b.ReduceProd(b.Slice(shape, [0], [-1]), [0], keepdims=1)
    flat = b.Reshape(wide(rows), b.Concat(count, width, axis=0), allowzero=1)
    total = body_size(b, index, 0)
    if scales is None:
        slots = b.const(1 if call.attrs["k"] is None else call.attrs["k"], "int64")
        tokens = b.Div(total, slots)
    else:
        tokens, slots = body_size(b, scales, 0), body_size(b, scales, 1)
    place = body_numbers(b, total)
    if (call.attrs["drop_pad_mode"] or 0) < 2:
        # Slot j of token t, at t * K + j, is at j * T + t.
        at_least_one = b.Max(slots, b.const(1, "int64"))
        place = b.Add(b.Mul(b.Mod(place, at_least_one), tokens), b.Div(place, at_least_one))
    source = b.Gather(b.Cast(index, to="int64"), place, axis=0)
    zeros = b.ConstantOfShape(b.Concat(b.const([1], "int64"), width, axis=0))
    source = b.Where(b.Less(source, b.const(0, "int64")), count, source)
    values = b.Gather(b.Concat(flat, zeros, axis=0), source, axis=0)
    if bias is not None:
        values = b.Add(values, b.Gather(wide(bias), b.Reshape(experts, [-1]), axis=0))
    if scales is not None:
        values = b.Mul(values, b.Reshape(wide(scales), [-1, 1]))
    grid = b.Concat(vector(tokens), vector(slots), width, axis=0)
    values = b.ReduceSum(b.Reshape(values, grid, allowzero=1), [1], keepdims=0)
    # The CPU provider's reductions keep the shape of an empty tensor.
    y = b.Reshape(values, b.Concat(vector(tokens), width, axis=0), allowzero=1)
    if skip1 is not None:
        skip = wide(skip1) if skip2 is None else b.Add(wide(skip1), wide(skip2))
        y = b.Add(skip, y)
    return b.Cast(y, to=call.dtype("expanded_permuted_rows"))


def _call(make, tokens=5, slots=3, experts=4, width=33, **changes):
    arguments = {
        "expanded_permuted_rows": make(tokens * slots, width),
        "skip1": make(tokens, width),
        "skip2": make(tokens, width),
        "bias": make(experts, width),
        "scales": make(tokens, slots),
        "expanded_src_to_dst_row": make.permutation(tokens * slots, "int32"),
        "export_for_source_row": make.ints(tokens, slots, high=experts, dtype="int32"),
    }
    return Sample.of(arguments | changes)


def _sample(id, *args, expect=None, **changes):
    sample = _call(*args, **changes)
    sample.id, sample.expect = id, expect
    return sample


_ALONE = {"skip1": None, "skip2": None, "bias": None, "export_for_source_row": None}


@op.samples
def samples(make):
    def dropped(sample):
        index = sample.kwargs["expanded_src_to_dst_row"]
        index[::3] = -1
        return sample

    yield _sample(
        "catalogue",
        make,
        expanded_permuted_rows=make.tensor([[2.0 * i, 2.0 * i + 1] for i in range(6)]),
        skip1=make.tensor([[0.0, 0.0]] * 3),
        skip2=None,
        bias=make.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]]),
        scales=make.tensor([[0.5, 0.5], [1.0, 0.0], [0.25, 0.75]]),
        expanded_src_to_dst_row=make.tensor([4, 2, 1, 0, 5, 3], "int32"),
        export_for_source_row=make.tensor([[2, 0], [1, 2], [0, 1]], "int32"),
        expect=[[[5.0, 5.5], [4.0, 6.0], [5.25, 6.75]]],
    )
    yield _call(make)
    yield _sample("row_order", make, drop_pad_mode=2)
    pads = make(4, 7, 33)
    yield dropped(_sample("drop", make, expanded_permuted_rows=pads, drop_pad_mode=1))
    yield dropped(_sample("drop_row_order", make, expanded_permuted_rows=pads, drop_pad_mode=3))
    yield _sample("alone", make, **_ALONE, scales=None, k=3)
    yield dropped(_sample("one_slot", make, slots=1, **_ALONE, scales=None))
    yield _sample(
        "defaults_as_none", make, **_ALONE, slots=1, scales=None, drop_pad_mode=None, k=None
    )
    yield _sample("one_skip", make, skip2=None, bias=None)
    yield _sample(
        "weights_in_float32",
        make,
        scales=make(5, 3, dtype="float32"),
        bias=make(4, 33, dtype="float32"),
        skip1=make(5, 33, dtype="float16"),
    )
    yield _sample("threads", make, tokens=700, slots=4, width=300)
    yield _sample("no_tokens", make, tokens=0)
    yield _sample("no_features", make, width=0)
    yield _sample(
        "not_contiguous",
        make,
        expanded_permuted_rows=make(33, 15).t(),
        scales=make(3, 5).t(),
        skip1=make(33, 5).t(),
    )


def _refuse(id, match, *args, needs_values=False, **changes):
    op.errors(
        lambda make: _call(make, *args, **{k: v(make) for k, v in changes.items()}),
        match=rf"\[npu_moe_finalize_routing\] expected {match}",
        needs_values=needs_values,
        id=id,
    )


def _last(value):
    def index(make):
        changed = make.permutation(15, "int32")
        changed[-1] = value
        return changed

    return index


def _nothing(make):
    return None


_refuse(
    "row_too_large",
    r"expanded_src_to_dst_row in \[-1, 15\), got 15",
    needs_values=True,
    expanded_src_to_dst_row=_last(15),
)
_refuse(
    "negative_row",
    r"expanded_src_to_dst_row in \[-1, 15\), got -2",
    needs_values=True,
    expanded_src_to_dst_row=_last(-2),
)
_refuse(
    "expert_too_large",
    r"export_for_source_row in \[0, 4\), got 4",
    needs_values=True,
    export_for_source_row=lambda make: make.tensor([[0, 1, 4]] * 5, "int32"),
)
_refuse(
    "negative_expert",
    r"export_for_source_row in \[0, 4\), got -1",
    needs_values=True,
    export_for_source_row=lambda make: make.tensor([[0, -1, 3]] * 5, "int32"),
)
_refuse("mode", r"drop_pad_mode in \[0, 3\], got 4", drop_pad_mode=lambda make: 4)
_refuse("skip2_alone", "skip1 with skip2", skip1=_nothing)
_refuse("bias_alone", "export_for_source_row with bias", export_for_source_row=_nothing)
_refuse("skip_shape", r"skip2 \[5, 33\], got \[3, 33\]", skip2=lambda make: make(3, 33))
_refuse("bias_shape", r"bias \[E, 33\], got \[4, 32\]", bias=lambda make: make(4, 32))
_refuse(
    "experts_shape",
    r"export_for_source_row \[5, 3\], got \[3, 5\]",
    export_for_source_row=lambda make: make.ints(3, 5, dtype="int32"),
)
_refuse(
    "scales_shape",
    r"expanded_src_to_dst_row \[T \* K\] for scales \[5, 2\], got \[15\]",
    scales=lambda make: make(5, 2),
)
_refuse("scales_rank", r"scales \[T, K\], got \[15\]", scales=lambda make: make(15))
_refuse(
    "slots",
    r"expanded_src_to_dst_row \[T \* 4\] for k 4, got \[15\]",
    scales=_nothing,
    k=lambda make: 4,
)
_refuse("no_slots", r"k >= 1, got 0", scales=_nothing, k=lambda make: 0)
_refuse(
    "index_rank",
    r"expanded_src_to_dst_row \[T \* K\], got \[5, 3\]",
    expanded_src_to_dst_row=lambda make: make.ints(5, 3, dtype="int32"),
)
_refuse(
    "rows_rank",
    r"expanded_permuted_rows \[R, H\] or \[E, C, H\], got \[33\]",
    expanded_permuted_rows=lambda make: make(33),
)
