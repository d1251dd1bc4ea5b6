"""Dequantisation, SwiGLU and quantisation to int8. Source: torch_npu.npu_dequant_swiglu_quant."""

from onnxruntime_npu.opdef import FLOATS, HALVES, TypeCodes, TypedBy, check, npu_op, torch

from ._dequant_swiglu_quant_calls import refusals, samples_of
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


op.samples(samples_of)
_BORDER = "the last bits of a sigmoid may put a value on the other side of a border"
op.tolerance("int8", rtol=0, atol=1, reason=_BORDER)
for _dtype in ("int32", *HALVES):
    op.tolerance(_dtype, rtol=1e-5, atol=1e-6, reason="the scale has the last bits of a sigmoid")

refusals(op)
