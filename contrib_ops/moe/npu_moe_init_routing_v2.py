"""Sorts the rows of all tokens by expert, gathers their features and quantises them.

Source: torch_npu.npu_moe_init_routing_v2.
"""

from onnxruntime_npu.opdef import FLOATS, TypeCodes, TypedBy, check, npu_op, torch

from ..quant._integers import (
    INT4,
    body_pack_bytes,
    body_rounded,
    pack_bytes,
    rounded,
)
from ._init_routing_calls import refusals, samples_of
from ._rows import MAX_EXPERTS, body_numbers, body_order_of, body_size, check_rows, order_of

_NONE, _STATIC, _DYNAMIC, _DYNAMIC_INT4 = -1, 0, 1, 13
_ROWS = [*FLOATS, "int8"]

op = npu_op(
    "npu_moe_init_routing_v2(Tensor x, Tensor expert_idx, *, Tensor? scale=None,"
    " Tensor? offset=None, int active_num=-1, int expert_capacity=-1, int expert_num=-1,"
    " int drop_pad_mode=0, int expert_tokens_num_type=0, bool expert_tokens_num_flag=False,"
    " int quant_mode=-1, int[2] active_expert_range=[], int row_idx_type=0, int? x_dtype=None)"
    " -> (Tensor, Tensor, Tensor, Tensor)",
    onnx="NPUMoeInitRoutingV2",
    outputs=["expanded_x", "expanded_row_idx", "expert_tokens", "expanded_scale"],
    dtypes={
        "x": _ROWS,
        "expert_idx": ["int32"],
        "scale": ["float32"],
        "offset": ["float32"],
        "expanded_x": [*_ROWS, "uint8"],
        "expanded_row_idx": ["int32"],
        "expert_tokens": ["int64"],
        "expanded_scale": ["float32"],
    },
    type_codes={"x_dtype": TypeCodes({"int4": INT4})},
    typed_by={
        "expanded_x": TypedBy(
            "quant_mode",
            {_STATIC: "int8", _DYNAMIC: "int8", _DYNAMIC_INT4: "uint8"},
            otherwise_input=True,
            added_axes="drop_pad_mode",
        )
    },
)


def _check(condition, message):
    check(condition, f"[npu_moe_init_routing_v2] expected {message}")


def _check_modes(x, drop_pad_mode, expert_tokens_num_type, row_idx_type, quant_mode, x_dtype):
    _check(drop_pad_mode in (0, 1), f"drop_pad_mode 0 or 1, got {drop_pad_mode}")
    _check(
        expert_tokens_num_type in (0, 1, 2),
        f"expert_tokens_num_type 0, 1 or 2, got {expert_tokens_num_type}",
    )
    _check(row_idx_type in (0, 1), f"row_idx_type 0 or 1, got {row_idx_type}")
    _check(quant_mode in (-1, 0, 1, 13), f"quant_mode -1, 0, 1 or 13, got {quant_mode}")
    _check(
        x_dtype is None or quant_mode == _DYNAMIC_INT4,
        f"quant_mode=13 for x_dtype int4, got quant_mode={quant_mode}",
    )
    _check(
        x.dtype != torch.int8 or quant_mode == _NONE,
        f"quant_mode -1 for x of int8, got {quant_mode}",
    )


def _range(active_expert_range, expert_num, drop_pad_mode, expert_tokens_num_type):
    ends = list(active_expert_range)
    _check(
        expert_num == -1 or 1 <= expert_num <= MAX_EXPERTS,
        f"expert_num in [1, {MAX_EXPERTS}], or -1, got {expert_num}",
    )
    _check(
        expert_num != -1 or (ends and drop_pad_mode == 0 and expert_tokens_num_type != 2),
        "expert_num without active_expert_range, with drop_pad_mode 1 or with "
        "expert_tokens_num_type 2, got -1",
    )
    limit = MAX_EXPERTS if expert_num == -1 else expert_num
    start, end = ends if len(ends) == 2 else (0, limit)
    _check(
        len(ends) in (0, 2) and 0 <= start < end <= limit,
        f"active_expert_range [] or an ascending range within [0, {limit}], got {ends}",
    )
    _check(
        drop_pad_mode == 0 or (start, end) == (0, limit),
        f"active_expert_range [] or [0, {limit}] with drop_pad_mode 1, got {ends}",
    )
    return start, end


def _check_quantisation(x, scale, offset, quant_mode, experts):
    tokens, width = x.shape
    if quant_mode in (_DYNAMIC, _DYNAMIC_INT4):
        _check(width > 0, f"x with features to take a scale from, got {list(x.shape)}")
    if quant_mode == _DYNAMIC_INT4:
        _check(width % 2 == 0, f"x with an even number of features for int4, got {list(x.shape)}")
    shape = None if scale is None else list(scale.shape)
    _check(quant_mode != _STATIC or scale is not None, "scale with quant_mode 0")
    if shape is not None and not (tokens == 0 and shape == [0]):
        allowed = {
            _NONE: [[tokens]],
            _STATIC: [[1]],
            _DYNAMIC: [[1, width], [experts, width]],
            _DYNAMIC_INT4: [[1, width]],
        }[quant_mode]
        words = " or ".join(map(str, allowed))
        _check(shape in allowed, f"scale {words} with quant_mode {quant_mode}, got {shape}")
    _check(
        offset is None or quant_mode == _STATIC, f"no offset with quant_mode {quant_mode}, got one"
    )
    _check(
        offset is None or list(offset.shape) == [1] or (tokens == 0 and list(offset.shape) == [0]),
        f"offset [1], got {offset is not None and list(offset.shape)}",
    )


@op.reference
def reference(
    x,
    expert_idx,
    scale=None,
    offset=None,
    active_num=-1,
    expert_capacity=-1,
    expert_num=-1,
    drop_pad_mode=0,
    expert_tokens_num_type=0,
    expert_tokens_num_flag=False,
    quant_mode=-1,
    active_expert_range=(),
    row_idx_type=0,
    x_dtype=None,
):
    """Sort the T * K rows by expert, those of one expert in row-major order.

    x: [T, H]; expert_idx: [T, K] int32, K at least 1; row t * K + k is of token t. Active are the
    rows whose expert is in active_expert_range, [0, expert_num) by default; experts elsewhere, of
    any number, have none.

    drop_pad_mode 0: expanded_x is [T * K, H], or [min(active_num, T * K), H] for active_num > 0:
    the tokens of the first active rows, then zeros. Mode 1: [expert_num, expert_capacity, H], the
    first expert_capacity rows of each expert, then zeros; expert_capacity is in [1, T].

    expanded_row_idx: [T * K] int32. row_idx_type 0: at each row its place among the sorted active
    ones, in mode 1 its place in expanded_x, -1 for rows without one. An active row beyond
    active_num keeps its place. row_idx_type 1: at each place the row, then -1.

    expert_tokens: int64, zeros without expert_tokens_num_flag. For expert_tokens_num_type 1, and
    for every type in mode 1: how many rows each expert of the range has. 0: how many it and those
    before it have. 2: [expert_num, 2], the experts that have any and how many, then zeros.

    expanded_scale: float32, one for each row of expanded_x, 0 for rows of zeros. quant_mode -1:
    scale [T] of the row's token; zeros without scale, and with quant_mode 0. 0: expanded_x is
    int8 round(x * scale + offset), each operation rounded to float16; scale and offset are [1],
    offset None is 0. 1: z = x * scale, scale [1, H] or a row for each expert of the range, None for
    1; expanded_scale = max |z| / 127, expanded_x = int8 round(z / expanded_scale), in float32 and
    as in npu_dynamic_quant. 13: the same as int4 with 7 for 127 and one scale, two to a byte of
    uint8 [.., H / 2], the first in the lower bits; x_dtype int4 says the same. int8 is not
    quantised. Rounding is half to even, saturating. For T = 0 scale and offset may be [0].
    """
    _check(x.dim() == 2, f"x [T, H], got {list(x.shape)}")
    tokens = x.shape[0]
    _check(
        expert_idx.dim() == 2 and expert_idx.shape[0] == tokens and expert_idx.shape[1] >= 1,
        f"expert_idx [{tokens}, K] with K >= 1, got {list(expert_idx.shape)}",
    )
    slots = expert_idx.shape[1]
    total = tokens * slots
    check_rows("npu_moe_init_routing_v2", total)
    _check_modes(x, drop_pad_mode, expert_tokens_num_type, row_idx_type, quant_mode, x_dtype)
    _check(active_num >= -1, f"active_num >= -1, got {active_num}")
    start, end = _range(active_expert_range, expert_num, drop_pad_mode, expert_tokens_num_type)
    experts = end - start
    _check(
        drop_pad_mode == 0 or 1 <= expert_capacity <= tokens,
        f"expert_capacity in [1, {tokens}] with drop_pad_mode 1, got {expert_capacity}",
    )
    if drop_pad_mode == 1:
        check_rows("npu_moe_init_routing_v2", experts * expert_capacity)
    _check_quantisation(x, scale, offset, quant_mode, experts)

    numbers = expert_idx.reshape(-1).to(torch.int64)
    keys = torch.where((numbers >= start) & (numbers < end), numbers - start, experts)
    order = order_of(keys)
    sorted_keys = keys.index_select(0, order)
    counts = (keys[:, None] == torch.arange(experts, device=x.device)).sum(0)
    starts = counts.cumsum(0) - counts
    places = torch.arange(total, device=x.device)
    is_active = places < counts.sum()
    if drop_pad_mode == 0:
        kept = torch.sym_min(active_num, total) if active_num > 0 else total
        rows, chosen, filled = order[:kept], sorted_keys[:kept], is_active[:kept]
        targets = places
    else:
        # Where each place of expanded_x finds its row among the sorted ones; K and T are positive.
        slot = torch.arange(expert_capacity, device=x.device)
        filled = (slot < counts[:, None]).reshape(-1)
        source = (starts[:, None] + slot).reshape(-1)
        rows = order.index_select(0, torch.where(filled, source, 0))
        chosen = torch.arange(experts, device=x.device).repeat_interleave(expert_capacity)
        slot = places - torch.cat([starts, starts[:1]]).index_select(0, sorted_keys)
        is_kept = is_active & (slot < expert_capacity)
        targets = torch.where(is_kept, sorted_keys * expert_capacity + slot, -1)
    if row_idx_type == 0:
        targets = torch.where(is_active, targets, -1)
        row_idx = torch.empty_like(places).scatter(0, order, targets)
    else:
        row_idx = torch.where(is_active, order, -1)
    of_rows = torch.where(filled, rows // slots, 0) if total else rows
    expanded, scales = _quantised(x, scale, offset, quant_mode, of_rows, chosen, filled)
    if drop_pad_mode == 1:
        expanded = expanded.reshape(experts, expert_capacity, expanded.shape[-1])
    kind = 1 if drop_pad_mode == 1 else expert_tokens_num_type
    histogram = _histogram(counts, kind, start, expert_num)
    if not expert_tokens_num_flag:
        histogram = torch.zeros_like(histogram)
    return expanded, row_idx.to(torch.int32), histogram, scales


def _histogram(counts, kind, start, expert_num):
    if kind < 2:
        return counts if kind == 1 else counts.cumsum(0)
    order = order_of(counts == 0)
    found = counts.index_select(0, order)
    pairs = torch.stack([torch.where(found > 0, order + start, 0), found], 1)
    return torch.cat([pairs, pairs.new_zeros(expert_num - counts.shape[0], 2)])


def _quantised(x, scale, offset, quant_mode, tokens, experts, filled):
    """Return expanded_x and expanded_scale, of the tokens and experts of its rows."""
    rows = x.index_select(0, tokens)
    no_scales = torch.zeros(filled.shape[0], dtype=torch.float32, device=x.device)
    if quant_mode == _NONE:
        values = torch.where(filled[:, None], rows, 0).to(x.dtype)
        if scale is None:
            return values, no_scales
        return values, torch.where(filled, scale.float().index_select(0, tokens), 0.0)
    if quant_mode == _STATIC:
        if scale.shape[0] == 0:
            return rows.to(torch.int8), no_scales
        products = rows.half() * scale.half()
        sums = products if offset is None else products + offset.half()
        values = torch.where(filled[:, None], rounded(sums.float(), "int8"), 0.0)
        return values.to(torch.int8), no_scales
    values = rows.float()
    if scale is not None and scale.dim() == 2:
        smooth = scale.float()
        if scale.shape[0] != 1:
            smooth = smooth.index_select(0, torch.where(filled, experts, 0))
        values = values * smooth
    values = torch.where(filled[:, None], values, 0.0)
    is_int4 = quant_mode == _DYNAMIC_INT4
    scales = values.abs().amax(1) / (7.0 if is_int4 else 127.0)
    integers = rounded(values / scales[:, None], "int4" if is_int4 else "int8")
    return (pack_bytes(integers) if is_int4 else integers.to(torch.int8)), scales


@op.function
def body(b, call, x, expert_idx, scale, offset):
    attrs = call.attrs
    number, pads, capacity = attrs["expert_num"], attrs["drop_pad_mode"], attrs["expert_capacity"]
    start, end = attrs["active_expert_range"] or (0, number)
    experts = end - start

    def integer(value):
        return b.const(value, "int64")

    slots = body_size(b, expert_idx, 1)
    numbers = b.Reshape(b.Cast(expert_idx, to="int64"), [-1])
    inside = b.And(b.GreaterOrEqual(numbers, integer(start)), b.Less(numbers, integer(end)))
    keys = b.Where(inside, b.Sub(numbers, integer(start)), integer(experts))
    order = body_order_of(b, keys)
    sorted_keys = b.Gather(keys, order, axis=0)
    # One key of no expert more: the CPU provider's reductions keep the shape of an empty tensor.
    each = b.Unsqueeze(b.Concat(keys, integer([experts]), axis=0), [1])
    is_expert = b.Cast(b.Equal(each, integer(range(experts))), to="int64")
    counts = b.ReduceSum(is_expert, [0], keepdims=0)
    ends = b.CumSum(counts, integer(0))
    starts = b.Sub(ends, counts)
    places = body_numbers(b, body_size(b, numbers, 0))
    is_active = b.Less(places, b.ReduceSum(counts, [0], keepdims=0))
    targets, chosen = places, sorted_keys
    if pads:
        slot = integer(range(capacity))
        filled = b.Reshape(b.Less(slot, b.Unsqueeze(counts, [1])), [-1])
        source = b.Reshape(b.Add(b.Unsqueeze(starts, [1]), slot), [-1])
        rows = b.Gather(order, b.Where(filled, source, integer(0)), axis=0)
        chosen = integer([e for e in range(experts) for _ in range(capacity)])
        first = b.Gather(b.Concat(starts, integer([0]), axis=0), sorted_keys, axis=0)
        slot = b.Sub(places, first)
        place = b.Add(b.Mul(sorted_keys, integer(capacity)), slot)
        targets = b.Where(b.Less(slot, integer(capacity)), place, integer(-1))
    elif attrs["active_num"] > 0:
        rows, chosen, filled = (
            b.Slice(v, [0], [attrs["active_num"]]) for v in (order, sorted_keys, is_active)
        )
    else:
        rows, filled = order, is_active
    if attrs["row_idx_type"] == 0:
        targets = b.Where(is_active, targets, integer(-1))
        row_idx = b.ScatterElements(places, order, targets, axis=0)
    else:
        row_idx = b.Where(is_active, order, integer(-1))
    # A row of zeros behind the tokens is what rows without one have.
    zeros = b.ConstantOfShape(b.Concat(integer([1]), b.Slice(b.Shape(x), [1], [2]), axis=0))
    padded = b.Concat(x, b.Cast(zeros, to=call.dtype("x")), axis=0)
    tokens = b.Where(filled, b.Div(rows, slots), body_size(b, x, 0))
    expanded, scales = _body_quantised(
        b, call, b.Gather(padded, tokens, axis=0), scale, offset, tokens, chosen, filled
    )
    if pads:
        width = b.Slice(b.Shape(expanded), [1], [2])
        grid = b.Concat(integer([experts, capacity]), width, axis=0)
        expanded = b.Reshape(expanded, grid, allowzero=1)
    histogram = _body_histogram(b, attrs, counts, ends, start, experts)
    return expanded, b.Cast(row_idx, to="int32"), histogram, scales


def _body_histogram(b, attrs, counts, ends, start, experts):
    number = attrs["expert_num"]
    kind = 1 if attrs["drop_pad_mode"] else attrs["expert_tokens_num_type"]
    if not attrs["expert_tokens_num_flag"]:
        shape = [number, 2] if kind == 2 else [experts]
        return b.Cast(b.ConstantOfShape(b.const(shape, "int64")), to="int64")
    if kind < 2:
        return counts if kind == 1 else ends
    zero = b.const(0, "int64")
    order = body_order_of(b, b.Cast(b.Equal(counts, zero), to="int64"))
    found = b.Gather(counts, order, axis=0)
    ids = b.Where(b.Greater(found, zero), b.Add(order, b.const(start, "int64")), zero)
    pairs = b.Concat(b.Unsqueeze(ids, [1]), b.Unsqueeze(found, [1]), axis=1)
    return b.Pad(pairs, b.const([0, 0, number - experts, 0], "int64"), zero)


def _body_quantised(b, call, rows, scale, offset, tokens, experts, filled):
    mode = call.attrs["quant_mode"]
    no_scales = b.ConstantOfShape(b.Shape(filled))
    column = b.Unsqueeze(filled, [1])
    zero = b.const(0.0, "float32")
    if mode == _NONE:
        if scale is None:
            return rows, no_scales
        padded = b.Concat(scale, b.const([0.0], "float32"), axis=0)
        return rows, b.Gather(padded, tokens, axis=0)

    def half(value):
        return b.Cast(b.Cast(value, to="float16"), to="float32")

    def number(value):  # without tokens there may be none
        padded = b.Concat(value, b.const([0.0], "float32"), axis=0)
        return half(b.Gather(padded, b.const(0, "int64"), axis=0))

    if mode == _STATIC:
        sums = half(b.Mul(half(rows), number(scale)))
        if offset is not None:
            sums = half(b.Add(sums, number(offset)))
        values = b.Where(column, body_rounded(b, sums, "int8"), zero)
        return b.Cast(values, to="int8"), no_scales
    values = b.Cast(rows, to="float32")
    if scale is not None and call.rank("scale") == 2:
        # The last expert's scales stand for those of rows without one, which are zeros below.
        last = b.Sub(body_size(b, scale, 0), b.const(1, "int64"))
        values = b.Mul(values, b.Gather(scale, b.Min(experts, last), axis=0))
    values = b.Where(column, values, zero)
    top, name = (7.0, "int4") if mode == _DYNAMIC_INT4 else (127.0, "int8")
    scales = b.Div(b.ReduceMax(b.Abs(values), [1], keepdims=1), top)
    integers = body_rounded(b, b.Div(values, scales), name)
    # The CPU provider's reductions keep the shape of an empty tensor.
    scales = b.Reshape(scales, b.Shape(filled), allowzero=1)
    if mode == _DYNAMIC_INT4:
        return body_pack_bytes(b, b.Cast(integers, to="int64")), scales
    return b.Cast(integers, to="int8"), scales


op.samples(samples_of)
for _dtype in _ROWS:
    op.tolerance(
        _dtype, rtol=0, atol=0, reason="values are moved, or quantised by single operations"
    )

refusals(op)
