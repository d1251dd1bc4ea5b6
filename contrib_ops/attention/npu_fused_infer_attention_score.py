"""Inference attention, prefill and decode, over a key/value cache, with grouped query heads.

Source: torch_npu.npu_fused_infer_attention_score. Implemented is the decoder case: layouts with a
batch axis, masks in every sparse mode, position bias, per-batch lengths, log-sum-exp. Paged caches,
quantisation, separate rope tensors, padding sizes and shared prefixes are refused by name.

Where torch_npu leaves a point open, this holds:

- A query row that may see no key gives output 0 and log-sum-exp -inf; so do rows beyond
  actual_seq_lengths.
- With softmax_lse_flag False the second result is [0.0].
- Head sizes are any from 1 to 512, and the dtype may be float32 too.
- A compressed mask of sparse modes 2, 3 and 4 is checked by its shape only.
- Sparse mode 0 applies pre_tokens and next_tokens together with atten_mask, from the top left.
"""

from onnxruntime_npu.opdef import FLOATS, Sample, check, npu_op, torch

QUANT = ("float16", "bfloat16", "float32", "int64", "uint64")
MASKS = ("bool", "int8", "uint8")
UNIMPLEMENTED = (
    "dequant_scale1", "quant_scale1", "dequant_scale2", "quant_scale2", "quant_offset2",
    "antiquant_scale", "antiquant_offset", "key_antiquant_scale", "key_antiquant_offset",
    "value_antiquant_scale", "value_antiquant_offset", "block_table", "query_padding_size",
    "kv_padding_size", "key_shared_prefix", "value_shared_prefix", "actual_shared_prefix_len",
    "query_rope", "key_rope", "key_rope_antiquant_scale",
)  # fmt: skip

op = npu_op(
    "npu_fused_infer_attention_score(Tensor query, Tensor key, Tensor value, *, "
    "Tensor? pse_shift=None, Tensor? atten_mask=None, SymInt[]? actual_seq_lengths=None, "
    "SymInt[]? actual_seq_lengths_kv=None, Tensor? dequant_scale1=None, "
    "Tensor? quant_scale1=None, Tensor? dequant_scale2=None, Tensor? quant_scale2=None, "
    "Tensor? quant_offset2=None, Tensor? antiquant_scale=None, Tensor? antiquant_offset=None, "
    "Tensor? key_antiquant_scale=None, Tensor? key_antiquant_offset=None, "
    "Tensor? value_antiquant_scale=None, Tensor? value_antiquant_offset=None, "
    "Tensor? block_table=None, Tensor? query_padding_size=None, Tensor? kv_padding_size=None, "
    "Tensor? key_shared_prefix=None, Tensor? value_shared_prefix=None, "
    "SymInt[]? actual_shared_prefix_len=None, Tensor? query_rope=None, Tensor? key_rope=None, "
    "Tensor? key_rope_antiquant_scale=None, int num_heads=1, float scale=1., "
    'int pre_tokens=2147483647, int next_tokens=2147483647, str input_layout="BSH", '
    "int num_key_value_heads=0, int sparse_mode=0, int inner_precise=0, int block_size=0, "
    "int antiquant_mode=0, int key_antiquant_mode=0, int value_antiquant_mode=0, "
    "bool softmax_lse_flag=False) -> (Tensor, Tensor)",
    onnx="NPUFusedInferAttentionScore",
    outputs=["attention_out", "softmax_lse"],
    dtypes={
        "query": FLOATS,
        "key": FLOATS,
        "value": FLOATS,
        "pse_shift": FLOATS,
        "atten_mask": MASKS,
        "block_table": ["int32"],
        "query_padding_size": ["int64"],
        "kv_padding_size": ["int64"],
        "key_shared_prefix": FLOATS,
        "value_shared_prefix": FLOATS,
        "query_rope": FLOATS,
        "key_rope": FLOATS,
        "attention_out": FLOATS,
        "softmax_lse": ["float32"],
        **{name: QUANT for name in UNIMPLEMENTED if "quant" in name},
    },
)

# input_layout: axes of query, key and value, and axes of the result.
LAYOUTS = {
    "BSH": ("BSH", "BSH"),
    "BSND": ("BSND", "BSND"),
    "BNSD": ("BNSD", "BNSD"),
    "BNSD_BSND": ("BNSD", "BSND"),
    "BSH_BNSD": ("BSH", "BNSD"),
    "BSND_BNSD": ("BSND", "BNSD"),
    "BSH_NBSD": ("BSH", "NBSD"),
    "BSND_NBSD": ("BSND", "NBSD"),
    "BNSD_NBSD": ("BNSD", "NBSD"),
}
OTHER_LAYOUTS = ("TND", "NTD", "TND_NTD", "NTD_TND", "NSD")
COMPRESSED = 2048  # side of the square mask that stands for a pattern
MAX_HEAD_SIZE = 512


def require(condition, message):
    """Raise the operator's error unless the condition holds."""
    check(condition, f"[npu_fused_infer_attention_score] {message}")


def heads_apart(name, x, axes, layout, heads):
    """Return x as [B, N, S, D], after checking its shape."""
    shape = list(x.shape)
    form = "[B, S, N*D]" if axes == "BSH" else f"[{', '.join(axes)}]"
    require(
        x.dim() == len(axes),
        f"expected {name} of shape {form} for input_layout {layout}, got {shape}",
    )
    if axes == "BSH":
        require(
            shape[2] % heads == 0,
            f"expected the last axis of {name} to be a multiple of its {heads} heads, "
            f"got {shape[2]}",
        )
        x = x.unflatten(2, (heads, shape[2] // heads))
    if axes != "BNSD":
        x = x.transpose(1, 2)
    require(x.shape[1] == heads, f"expected {heads} heads in {name}, got {x.shape[1]} in {shape}")
    require(
        1 <= x.shape[3] <= MAX_HEAD_SIZE,
        f"expected a head size from 1 to {MAX_HEAD_SIZE} in {name}, got {x.shape[3]}",
    )
    return x


def heads_together(x, axes):
    """Return [B, N, S, D] with the axes of the output layout."""
    if axes == "BNSD":
        return x
    if axes == "NBSD":
        return x.transpose(0, 1).contiguous()
    x = x.transpose(1, 2).contiguous()
    return x.flatten(2) if axes == "BSH" else x


def lengths_per_batch(name, lengths, batch, limit, like):
    """Return the lengths as [B or 1, 1, 1, 1]; `limit` where there is no list."""
    if lengths is None:
        lengths = [limit]
    count = len(lengths)
    require(
        count in (1, batch) or count > batch,
        f"expected {name} with 1 or {batch} entries, got {count}",
    )
    lengths = list(lengths) if count == 1 else list(lengths)[:batch]
    for b, length in enumerate(lengths):
        require(
            0 <= length <= limit,
            f"expected {name} in [0, {limit}], got {length} for batch entry {b}",
        )
    return torch.tensor(lengths, dtype=torch.int64, device=like.device).view(-1, 1, 1, 1)


def is_compressed(mask):
    """Whether the mask has the shape that only names a pattern."""
    shape = list(mask.shape)
    square = len(shape) in (2, 3, 4) and shape[-2] == COMPRESSED and shape[-1] == COMPRESSED
    return square and all(n == 1 for n in shape[:-2])


def full_mask(mask, batch, rows, keys):
    """Return atten_mask as bool [B or 1, 1, Sq, Skv], after checking its shape."""
    shape = list(mask.shape)
    leading = shape[:-2] if rows != 1 or len(shape) != 2 else shape[:1]
    allowed = [(), (1,), (batch,), (1, 1), (batch, 1)]
    require(
        len(shape) >= 2
        and shape[-1] == keys
        and (shape[-2] == rows or (rows == 1 and len(shape) == 2))
        and tuple(leading) in allowed,
        f"expected atten_mask of shape [{rows}, {keys}], [1 or {batch}, {rows}, {keys}] or "
        f"[1 or {batch}, 1, {rows}, {keys}]{' or [B, Skv]' if rows == 1 else ''}, got {shape}",
    )
    return (mask != 0).reshape(leading[0] if leading else 1, 1, rows, keys)


@op.reference
def reference(
    query,
    key,
    value,
    pse_shift=None,
    atten_mask=None,
    actual_seq_lengths=None,
    actual_seq_lengths_kv=None,
    num_heads=1,
    scale=1.0,
    pre_tokens=2147483647,
    next_tokens=2147483647,
    input_layout="BSH",
    num_key_value_heads=0,
    sparse_mode=0,
    softmax_lse_flag=False,
    **others,
):
    """Return softmax(scale * Q K^T + pse_shift, masked) V in float32, and its log-sum-exp.

    query, key, value: by input_layout, of one dtype; value may have a head size of its own.
    pse_shift: [B or 1, N, >= Sq, >= Skv] of that dtype, added after scaling.
    atten_mask: bool, int8 or uint8, nonzero = masked. Sparse modes 0 and 1: [Sq, Skv],
    [B or 1, Sq, Skv] or [B or 1, 1, Sq, Skv]; a single query row also takes [B, Skv]. Modes 2, 3
    and 4: [2048, 2048] behind up to two axes of size 1.
    actual_seq_lengths, actual_seq_lengths_kv: one length, or one per batch entry.
    Result: the output layout with value's head size; [B, N, Sq, 1] float32 or [1].
    """
    for name in UNIMPLEMENTED:
        require(others.get(name) is None, f"the argument {name} is not implemented")
    require(input_layout not in OTHER_LAYOUTS, f"input_layout {input_layout} is not implemented")
    require(
        input_layout in LAYOUTS,
        "expected input_layout BSH, BSND, BNSD, BNSD_BSND or one with another output layout, "
        f"got '{input_layout}'",
    )
    kv_heads = num_key_value_heads or num_heads
    require(num_heads >= 1, f"expected num_heads >= 1, got {num_heads}")
    require(kv_heads >= 0, f"expected num_key_value_heads >= 0, got {kv_heads}")
    require(
        num_heads % kv_heads == 0,
        f"expected num_key_value_heads to divide num_heads {num_heads}, got {kv_heads}",
    )
    require(sparse_mode in range(5), f"expected sparse_mode 0, 1, 2, 3 or 4, got {sparse_mode}")
    axes, out_axes = LAYOUTS[input_layout]
    q = heads_apart("query", query, axes, input_layout, num_heads)
    k = heads_apart("key", key, axes, input_layout, kv_heads)
    v = heads_apart("value", value, axes, input_layout, kv_heads)
    batch, _, rows, size = q.shape
    keys = k.shape[2]
    require(
        query.dtype == key.dtype == value.dtype,
        "expected query, key and value of one dtype, "
        f"got {query.dtype}, {key.dtype} and {value.dtype}",
    )
    require(
        k.shape[0] == batch and v.shape[0] == batch,
        f"expected key and value of query's batch size {batch}, got {k.shape[0]} and {v.shape[0]}",
    )
    require(k.shape[3] == size, f"expected key of query's head size {size}, got {k.shape[3]}")
    require(v.shape[2] == keys, f"expected value of key's sequence length {keys}, got {v.shape[2]}")

    # A single query takes every key: what it may not see is said by lengths and atten_mask alone.
    decode = rows == 1
    query_lengths = lengths_per_batch(
        "actual_seq_lengths", None if decode else actual_seq_lengths, batch, rows, query
    )
    key_lengths = lengths_per_batch(
        "actual_seq_lengths_kv", actual_seq_lengths_kv, batch, keys, query
    )
    compressed = sparse_mode >= 2 and atten_mask is not None and is_compressed(atten_mask)
    require(
        sparse_mode < 2 or decode or compressed,
        f"expected the [2048, 2048] atten_mask with sparse_mode {sparse_mode}, "
        f"got {'none' if atten_mask is None else list(atten_mask.shape)}",
    )
    i = torch.arange(rows, device=query.device).view(-1, 1)
    j = torch.arange(keys, device=query.device).view(1, -1)
    masked = (i >= query_lengths) | (j >= key_lengths)
    offset = key_lengths - query_lengths
    if not decode:
        if sparse_mode == 0 and atten_mask is not None:
            masked = masked | (j < i - pre_tokens) | (j > i + next_tokens)
        elif sparse_mode == 2:
            masked = masked | (j > i)
        elif sparse_mode == 3:
            masked = masked | (j > i + offset)
        elif sparse_mode == 4:
            masked = masked | (j < i + offset - pre_tokens) | (j > i + offset + next_tokens)
    if atten_mask is not None and not compressed:
        masked = masked | full_mask(atten_mask, batch, rows, keys)

    compute = torch.float64 if query.dtype == torch.float64 else torch.float32
    group = num_heads // kv_heads
    k = k.to(compute).repeat_interleave(group, dim=1)
    # What lies beyond the lengths is no number to reckon with, not even times zero.
    v = v.to(compute).masked_fill((j >= key_lengths).transpose(2, 3), 0.0)
    v = v.repeat_interleave(group, dim=1)
    scores = q.to(compute) @ k.transpose(2, 3) * scale
    if pse_shift is not None:
        require(
            pse_shift.dtype == query.dtype,
            f"expected pse_shift of query's dtype {query.dtype}, got {pse_shift.dtype}",
        )
        shape = list(pse_shift.shape)
        require(
            len(shape) == 4
            and shape[0] in (1, batch)
            and shape[1] == num_heads
            and shape[2] >= rows
            and shape[3] >= keys,
            f"expected pse_shift of shape [1 or {batch}, {num_heads}, >= {rows}, >= {keys}], "
            f"got {shape}",
        )
        scores = scores + pse_shift[:, :, :rows, :keys].to(compute)
    scores = scores.masked_fill(masked, float("-inf"))
    lse = torch.logsumexp(scores, -1, keepdim=True)
    weights = torch.exp(scores - lse.masked_fill(lse == float("-inf"), 0.0))
    out = heads_together((weights @ v).to(query.dtype), out_axes)
    if not softmax_lse_flag:
        lse = torch.zeros(1, device=query.device)
    return out, lse.to(torch.float32)


@op.function
def body(b, call, query, key, value, pse_shift, atten_mask, q_lengths, kv_lengths, *_):
    a = call.attrs
    heads = a["num_heads"]
    kv_heads = a["num_key_value_heads"] or heads
    axes, out_axes = LAYOUTS[a["input_layout"]]
    mode = a["sparse_mode"]
    infinity = b.const(float("-inf"), "float32")

    def shape_of(x, start, end):
        return b.Shape(x, start=start, end=end)

    def join(*parts):
        return b.Concat(
            *[b.const([p], "int64") if isinstance(p, int) else p for p in parts], axis=0
        )

    def reshape(x, *parts):
        return b.Reshape(x, join(*parts), allowzero=1)

    def apart(x, n):
        x = b.Cast(x, to="float32")
        if axes == "BSH":
            size = b.Div(shape_of(x, 2, 3), n)
            x = reshape(x, shape_of(x, 0, 2), n, size)
        return x if axes == "BNSD" else b.Transpose(x, perm=[0, 2, 1, 3])

    q, k, v = apart(query, heads), apart(key, kv_heads), apart(value, kv_heads)
    batch, rows, keys = shape_of(q, 0, 1), shape_of(q, 2, 3), shape_of(k, 2, 3)
    many = b.Greater(rows, 1)  # a single query ignores patterns and its own length

    zero = b.const(0, "int64")
    one = b.const(1, "int64")
    i = b.Unsqueeze(b.Range(zero, b.Squeeze(rows), one), [1])
    j = b.Unsqueeze(b.Range(zero, b.Squeeze(keys), one), [0])

    def per_batch(lengths, limit):
        if lengths is None:
            return b.Unsqueeze(limit, [1, 2, 3])
        return b.Unsqueeze(b.Slice(lengths, [0], batch, [0]), [1, 2, 3])

    key_length = per_batch(kv_lengths, keys)
    query_length = per_batch(q_lengths, rows)
    if q_lengths is not None:
        query_length = b.Where(many, query_length, 1)
    masks = []
    if kv_lengths is not None:
        masks.append(b.GreaterOrEqual(j, key_length))
    if q_lengths is not None:
        masks.append(b.GreaterOrEqual(i, query_length))
    offset = b.Sub(key_length, query_length)
    pattern = []
    if mode == 0 and atten_mask is not None:
        pattern.append(b.Less(j, b.Sub(i, a["pre_tokens"])))
        pattern.append(b.Greater(j, b.Add(i, a["next_tokens"])))
    elif mode == 2:
        pattern.append(b.Greater(j, i))
    elif mode == 3:
        pattern.append(b.Greater(j, b.Add(i, offset)))
    elif mode == 4:
        pattern.append(b.Less(j, b.Add(i, b.Sub(offset, a["pre_tokens"]))))
        pattern.append(b.Greater(j, b.Add(i, b.Add(offset, a["next_tokens"]))))
    masks += [b.And(many, p) for p in pattern]
    if atten_mask is not None:
        flat = b.Reshape(b.Cast(atten_mask, to="bool"), [-1])
        size = b.Shape(flat)
        plane = b.Mul(rows, keys)
        # Empty planes do not tell how many there are; one is as good as any.
        planes = b.Where(b.Equal(size, 0), 1, b.Div(size, b.Max(plane, b.const([1], "int64"))))
        if mode < 2:
            masks.append(reshape(flat, planes, 1, rows, keys))
        else:
            # A compressed mask says nothing more: one element stands in, and counts for nothing.
            sides = b.ReduceMax(b.Abs(b.Sub(b.Shape(atten_mask, start=-2), COMPRESSED)), [0])
            compressed = b.And(b.Equal(size, COMPRESSED**2), b.Equal(sides, 0))
            full = b.Not(b.Or(many, compressed))
            flat = b.Slice(flat, [0], b.Where(full, size, 1), [0])
            flat = reshape(flat, b.Where(full, planes, 1), 1, 1, b.Where(full, keys, 1))
            masks.append(b.And(full, flat))
    folded = join(batch, kv_heads, b.Mul(rows, heads // kv_heads))
    scores = b.MatMul(reshape(q, folded, shape_of(q, 3, 4)), b.Transpose(k, perm=[0, 1, 3, 2]))
    scores = b.Mul(reshape(scores, batch, heads, rows, keys), a["scale"])
    if pse_shift is not None:
        ends = join(rows, keys)
        shift = b.Slice(b.Cast(pse_shift, to="float32"), [0, 0], ends, [2, 3])
        scores = b.Add(scores, shift)
    for masked in masks:
        scores = b.Where(masked, infinity, scores)
    maximum = b.ReduceMax(scores, [3], keepdims=1)
    maximum = b.Where(b.Equal(maximum, infinity), 0.0, maximum)
    weights = b.Exp(b.Sub(scores, maximum))
    total = b.ReduceSum(weights, [3], keepdims=1)
    if kv_lengths is not None:
        v = b.Where(b.GreaterOrEqual(b.Transpose(j, perm=[1, 0]), key_length), 0.0, v)
    out = b.MatMul(reshape(weights, folded, keys), v)
    out = reshape(out, batch, heads, rows, shape_of(v, 3, 4))
    out = b.Div(out, b.Where(b.Equal(total, 0.0), 1.0, total))
    out = b.Cast(out, to=call.dtype("query"))
    if out_axes == "NBSD":
        out = b.Transpose(out, perm=[1, 0, 2, 3])
    elif out_axes != "BNSD":
        out = b.Transpose(out, perm=[0, 2, 1, 3])
    if out_axes == "BSH":
        out = reshape(out, batch, rows, b.Mul(shape_of(v, 3, 4), heads))
    if a["softmax_lse_flag"]:
        return out, b.Add(maximum, b.Log(total))
    return out, b.const([0.0], "float32")


op.tolerance(
    "bfloat16",
    rtol=8e-3,
    atol=8e-3,
    reason="weights are rounded before the second product (2^-9 relative each), as on the device, "
    "and the result once (2^-9)",
)


def compressed(make):
    """Return the mask that sparse modes 2, 3 and 4 ask for."""
    return torch.ones(COMPRESSED, COMPRESSED, dtype=torch.bool).triu(1)


@op.samples
def samples(make):
    yield Sample(
        make.tensor([[[[1.0, 0.0], [0.0, 1.0]]]]),
        make.tensor([[[[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]]]]),
        make.tensor([[[[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]]]),
        atten_mask=compressed(make),
        input_layout="BNSD",
        scale=0.5,
        sparse_mode=3,
        softmax_lse_flag=True,
        id="catalogue",
        expect=None
        if make.dtype != "float32"
        else [[[[[1.75508, 2.75508], [3.30191, 4.30191]]]], [[[[0.974077], [1.45802]]]]],
    )
    bsnd = {"input_layout": "BSND", "num_heads": 6, "num_key_value_heads": 2, "scale": 0.25}
    bnsd = {"input_layout": "BNSD", "num_heads": 6, "num_key_value_heads": 2, "scale": 0.25}

    # Prefill.
    qkv = make(2, 37, 96), make(2, 37, 32), make(2, 37, 32)
    heads = {"num_heads": 6, "num_key_value_heads": 2, "scale": 0.25}
    yield Sample(*qkv, **heads, id="bsh")
    yield Sample(*qkv, **heads, input_layout="BSH_NBSD", softmax_lse_flag=True, id="bsh_nbsd")
    qkv = make(2, 37, 6, 16), make(2, 37, 2, 16), make(2, 37, 2, 16)
    causal = {"sparse_mode": 3, "atten_mask": compressed(make)}
    yield Sample(*qkv, **bsnd, **causal, softmax_lse_flag=True, id="bsnd_causal")
    qkv = make(1, 6, 150, 16), make(1, 2, 150, 16), make(1, 2, 150, 16)
    yield Sample(*qkv, **bnsd, **causal, id="bnsd_causal")
    qkv = make(2, 6, 20, 16), make(2, 2, 133, 16), make(2, 2, 133, 32)
    yield Sample(*qkv, **bnsd, **causal, id="chunk_behind_a_past")
    yield Sample(
        *qkv, **{**bnsd, "input_layout": "BNSD_BSND"}, sparse_mode=4, pre_tokens=50, next_tokens=3,
        atten_mask=compressed(make)[None], id="band",
    )  # fmt: skip
    yield Sample(*qkv, **bnsd, sparse_mode=2, atten_mask=compressed(make)[None, None], id="left_up")
    yield Sample(
        *qkv, **bnsd, **causal, actual_seq_lengths=[20, 7], actual_seq_lengths_kv=[133, 64],
        softmax_lse_flag=True, id="lengths",
    )  # fmt: skip
    yield Sample(
        *qkv, **bnsd, **causal, actual_seq_lengths_kv=[9], softmax_lse_flag=True,
        id="rows_without_keys",
    )  # fmt: skip
    yield Sample(*qkv, **bnsd, atten_mask=make.bools(2, 1, 20, 133), id="mask_per_batch")
    yield Sample(
        *qkv,
        **bnsd,
        atten_mask=make.bools(20, 133),
        pre_tokens=5,
        next_tokens=40,
        id="mask_and_band",
    )
    yield Sample(
        *qkv, **bnsd, sparse_mode=1, atten_mask=make.ints(1, 20, 133, low=0, high=2, dtype="int8"),
        pse_shift=make(1, 6, 20, 133), id="mask_and_bias",
    )  # fmt: skip
    yield Sample(*qkv, **bnsd, pse_shift=make(2, 6, 32, 144), id="larger_bias")
    yield Sample(
        *qkv, **bnsd, sparse_mode=1, atten_mask=torch.ones(2, 1, 20, 133, dtype=torch.bool),
        softmax_lse_flag=True, id="all_masked",
    )  # fmt: skip
    yield Sample(make(1, 9, 3, 192), make(1, 9, 3, 192), make(1, 9, 3, 128), num_heads=3,
                 input_layout="BSND", scale=0.07, id="value_head_size")  # fmt: skip
    yield Sample(make(1, 4, 16), make(1, 4, 16), make(1, 4, 16), id="one_head_default_scale")

    # Decode.
    q = make(2, 1, 6, 16)
    cache = make(2, 70, 2, 16), make(2, 70, 2, 16)
    yield Sample(q, *cache, **bsnd, softmax_lse_flag=True, id="decode")
    yield Sample(q, *cache, **bsnd, **causal, id="decode_ignores_pattern")
    yield Sample(q, *cache, **bsnd, atten_mask=make.bools(2, 70), id="decode_mask")
    yield Sample(q, *cache, **bsnd, sparse_mode=3, atten_mask=make.bools(2, 1, 1, 70),
                 id="decode_mask_with_pattern")  # fmt: skip
    yield Sample(q, *cache, **bsnd, actual_seq_lengths=[1, 1], actual_seq_lengths_kv=[70, 31],
                 id="decode_lengths")  # fmt: skip
    cache = make(2, 2, 300, 16), make(2, 2, 300, 16)
    yield Sample(make(2, 6, 1, 16), *cache, **bnsd, actual_seq_lengths_kv=[257, 0],
                 softmax_lse_flag=True, id="static_cache")  # fmt: skip
    yield Sample(make(1, 1, 14 * 64), make(1, 513, 128), make(1, 513, 128), num_heads=14,
                 num_key_value_heads=2, scale=0.125, id="decode_bsh")  # fmt: skip
    yield Sample(make(1, 1, 1, 8), make(1, 1, 1, 8), make(1, 1, 1, 8), input_layout="BNSD",
                 id="one_token")  # fmt: skip

    # Nothing.
    yield Sample(make(2, 0, 8), make(2, 3, 8), make(2, 3, 8), id="no_queries")
    yield Sample(make(2, 3, 8), make(2, 0, 8), make(2, 0, 8), softmax_lse_flag=True, id="no_keys")
    yield Sample(make(0, 3, 8), make(0, 3, 8), make(0, 3, 8), id="no_batch")


def refuse(text, id, *shapes, needs_values=False, **arguments):
    """State a call with these shapes that must fail with the text."""
    shapes = shapes or ((2, 3, 4, 16), (2, 8, 2, 16), (2, 8, 2, 16))

    def call(make):
        kwargs = {"input_layout": "BSND", "num_heads": 4, "num_key_value_heads": 2, **arguments}
        kwargs = {k: v(make) if callable(v) else v for k, v in kwargs.items()}
        return Sample(*(make(*s) for s in shapes), **kwargs)

    op.errors(
        call,
        match=r"\[npu_fused_infer_attention_score\] expected " + text,
        needs_values=needs_values,
        id=id,
    )


refuse("input_layout BSH, .* got 'BDSN'", "layout", input_layout="BDSN")
refuse("num_key_value_heads to divide num_heads 4, got 3", "groups", num_key_value_heads=3)
refuse("num_heads >= 1, got 0", "no_heads", num_heads=0)
refuse("sparse_mode 0, 1, 2, 3 or 4, got 5", "sparse_mode", sparse_mode=5)
refuse(r"query of shape \[B, S, N, D\]", "rank", (2, 3, 64), (2, 8, 2, 16), (2, 8, 2, 16))
refuse("4 heads in query, got 5", "heads", (2, 3, 5, 16), (2, 8, 2, 16), (2, 8, 2, 16))
refuse(
    "the last axis of query to be a multiple of its 4 heads, got 66",
    "hidden_size",
    (2, 3, 66),
    (2, 8, 32),
    (2, 8, 32),
    input_layout="BSH",
)
refuse("key of query's head size 16, got 8", "head_size", (2, 3, 4, 16), (2, 8, 2, 8), (2, 8, 2, 8))
refuse(
    "a head size from 1 to 512 in value, got 513",
    "large_head_size",
    (2, 3, 4, 16),
    (2, 8, 2, 16),
    (2, 8, 2, 513),
)
refuse(
    "value of key's sequence length 8, got 7",
    "value_length",
    (2, 3, 4, 16),
    (2, 8, 2, 16),
    (2, 7, 2, 16),
)
refuse(
    "key and value of query's batch size 2, got 1",
    "batch",
    (2, 3, 4, 16),
    (1, 8, 2, 16),
    (2, 8, 2, 16),
)
refuse(r"atten_mask of shape .* got \[3, 9\]", "mask", atten_mask=lambda make: make.bools(3, 9))
refuse(
    r"the \[2048, 2048\] atten_mask with sparse_mode 3, got \[3, 8\]",
    "pattern_mask",
    atten_mask=lambda make: make.bools(3, 8),
    sparse_mode=3,
)
refuse(r"the \[2048, 2048\] atten_mask with sparse_mode 4, got none", "no_mask", sparse_mode=4)
refuse(
    r"pse_shift of shape .* got \[1, 4, 3, 7\]",
    "bias",
    pse_shift=lambda make: make(1, 4, 3, 7),
)
refuse(
    r"actual_seq_lengths_kv in \[0, 8\], got 9 for batch entry 1",
    "beyond_the_cache",
    actual_seq_lengths_kv=[8, 9],
)
refuse(r"actual_seq_lengths in \[0, 3\], got -1", "negative_length", actual_seq_lengths=[-1, 2])
refuse(
    "actual_seq_lengths_kv with 1 or 3 entries, got 2",
    "lengths",
    (3, 3, 4, 16),
    (3, 8, 2, 16),
    (3, 8, 2, 16),
    actual_seq_lengths_kv=[8, 8],
)
op.errors(
    lambda make: Sample(make(1, 2, 8), make(1, 2, 8, dtype="float16"), make(1, 2, 8)),
    match=r"\[npu_fused_infer_attention_score\] expected query, key and value of one dtype, got .*"
    r"float32, .*float16 and .*float32",
    id="dtypes",
)
