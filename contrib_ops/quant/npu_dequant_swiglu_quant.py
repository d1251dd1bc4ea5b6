"""Dequantisation, SwiGLU and quantisation to int8. Source: torch_npu.npu_dequant_swiglu_quant."""

from onnxruntime_npu.opdef import FLOATS, HALVES, Sample, TypeCodes, TypedBy, check, npu_op, torch

from ._groups import body_rows_of_groups, check_counts, rows_of_groups
from ._integers import INT8, saturated, type_named

_OP = "npu_dequant_swiglu_quant"
_TYPES = {"int8": INT8}
_TOP = 127.0
_HALF_EVEN, _HALF_AWAY, _FLOOR, _CEIL, _TRUNC = range(5)

op = npu_op(
    f"{_OP}(Tensor x, *, Tensor? weight_scale=None, Tensor? activation_scale=None,"
    " Tensor? bias=None, Tensor? quant_scale=None, Tensor? quant_offset=None,"
    " Tensor? group_index=None, bool activate_left=False, int quant_mode=0, int? dst_type=None,"
    " int? round_mode=None, int? activate_dim=None, int swiglu_mode=0, float clamp_limit=7.0,"
    " float glu_alpha=1.702, float glu_bias=1.0) -> (Tensor, Tensor)",
    onnx="NPUDequantSwigluQuant",
    outputs=["out", "scale"],
    dtypes={
        "x": ["int32", *HALVES],
        "weight_scale": ["float32"],
        "activation_scale": ["float32"],
        "bias": ["int32", *FLOATS],
        "quant_scale": FLOATS,
        "quant_offset": FLOATS,
        "group_index": ["int64"],
        "out": ["int8"],
        "scale": ["float32"],
    },
    type_codes={"dst_type": TypeCodes(_TYPES)},
    typed_by={"out": TypedBy("dst_type", {"int8": "int8"}, "int8")},
)


def _check(condition, message):
    check(condition, f"[{_OP}] {message}")


def _check_attributes(rank, quant_mode, round_mode, activate_dim, swiglu_mode):
    _check(quant_mode in (0, 1), f"expected quant_mode 0 or 1, got {quant_mode}")
    _check(
        round_mode is None or 0 <= round_mode <= _TRUNC,
        f"expected round_mode in [0, {_TRUNC}], got {round_mode}",
    )
    _check(0 <= swiglu_mode <= 2, f"expected swiglu_mode 0, 1 or 2, got {swiglu_mode}")
    _check(
        activate_dim in (None, -1, rank - 1),
        f"expected activate_dim to be the last axis, -1 or {rank - 1}, got {activate_dim}",
    )


def _check_columns(name, values, groups, columns, one_per_group=False):
    """Refuse values that are not per column, of each group if there are any."""
    if values is None:
        return
    shape = list(values.shape)
    if groups is None:
        shapes = [[columns], [1, columns]] + ([[1]] if one_per_group else [])
    else:
        shapes = [[groups, columns]] + ([[groups]] if one_per_group else [])
    _check(
        shape in shapes, f"expected {name} of shape {' or '.join(map(str, shapes))}, got {shape}"
    )


def _check_tensors(
    x, weight_scale, activation_scale, bias, quant_scale, quant_offset, groups, mode
):
    width = x.shape[-1]
    for name, values in (
        ("weight_scale", weight_scale),
        ("activation_scale", activation_scale),
        ("bias", bias),
    ):
        _check(
            values is None or x.dtype == torch.int32,
            f"expected {name} only with x of int32, got x of {x.dtype}; multiply x beforehand",
        )
    _check_columns("weight_scale", weight_scale, groups, width)
    _check_columns("bias", bias, groups, width)
    rows = x.numel() // width
    _check(
        activation_scale is None or list(activation_scale.shape) in ([rows], [rows, 1]),
        f"expected activation_scale of shape [{rows}] or [{rows}, 1], "
        f"got {list(activation_scale.shape) if activation_scale is not None else None}",
    )
    _check_columns("quant_scale", quant_scale, groups, width // 2, mode == 0)
    _check(
        quant_offset is None or mode == 0,
        "expected quant_offset only with quant_mode 0, got quant_mode 1",
    )
    _check_columns("quant_offset", quant_offset, groups, width // 2, True)
    _check(
        bias is None or groups is None or mode == 0,
        "expected no bias with group_index and quant_mode 1, got one",
    )


def _rounded(values, mode):
    # In float64, where adding a half is exact.
    wide = torch.where(values.isnan(), 0.0, values).double()
    if mode == _HALF_AWAY:
        return (wide.abs() + 0.5).floor() * wide.sign()
    functions = {_FLOOR: torch.floor, _CEIL: torch.ceil, _TRUNC: torch.trunc}
    return functions.get(mode, torch.round)(wide)


@op.reference
def reference(
    x,
    weight_scale,
    activation_scale,
    bias,
    quant_scale,
    quant_offset,
    group_index,
    activate_left,
    quant_mode,
    dst_type,
    round_mode,
    activate_dim,
    swiglu_mode,
    clamp_limit,
    glu_alpha,
    glu_bias,
):
    """out = s quantised; s = SwiGLU of v; v = (x + bias) * weight_scale * activation_scale.

    x: [.., 2 H], H > 0, its leading axes are T rows; out: int8 [.., H]; scale: float32 [..]. Only
    with x of int32: weight_scale [2 H], [1, 2 H]; activation_scale [T], [T, 1]; bias like
    weight_scale, int32 added to x (wrapping), floats added to the product. An absent scale is 1.

    swiglu_mode 0: s = a sigmoid(a) b; a, b are the right and the left half of v, with activate_left
    the left and the right. 1: of the even columns a and the odd columns b, whatever activate_left
    is, a = min(a, clamp_limit), b = b clamped to [-clamp_limit, clamp_limit],
    s = a sigmoid(glu_alpha a) (b + glu_bias). 2: the same of the halves that mode 0 has.

    quant_mode 0, static: q = s / quant_scale + quant_offset, of [H], [1, H] or [1], 1 and 0 if
    absent; scale is 0. quant_mode 1, dynamic: q = z * (127 / max |z|), scale = max |z| / 127, of
    z = s * quant_scale, [H] or [1, H]. Zeros alone have scale 0 and out 0, as npu_dynamic_quant
    has them; an infinity makes its scale infinite and NaN makes it NaN; out is then 0 throughout.

    group_index: [G], G > 0, the numbers of rows of the groups; their sum is at most T, and rows
    past it have scale 0 and out 0. Per-column arguments then have a row for each group, [G, ..];
    of one value per group, [G]. round_mode: 0 half to even, 1 half away from zero, 2 down, 3 up,
    4 towards zero; out saturates, NaN becomes 0. activate_dim: the last axis. float32 arithmetic.
    """
    rank, shape = x.dim(), list(x.shape)
    _check_attributes(rank, quant_mode, round_mode, activate_dim, swiglu_mode)
    _check(
        rank >= 2 and shape[-1] > 0 and shape[-1] % 2 == 0,
        f"expected x [.., 2 H] with H > 0, got {shape}",
    )
    groups = None
    if group_index is not None:
        _check(
            group_index.dim() == 1 and group_index.shape[0] > 0,
            f"expected group_index [G] with G > 0, got {list(group_index.shape)}",
        )
        groups = group_index.shape[0]
    _check_tensors(
        x, weight_scale, activation_scale, bias, quant_scale, quant_offset, groups, quant_mode
    )
    flat = x.flatten(0, -2)
    rows = flat.shape[0]
    ends = None
    if group_index is not None:
        check_counts(_OP, group_index, rows)
        ends = group_index.cumsum(0)

    def per_row(values):
        if ends is None:
            return values
        table = values.reshape(-1, 1) if values.dim() == 1 else values
        return rows_of_groups(table, ends, rows)

    if bias is not None and bias.dtype == torch.int32:
        flat = flat + per_row(bias)
    v = flat.float()
    if weight_scale is not None:
        v = v * per_row(weight_scale)
    if activation_scale is not None:
        v = v * activation_scale.reshape(-1, 1)
    if bias is not None and bias.dtype != torch.int32:
        v = v + per_row(bias.float())

    if swiglu_mode == 1:
        a, b = v[:, 0::2], v[:, 1::2]
    else:
        half = shape[-1] // 2
        b, a = v[:, :half], v[:, half:]
        if activate_left:
            a, b = b, a
    if swiglu_mode == 0:
        s = a * torch.sigmoid(a) * b
    else:
        a = a.clamp(max=clamp_limit)
        b = b.clamp(min=-clamp_limit, max=clamp_limit)
        s = a * torch.sigmoid(glu_alpha * a) * (b + glu_bias)

    if quant_mode == 0:
        q = s if quant_scale is None else s / per_row(quant_scale.float())
        q = q if quant_offset is None else q + per_row(quant_offset.float())
        scale = torch.zeros_like(q[:, 0])
    else:
        z = s if quant_scale is None else s * per_row(quant_scale.float())
        most = z.abs().amax(1)
        q, scale = z * (_TOP / most)[:, None], most / _TOP
    out = saturated(_rounded(q, round_mode or 0), "int8")
    if ends is not None:
        inside = torch.arange(rows, device=x.device) < ends[-1]
        out, scale = torch.where(inside[:, None], out, 0), torch.where(inside, scale, 0.0)
    return out.reshape(*shape[:-1], shape[-1] // 2), scale.reshape(shape[:-1])


def _body_rounded(b, values, mode):
    numbers = b.Where(b.IsNaN(values), b.const(0.0, "float32"), values)
    if mode in (_HALF_AWAY, _TRUNC):
        size = b.Abs(numbers)
        whole = b.Floor(size)
        if mode == _HALF_AWAY:
            up = b.GreaterOrEqual(b.Sub(size, whole), b.const(0.5, "float32"))
            whole = b.Add(whole, b.Cast(up, to="float32"))
        return b.Mul(whole, b.Sign(numbers))
    return {_HALF_EVEN: b.Round, _FLOOR: b.Floor, _CEIL: b.Ceil}[mode](numbers)


class _BodyRows:
    """The groups in the body: what each row has of a table."""

    def __init__(self, b, rows, counts):
        self._b, self._rows, self._counts = b, rows, counts
        if counts is None:
            return
        ends = b.CumSum(counts, b.const(0, "int64"))
        numbers = b.Range(b.const(0, "int64"), rows, b.const(1, "int64"))
        self._inside = b.Less(numbers, b.Slice(ends, [-1], [2**62]))
        # The last group also has the rows past it, which are cleared at the end.
        self._ends = b.Concat(b.Slice(ends, [0], [-1]), b.Unsqueeze(rows, [0]), axis=0)

    def of(self, values, rank):
        """Return the values beside each row; of rank 1, one for each group."""
        if self._counts is None:
            return values
        table = self._b.Unsqueeze(values, [1]) if rank == 1 else values
        return body_rows_of_groups(self._b, table, self._ends, self._rows)

    def cleared(self, out, scale):
        """Return both with zeros past the last group."""
        if self._counts is None:
            return out, scale
        b = self._b
        wide = b.Unsqueeze(self._inside, [1])
        return (
            b.Where(wide, out, b.const(0.0, "float32")),
            b.Where(wide, scale, b.const(0.0, "float32")),
        )


def _body_swiglu(b, attrs, v):
    mode = attrs["swiglu_mode"]
    if mode == 1:
        gate, value = (b.Slice(v, [i], [2**62], [1], [2]) for i in (0, 1))
    else:
        value, gate = b.Split(v, axis=1, num_outputs=2, _outputs=2)
        if attrs["activate_left"]:
            gate, value = value, gate
    if mode == 0:
        return b.Mul(b.Mul(gate, b.Sigmoid(gate)), value)
    limit = b.const(attrs["clamp_limit"], "float32")
    gate = b.Min(gate, limit)
    value = b.Min(b.Max(value, b.const(-attrs["clamp_limit"], "float32")), limit)
    sigmoid = b.Sigmoid(b.Mul(gate, b.const(attrs["glu_alpha"], "float32")))
    return b.Mul(b.Mul(gate, sigmoid), b.Add(value, b.const(attrs["glu_bias"], "float32")))


@op.function
def body(b, call, x, weight_scale, activation_scale, bias, quant_scale, quant_offset, group_index):
    type_named(call.attrs["dst_type"], _TYPES, "int8")
    shape = b.Shape(x)
    lead, width = b.Slice(shape, [0], [-1]), b.Slice(shape, [-1], [2**62])
    rows = b.ReduceProd(lead, [0], keepdims=0)
    flat = b.Reshape(x, b.Concat(b.Unsqueeze(rows, [0]), width, axis=0), allowzero=1)
    groups = _BodyRows(b, rows, group_index)
    if bias is not None and call.dtype("bias") == "int32":
        flat = b.Add(flat, groups.of(bias, 2))
    v = b.Cast(flat, to="float32")
    if weight_scale is not None:
        v = b.Mul(v, groups.of(weight_scale, 2))
    if activation_scale is not None:
        one_axis = call.rank("activation_scale") == 1
        v = b.Mul(v, b.Unsqueeze(activation_scale, [1]) if one_axis else activation_scale)
    if bias is not None and call.dtype("bias") != "int32":
        v = b.Add(v, groups.of(b.Cast(bias, to="float32"), 2))
    s = _body_swiglu(b, call.attrs, v)
    if quant_scale is not None:
        scales = groups.of(b.Cast(quant_scale, to="float32"), call.rank("quant_scale"))
        s = (b.Mul if call.attrs["quant_mode"] else b.Div)(s, scales)
    if call.attrs["quant_mode"]:
        most = b.ReduceMax(b.Abs(s), [1], keepdims=1)
        s = b.Mul(s, b.Div(b.const(_TOP, "float32"), most))
        scale = b.Div(most, b.const(_TOP, "float32"))
    else:
        if quant_offset is not None:
            offsets = groups.of(b.Cast(quant_offset, to="float32"), call.rank("quant_offset"))
            s = b.Add(s, offsets)
        ones = b.Concat(b.Unsqueeze(rows, [0]), b.const([1], "int64"), axis=0)
        scale = b.Expand(b.const(0.0, "float32"), ones)
    rounded = b.Clip(_body_rounded(b, s, call.attrs["round_mode"] or 0), -128.0, 127.0)
    out, scale = groups.cleared(rounded, scale)
    result = b.Concat(lead, b.Div(width, b.const([2], "int64")), axis=0)
    return (
        b.Cast(b.Reshape(out, result, allowzero=1), to="int8"),
        b.Reshape(scale, lead, allowzero=1),
    )


@op.samples
def samples(make):
    of_int32 = make.dtype == "int32"

    def values(*shape):
        return make.ints(*shape, low=-100, high=100, dtype="int32") if of_int32 else make(*shape)

    def scales(*shape):
        return make.uniform(*shape, low=0.01, high=0.05, dtype="float32")

    def weights(*shape):
        return {"weight_scale": scales(*shape)} if of_int32 else {}

    def quants(*shape, dtype="float32"):
        return make.uniform(*shape, low=0.01, high=0.1, dtype=dtype)

    counts = make.tensor([2, 0, 3], "int64")
    if of_int32:
        small = {
            "weight_scale": make.tensor([[0.1, 0.1, 0.2, 0.05]], "float32"),
            "activation_scale": make.tensor([[2.0]], "float32"),
        }
        ten = make.tensor([[10, 20, -10, 40]])
        yield Sample(ten, **small, quant_mode=1, id="catalogue", expect=[[[-1, 127]], [0.123718]])
        yield Sample(
            ten,
            **small,
            quant_scale=make.tensor([[0.5, 2.0]], "float32"),
            quant_offset=make.tensor([[1.0, 0.0]], "float32"),
            id="catalogue_static",
            expect=[[[1, 8]], [0.0]],
        )
        tokens = scales(7, 1) * 20
        yield Sample(
            values(7, 30),
            weight_scale=scales(30),
            activation_scale=tokens.reshape(7),
            bias=make(30),
            quant_scale=quants(15, dtype="float16"),
            quant_mode=1,
            id="bias_of_int32",
        )
        yield Sample(
            values(7, 30),
            weight_scale=scales(1, 30),
            activation_scale=tokens,
            bias=make(30, dtype="bfloat16"),
            quant_scale=quants(1),
            swiglu_mode=1,
            id="bias_of_floats",
        )
        yield Sample(
            values(7, 30),
            weight_scale=scales(3, 30),
            bias=make(3, 30, dtype="float32"),
            group_index=counts,
            quant_scale=quants(3),
            quant_offset=make(3, 15, dtype="float16"),
            id="groups_static_bias",
        )
    yield Sample(make.tensor([[0] * 8] * 2), quant_mode=1, id="zeros")
    x = values(2, 4, 70)
    for mode in (0, 1, 2):
        options = {**weights(70), "swiglu_mode": mode, "clamp_limit": 1.5, "glu_bias": 0.5}
        yield Sample(x, **options, quant_mode=1, glu_alpha=1.1, id=f"dynamic_{mode}")
        yield Sample(x, **options, quant_scale=quants(35), activate_left=True, id=f"static_{mode}")
        yield Sample(
            x,
            **{**options, **weights(3, 70)},
            group_index=counts,
            quant_scale=quants(3, 35),
            quant_mode=1,
            id=f"groups_{mode}",
        )
    yield Sample(
        x, **weights(1, 70), group_index=make.tensor([5], "int64"), dst_type=1, id="one_group"
    )
    for mode in range(5):
        yield Sample(
            x, **weights(70), quant_scale=quants(1, 35), round_mode=mode, id=f"round_{mode}"
        )
        yield Sample(x, **weights(70), quant_mode=1, round_mode=mode, id=f"dynamic_round_{mode}")
    yield Sample(x, **weights(70), quant_offset=quants(1), activate_dim=2, id="offset_alone")
    yield Sample(values(40, 1400), **weights(1400), quant_mode=1, id="threads")
    yield Sample(values(3, 1026), **weights(1026), quant_mode=1, swiglu_mode=1, id="blocks")
    yield Sample(values(0, 8), **weights(8), quant_mode=1, id="no_rows")
    yield Sample(values(30, 7).t(), **weights(30), quant_mode=1, id="not_contiguous")


_BORDER = "the last bits of a sigmoid may put a value on the other side of a border"
op.tolerance("int8", rtol=0, atol=1, reason=_BORDER)
for _dtype in ("int32", *HALVES):
    op.tolerance(_dtype, rtol=1e-5, atol=1e-6, reason="the scale has the last bits of a sigmoid")


def _refuse(id, match, make_sample, **options):
    op.errors(make_sample, match=rf"\[{_OP}\] {match}", id=id, **options)


_refuse("rank", r"expected x \[.., 2 H\] with H > 0, got \[8\]", lambda make: Sample(make(8)))
_refuse("odd", r"expected x \[.., 2 H\] with H > 0, got \[2, 7\]", lambda make: Sample(make(2, 7)))
_refuse(
    "no_columns",
    r"expected x \[.., 2 H\] with H > 0, got \[2, 0\]",
    lambda make: Sample(make(2, 0)),
)
for _name, _wrong, _match in (
    ("quant_mode", 2, "expected quant_mode 0 or 1, got 2"),
    ("round_mode", 5, r"expected round_mode in \[0, 4\], got 5"),
    ("swiglu_mode", 3, "expected swiglu_mode 0, 1 or 2, got 3"),
    ("activate_dim", 0, "expected activate_dim to be the last axis, -1 or 1, got 0"),
):
    _refuse(
        _name,
        _match,
        lambda make, name=_name, wrong=_wrong: Sample(make(2, 8), **{name: wrong}),
    )
for _number, _described in ((291, "float8_e5m2"), (292, "float8_e4m3fn"), (297, "float4_e1m2")):
    _refuse(
        _described,
        rf"expected dst_type to name int8, got (ext_)?{_described}",
        lambda make, number=_number: Sample(make(2, 8), dst_type=number),
    )
_refuse(
    "weight_scale_of_floats",
    "expected weight_scale only with x of int32, got x of",
    lambda make: Sample(make(2, 8, dtype="float16"), weight_scale=make(8, dtype="float32")),
)
_refuse(
    "weight_scale_shape",
    r"expected weight_scale of shape \[8\] or \[1, 8\], got \[4\]",
    lambda make: Sample(make(2, 8, dtype="int32"), weight_scale=make(4, dtype="float32")),
)
_refuse(
    "bias_shape",
    r"expected bias of shape \[1, 8\], got \[8\]",
    lambda make: Sample(
        make(2, 8, dtype="int32"),
        bias=make(8, dtype="int32"),
        group_index=make.tensor([2], "int64"),
    ),
)
_refuse(
    "bias_of_groups",
    "expected no bias with group_index and quant_mode 1, got one",
    lambda make: Sample(
        make(2, 8, dtype="int32"),
        bias=make(1, 8, dtype="int32"),
        group_index=make.tensor([2], "int64"),
        quant_mode=1,
    ),
)
_refuse(
    "activation_scale_shape",
    r"expected activation_scale of shape \[6\] or \[6, 1\], got \[2, 3\]",
    lambda make: Sample(make(2, 3, 8, dtype="int32"), activation_scale=make(2, 3, dtype="float32")),
)
_refuse(
    "quant_scale_shape",
    r"expected quant_scale of shape \[4\] or \[1, 4\], got \[1\]",
    lambda make: Sample(make(2, 8), quant_scale=make(1, dtype="float32"), quant_mode=1),
)
_refuse(
    "quant_offset_of_dynamic",
    "expected quant_offset only with quant_mode 0, got quant_mode 1",
    lambda make: Sample(make(2, 8), quant_offset=make(4, dtype="float32"), quant_mode=1),
)
_refuse(
    "no_groups",
    r"expected group_index \[G\] with G > 0, got \[0\]",
    lambda make: Sample(make(2, 8), group_index=make.tensor([], "int64")),
)
for _id, _counts, _match in (
    ("negative", (1, -1), r"entry 1 in \[0, 2\], got -1"),
    ("beyond_the_rows", (2, 2), r"entry 1 in \[0, 1\], got 2"),
    ("overflows", (2, 2**63 - 1), r"entry 1 in \[0, 1\], got 9223372036854775807"),
):
    _refuse(
        f"group_index_{_id}",
        rf"expected group_index to count up to the 3 rows, {_match}",
        lambda make, counts=_counts: Sample(
            make(3, 8), group_index=make.tensor(list(counts), "int64")
        ),
        needs_values=True,
    )
