"""Attention: of ONNX 23, and written out by an exporter."""

from __future__ import annotations

from typing import Any

import onnx_ir as ir

from .rule import (
    MICROSOFT,
    Nodes,
    Refused,
    Rule,
    attribute,
    given,
    operands,
    producer,
    rank,
    require,
    scalar,
    static_size,
)

FAR_BELOW = -1e4  # additive masks hide with less than that


class StandardAttention(Rule):
    """``Attention`` of ONNX 23 over heads [B, N, S, D], with a mask, causal or neither."""

    def pattern(self, op: Any, query: Any, key: Any, value: Any) -> Any:
        """Match one node."""
        return op.Attention(query, key, value, _allow_other_inputs=True, _outputs=["y"])

    def build(
        self, nodes: Nodes, query: ir.Value, key: ir.Value, value: ir.Value, y: ir.Value
    ) -> Any:
        """Attend with the keys' own number of heads."""
        node = y.producer()
        assert node is not None
        require(len(node.outputs) == 1 and given(node, 4) is None, "it has a cache of its own")
        require(given(node, 6) is None, "it has lengths")
        require(attribute(node, "softcap", 0.0) == 0.0, "its scores are capped")
        for side in ("left", "right"):
            require(attribute(node, f"{side}_window_size", -1) < 0, "it has a window")
        require(rank(query) == rank(key) == 4, "its heads are not on an axis of their own")
        hidden, mask, added = None, given(node, 3), None
        if mask is not None and mask.dtype == ir.DataType.BOOL:
            hidden = _not(nodes, mask)
        elif mask is not None:
            added = mask
        if attribute(node, "is_causal", 0):
            require(mask is None, "it is causal and has a mask")
            hidden = later_keys(nodes, query, key)
        return attend(nodes, query, key, value, hidden, attribute(node, "scale", None), added)


def _not(nodes: Nodes, mask: ir.Value) -> ir.Value:
    hidden: ir.Value = nodes.onnx("Not", mask)
    hidden.shape = mask.shape
    return hidden


def later_keys(
    nodes: Nodes, query: ir.Value, key: ir.Value, past: ir.Value | None = None
) -> ir.Value:
    """Return [S, T], true where key j > query i + P; ``past`` are P keys, or none."""
    zero, one = (nodes.constant(v) for v in (0, 1))
    first, length = zero, nodes.size(query, 2)
    if past is not None:
        held = nodes.size(past, 2)
        first, length = nodes.onnx("Squeeze", held, [0]), nodes.onnx("Add", held, length)
    places = []
    for begin, end, axis in ((first, length, [1]), (zero, nodes.size(key, 2), [0])):
        count = nodes.onnx("Squeeze", end, [0])
        places.append(nodes.onnx("Unsqueeze", nodes.onnx("Range", begin, count, one), axis))
    later: ir.Value = nodes.onnx("Greater", places[1], places[0], dtype=ir.DataType.BOOL)
    later.shape = ir.Shape([None, None])
    return later


class WrittenOutAttention(Rule):
    """``softmax(scale * q @ k.T + mask) @ v`` as torch.onnx writes it."""

    def pattern(self, op: Any, weights: Any, value: Any) -> Any:
        """Match the last matmul."""
        return op.MatMul(weights, value, _outputs=["y"])

    def build(self, nodes: Nodes, weights: ir.Value, value: ir.Value, **_: ir.Value) -> Any:
        """Attend with the keys' own number of heads."""
        softmax = producer(_before_guard(weights), "Softmax")
        if softmax is None or rank(value) != 4:
            return None
        require(attribute(softmax, "axis", -1) in (-1, 3), "its weights are of another axis")
        scores, mask = _filled(softmax.inputs[0])
        bias = found = None
        for product, other in [(scores, None), *operands(scores, "Add")]:
            before, inner = _filled(product) if mask is None else (product, mask)
            if (found := _scores(before)) is not None:
                bias, mask = other, inner
                break
        if found is None:
            raise Refused("its scores are of an unknown form")
        query, transposed, scale, turned = found
        require(rank(query) == 4, "its heads are not on an axis of their own")
        key = _untransposed(nodes, transposed) if turned else transposed
        require(key is not None, "its keys are not transposed in a known way")
        assert key is not None
        hidden = None
        if mask is not None:
            hidden = mask[0] if mask[1] else _not(nodes, mask[0])
        elif bias is not None:
            hidden, visible = _hidden_by(bias)
            if hidden is None and visible is not None:
                hidden = _not(nodes, visible)
            if hidden is not None:
                bias = None
        return attend(nodes, query, key, value, hidden, scale, bias)


def _before_guard(weights: ir.Value) -> ir.Value | None:
    """Return the softmax's result where zeros replace the rows that see no key.

    torch.onnx tests for NaN, transformers' exporter counts the keys; the operator gives zeros, too.
    """
    where = producer(weights, "Where")
    if where is None or scalar(where.inputs[1]) != 0.0:
        return weights
    test, plain = where.inputs[0], where.inputs[2]
    is_nan = producer(test, "IsNaN")
    less = producer(test, "Less")
    count = None if less is None else producer(less.inputs[0], "ReduceSum")
    cast = None if count is None else producer(count.inputs[0], "Cast")
    softmax = producer(plain, "Softmax")
    counted = (
        less is not None
        and scalar(less.inputs[1]) == 1.0
        and cast is not None
        and softmax is not None
        and any(_hidden_by(bias)[1] is cast.inputs[0] for _, bias in _sums(softmax.inputs[0]))
    )
    guarded = counted or (is_nan is not None and is_nan.inputs[0] is plain)
    return plain if guarded else weights


def _sums(value: ir.Value | None) -> list[tuple[ir.Value, ir.Value]]:
    return [*operands(value, "Add")]


def _filled(value: ir.Value | None) -> tuple[ir.Value | None, tuple[ir.Value, bool] | None]:
    """Return scores before some became a number far below, and the mask: true there, or else."""
    where = producer(value, "Where")
    if where is not None:
        mask, *others = where.inputs
        assert mask is not None
        for i, number in enumerate(scalar(other) for other in others):
            if number is not None and number <= FAR_BELOW:
                return others[1 - i], (mask, i == 0)
    return value, None


def _scores(value: ir.Value | None) -> tuple[ir.Value, ir.Value, float, bool] | None:
    """Return (query, key, scale, whether the key is transposed) of a product.

    It is scaled before or after, or by its own node, which onnxruntime's optimizer writes.
    """
    value, after = _unscaled(value)
    product = producer(value, "MatMul") or producer(value, "FusedMatMul", MICROSOFT)
    if product is None:
        return None
    if any(attribute(product, name, 0) for name in ("transA", "transBatchA", "transBatchB")):
        return None
    (query, of_query), (key, of_key) = (_unscaled(operand) for operand in product.inputs)
    if query is None or key is None:
        return None
    scale = after * of_query * of_key * attribute(product, "alpha", 1.0)
    return query, key, scale, not attribute(product, "transB", 0)


def _unscaled(value: ir.Value | None) -> tuple[ir.Value | None, float]:
    """Return a value before its multiplication by a constant, and the factor."""
    for source, factor in operands(value, "Mul"):
        if (number := scalar(factor)) is not None:
            return source, number
    division = producer(value, "Div")
    divisor = None if division is None else scalar(division.inputs[1])
    if division is not None and divisor:
        return division.inputs[0], 1 / divisor
    return value, 1.0


def attend(
    nodes: Nodes,
    query: ir.Value,
    key: ir.Value,
    value: ir.Value,
    hidden: ir.Value | None,
    scale: float | None,
    added: ir.Value | None = None,
) -> ir.Value:
    """Return [B, N, S, D] of queries [B, N, S, D] over keys and values [B, Nkv, T, D].

    ``hidden`` is true where a query does not see a key, ``added`` is a float that is added to the
    scaled scores; both broadcast to the scores.
    """
    heads, size = static_size(query, 1), static_size(query, 3)
    require(heads is not None and size is not None, "its number or size of heads is unknown")
    assert heads is not None and size is not None
    if hidden is not None:
        alike = rank(hidden) == 2 or (rank(hidden) == 4 and static_size(hidden, 1) == 1)
        require(alike, "its mask differs between heads")
        if static_size(hidden, -2) in (1, None):
            ones = [1] * ((rank(hidden) or 0) - 2)
            target = nodes.joined_sizes(*ones, nodes.size(query, 2), 1)
            hidden = nodes.onnx("Expand", hidden, target)
    key, value = _ungrouped(key), _ungrouped(value)
    kv_heads = static_size(key, 1)
    require(kv_heads is not None, "its number of key heads is unknown")
    require(kv_heads == static_size(value, 1), "its keys and values have other numbers of heads")
    assert kv_heads is not None
    require(heads % kv_heads == 0, "its queries are broadcast to its heads of keys")
    require(not _batches_differ(query, key, value), "it is broadcast to several rows")
    require(query.dtype is not None, "its type is unknown")
    return nodes.npu(
        "npu_fused_infer_attention_score",
        query,
        key,
        value,
        atten_mask=hidden,
        pse_shift=None if added is None else shifted(nodes, added, query, heads, key),
        num_heads=heads,
        num_key_value_heads=kv_heads,
        scale=size**-0.5 if scale is None else scale,
        input_layout="BNSD",
        sparse_mode=0 if hidden is None else 1,
    )[0]


def _batches_differ(*values: ir.Value) -> bool:
    """Return whether the file states several batch sizes, of which one can only be 1."""
    sizes = [value.shape[0] for value in values if value.shape]
    named = {size for size in sizes if isinstance(size, int) or size.value is not None}
    numbers = {size for size in named if isinstance(size, int)}
    return len(numbers) > 1 or (1 in numbers and len(named) > 1)


def shifted(nodes: Nodes, added: ir.Value, query: ir.Value, heads: int, key: ir.Value) -> ir.Value:
    """Return what is added to the scores as the operator takes it, [B or 1, N, S, T]."""
    require((rank(added) or 5) <= 4, "the rank of what is added to its scores is unknown")
    assert query.dtype is not None
    sizes = nodes.joined_sizes(1, heads, nodes.size(query, 2), nodes.size(key, 2))
    made: ir.Value = nodes.onnx("Expand", nodes.cast(added, query.dtype), sizes)
    return made


def _ungrouped(value: ir.Value) -> ir.Value:
    """Return heads [B, Nkv, T, D] before an exporter repeated each for its group of queries."""
    reshape = producer(value, "Reshape")
    expand = producer(reshape.inputs[0], "Expand") if reshape is not None else None
    unsqueeze = producer(expand.inputs[0], "Unsqueeze") if expand is not None else None
    source = unsqueeze.inputs[0] if unsqueeze is not None else None
    if source is None or reshape is None or expand is None or unsqueeze is None:
        return value
    axes = ir.convenience.get_const_tensor(unsqueeze.inputs[1]) if unsqueeze.inputs[1] else None
    expanded = expand.outputs[0]
    heads, repeats = static_size(source, 1), static_size(expanded, 2)
    repeats_heads = (
        rank(source) == 4
        and rank(expanded) == 5
        and axes is not None
        and axes.numpy().tolist() == [2]
        and heads is not None
        and repeats is not None
        and static_size(expanded, 1) == heads
        and static_size(value, 1) == heads * repeats
        and static_size(value, 3) == static_size(source, 3)
    )
    return source if repeats_heads else value


def _untransposed(nodes: Nodes, value: ir.Value) -> ir.Value | None:
    """Return keys [B, N, T, D] of which a value is [B, N, D, T]."""
    transpose = producer(value, "Transpose")
    if transpose is not None and list(attribute(transpose, "perm", ())) == [0, 1, 3, 2]:
        return transpose.inputs[0]
    if transpose is not None and list(attribute(transpose, "perm", ())) == [0, 2, 3, 1]:
        # Of [B, T, N, D]: torch's older exporter joins the transposition that moves the heads.
        heads: ir.Value = nodes.onnx("Transpose", transpose.inputs[0], perm=[0, 2, 1, 3])
        if value.shape is not None:
            heads.shape = ir.Shape([value.shape[axis] for axis in (0, 1, 3, 2)])
        return heads
    # torch.onnx's: to three axes, transposed, and back to four.
    back = producer(value, "Reshape")
    transpose = producer(back.inputs[0], "Transpose") if back is not None else None
    if back is None or transpose is None or list(attribute(transpose, "perm", ())) != [0, 2, 1]:
        return None
    flat = producer(transpose.inputs[0], "Reshape")
    source = flat.inputs[0] if flat is not None else None
    if source is None or flat is None or rank(source) != 4:
        return None
    if _moved(source, flat.outputs[0], value):
        return source
    three, four = (producer(node.inputs[1], "Concat") for node in (flat, back))
    if three is None or four is None or len(three.inputs) != 3 or len(four.inputs) != 3:
        return None
    leading, rows, columns = four.inputs
    kept = (
        [int(v) for v in _numbers(three.inputs[0])] == [-1]
        and three.inputs[1] is columns
        and three.inputs[2] is rows
        and _sizes_of(leading, source) == (0, 2)
        and _sizes_of(columns, source) == (2, 3)
        and _sizes_of(rows, source) == (3, 4)
    )
    return source if kept else None


def _moved(source: ir.Value, flat: ir.Value, back: ir.Value) -> bool:
    """Return whether the shapes tell that [B, N, T, D] became [B * N, T, D], and [B, N, D, T]."""
    if source.shape is None or flat.shape is None or back.shape is None or len(back.shape) != 4:
        return False
    batch, heads, rows, columns = source.shape
    known = (isinstance(size, int) or size.value is not None for size in source.shape)
    return (
        all(known)
        and list(flat.shape)[1:] == [rows, columns]
        and list(back.shape) == [batch, heads, columns, rows]
    )


def _numbers(value: ir.Value | None) -> list[int]:
    tensor = ir.convenience.get_const_tensor(value) if value is not None else None
    return [] if tensor is None else [int(v) for v in tensor.numpy().reshape(-1)]


def _sizes_of(value: ir.Value | None, source: ir.Value) -> tuple[int, int] | None:
    """Return (begin, end) if a value is that slice of a 4-D value's shape."""
    node = producer(value, "Slice")
    shape = producer(node.inputs[0], "Shape") if node is not None else None
    if node is None or shape is None or shape.inputs[0] is not source:
        return None
    whole = attribute(shape, "start", 0) == 0 and attribute(shape, "end", None) is None
    begin, end = _numbers(node.inputs[1]), _numbers(node.inputs[2])
    if (
        not whole
        or len(begin) != 1
        or len(end) != 1
        or (given(node, 4) and _numbers(given(node, 4)) != [1])
    ):
        return None
    bounds = range(4)[slice(begin[0], end[0])]
    return bounds.start, bounds.stop


def _hidden_by(bias: ir.Value) -> tuple[ir.Value | None, ir.Value | None]:
    """Return what an additive mask was made of: (hidden keys, visible keys), booleans or None."""
    where = producer(bias, "Where")
    if where is not None:
        shown, number = scalar(where.inputs[1]), scalar(where.inputs[2])
        if shown == 0.0 and number is not None and number <= FAR_BELOW:
            return None, where.inputs[0]
    for flags, factor in operands(bias, "Mul"):
        number, cast = scalar(factor), producer(flags, "Cast")
        if number is None or number > FAR_BELOW or cast is None:
            continue
        hidden = cast.inputs[0]
        if hidden is not None and hidden.dtype == ir.DataType.BOOL:
            negated = producer(hidden, "Not")
            return hidden, None if negated is None else negated.inputs[0]
    return None, None


def rules() -> list[Rule]:
    """Return the rules of this file."""
    return [StandardAttention(), WrittenOutAttention("attention")]
