"""Inference attention, prefill and decode, over a key/value cache, with grouped query heads.

Source: torch_npu.npu_fused_infer_attention_score. Implemented are float operands in all layouts,
contiguous and paged caches, rope parts in tensors of their own, masks in every sparse mode,
position bias, lengths and log-sum-exp. Quantisation, padding sizes, shared prefixes and caches in
NZ blocks are refused by name.

Where torch_npu leaves a point open, this holds:

- A query row that may see no key gives output 0 and log-sum-exp -inf; so do rows beyond
  actual_seq_lengths.
- With softmax_lse_flag False the second result is [0.0].
- Head sizes are any from 1 to 512, and the dtype may be float32 too.
- A compressed mask of sparse modes 2, 3 and 4 is checked by its shape only.
- Sparse mode 0 applies pre_tokens and next_tokens together with atten_mask, from the top left.
- T layouts need both lists of lengths, and take neither pse_shift nor a full atten_mask.
- Entries of block_table behind a sequence's length are never looked at.
"""

from onnxruntime_npu.opdef import FLOATS, Sample, check, npu_op, torch

QUANT = ("float16", "bfloat16", "float32", "int64", "uint64")
MASKS = ("bool", "int8", "uint8")
UNIMPLEMENTED = (
    "dequant_scale1", "quant_scale1", "dequant_scale2", "quant_scale2", "quant_offset2",
    "antiquant_scale", "antiquant_offset", "key_antiquant_scale", "key_antiquant_offset",
    "value_antiquant_scale", "value_antiquant_offset", "query_padding_size", "kv_padding_size",
    "key_shared_prefix", "value_shared_prefix", "actual_shared_prefix_len",
    "key_rope_antiquant_scale",
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
    "TND": ("TND", "TND"),
    "NTD": ("NTD", "NTD"),
    "TND_NTD": ("TND", "NTD"),
    "NTD_TND": ("NTD", "TND"),
}
COMPRESSED = 2048  # side of the square mask that stands for a pattern
MAX_HEAD_SIZE = 512


def require(condition, message):
    """Raise the operator's error unless the condition holds."""
    check(condition, f"[npu_fused_infer_attention_score] {message}")


def check_heads(name, x, heads):
    """Check [B, N, S, D]."""
    require(x.shape[1] == heads, f"expected {heads} heads in {name}, got {x.shape[1]}")
    require(
        1 <= x.shape[3] <= MAX_HEAD_SIZE,
        f"expected a head size from 1 to {MAX_HEAD_SIZE} in {name}, got {x.shape[3]}",
    )
    return x


def heads_apart(name, x, axes, layout, heads):
    """Return x as [B, N, S, D], after checking its shape; packed sequences are one batch entry."""
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
    if axes in ("BSH", "BSND"):
        x = x.transpose(1, 2)
    elif axes == "TND":
        x = x.transpose(0, 1)[None]
    elif axes == "NTD":
        x = x[None]
    return check_heads(name, x, heads)


def heads_together(x, axes):
    """Return [B, N, S, D] with the axes of the output layout."""
    if axes == "NBSD":
        x = x.transpose(0, 1)
    elif axes == "NTD":
        x = x[0]
    elif axes == "TND":
        x = x[0].transpose(0, 1)
    elif axes != "BNSD":
        x = x.transpose(1, 2)
    x = x.contiguous()
    return x.flatten(2) if axes == "BSH" else x


def from_pages(name, cache, table, block_size, heads):
    """Return the rows of a paged cache as [B, N, S, D], S being what the table has room for."""
    shape = list(cache.shape)
    require(
        cache.dim() in (3, 4),
        f"expected {name} with block_table of shape [blocks, block_size, N*D] or "
        f"[blocks, N, block_size, D], got {shape}",
    )
    require(
        shape[-2] == block_size,
        f"expected blocks of block_size {block_size} rows in {name}, got shape {shape}",
    )
    require(
        shape[2] % heads == 0 if cache.dim() == 3 else shape[1] == heads,
        f"expected {heads} heads in {name}, got shape {shape}",
    )
    if cache.dim() == 3:
        cache = cache.unflatten(2, (heads, shape[2] // heads)).transpose(1, 2)
    # What stands behind a sequence's length may be anything: it is masked later.
    rows = cache[table.long().clamp(0, max(shape[0] - 1, 0))]  # [B, blocks of a sequence, N, ..]
    return check_heads(name, rows.transpose(1, 2).flatten(2, 3), heads)


def lengths_per_batch(name, lengths, batch, limit, like):
    """Return the lengths as [B or 1]; `limit` where there is no list."""
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
    return torch.tensor(lengths, dtype=torch.int64, device=like.device)


def packed_rows(name, ends, limit, like):
    """Return lengths [B + 1] and, for each of `limit` packed rows, sequence and position [T].

    Rows behind the last sequence belong to an additional one of length 0.
    """
    begin = 0
    for end in ends:
        require(
            begin <= end <= limit,
            f"expected {name} to ascend within [0, {limit}], got {end} behind {begin}",
        )
        begin = end
    device = like.device
    borders = torch.tensor([0, *ends], dtype=torch.int64, device=device)
    row = torch.arange(limit, device=device)
    sequence = torch.searchsorted(borders[1:].contiguous(), row, right=True)
    lengths = torch.cat([borders.diff(), borders.new_zeros(1)])
    return lengths, sequence, row - borders[sequence]


def is_compressed(mask):
    """Whether the mask has the shape that only names a pattern."""
    shape = list(mask.shape)
    square = len(shape) in (2, 3, 4) and shape[-2] == COMPRESSED and shape[-1] == COMPRESSED
    return square and all(n == 1 for n in shape[:-2])


def full_mask(mask, batch, rows, keys, paged):
    """Return atten_mask as bool [B or 1, 1, Sq, Skv], after checking its shape."""
    shape = list(mask.shape)
    leading = shape[:-2] if rows != 1 or len(shape) != 2 else shape[:1]
    require(
        len(shape) >= 2
        and (shape[-1] == keys or (paged and shape[-1] > keys))
        and (shape[-2] == rows or (rows == 1 and len(shape) == 2))
        and leading in ([], [1], [batch], [1, 1], [batch, 1]),
        f"expected atten_mask of shape [{rows}, {keys}], [1 or {batch}, {rows}, {keys}] or "
        f"[1 or {batch}, 1, {rows}, {keys}]{' or [B, Skv]' if rows == 1 else ''}, got {shape}",
    )
    mask = (mask != 0).reshape(leading[0] if leading else 1, 1, rows, shape[-1])
    return mask[..., :keys]


@op.reference
def reference(
    query,
    key,
    value,
    pse_shift=None,
    atten_mask=None,
    actual_seq_lengths=None,
    actual_seq_lengths_kv=None,
    block_table=None,
    query_rope=None,
    key_rope=None,
    num_heads=1,
    scale=1.0,
    pre_tokens=2147483647,
    next_tokens=2147483647,
    input_layout="BSH",
    num_key_value_heads=0,
    sparse_mode=0,
    block_size=0,
    softmax_lse_flag=False,
    **others,
):
    """Return softmax(scale * Q K^T + pse_shift, masked) V in float32, and its log-sum-exp.

    query, key, value: by input_layout, of one dtype; value may have a head size of its own.
    block_table: [B, blocks of a sequence] int32; key and value are then pages,
    [blocks, block_size, N*D] or [blocks, N, block_size, D], whatever input_layout is.
    query_rope, key_rope: as query and key, with a head size of their own; Q K^T runs over both.
    pse_shift: [B or 1, N, >= Sq, >= Skv] of that dtype, added after scaling.
    atten_mask: bool, int8 or uint8, nonzero = masked. Sparse modes 0 and 1: [Sq, Skv],
    [B or 1, Sq, Skv] or [B or 1, 1, Sq, Skv]; a single query row also takes [B, Skv]. Modes 2, 3
    and 4: [2048, 2048] behind up to two axes of size 1.
    actual_seq_lengths, actual_seq_lengths_kv: one length, or one per batch entry. In T layouts the
    ends of the sequences; with block_table actual_seq_lengths_kv are lengths all the same.
    Result: the output layout with value's head size; log-sum-exp [B, N, Sq, 1] or, in T layouts,
    [T, N, 1] float32.
    """
    for name in UNIMPLEMENTED:
        require(others.get(name) is None, f"the argument {name} is not implemented")
    require(
        input_layout in LAYOUTS,
        "expected input_layout BSH, BSND, BNSD, TND, NTD or one of these with an output layout "
        f"such as BNSD_BSND, got '{input_layout}'",
    )
    kv_heads = num_key_value_heads or num_heads
    require(num_heads >= 1, f"expected num_heads >= 1, got {num_heads}")
    require(kv_heads >= 0, f"expected num_key_value_heads >= 0, got {kv_heads}")
    require(
        num_heads % kv_heads == 0,
        f"expected num_key_value_heads to divide num_heads {num_heads}, got {kv_heads}",
    )
    require(sparse_mode in range(5), f"expected sparse_mode 0, 1, 2, 3 or 4, got {sparse_mode}")
    require(
        query.dtype == key.dtype == value.dtype,
        "expected query, key and value of one dtype, "
        f"got {query.dtype}, {key.dtype} and {value.dtype}",
    )
    axes, out_axes = LAYOUTS[input_layout]
    packed = "T" in axes
    paged = block_table is not None
    q = heads_apart("query", query, axes, input_layout, num_heads)
    batch, _, rows, size = q.shape
    if paged:
        require(
            block_table.dim() == 2 and (packed or block_table.shape[0] == batch),
            "expected block_table int32 of shape [B, blocks of a sequence], "
            f"got {block_table.dtype} {list(block_table.shape)}",
        )
        require(block_size >= 1, f"expected block_size >= 1 with block_table, got {block_size}")

    def cache(name, x):
        if paged:
            return from_pages(name, x, block_table, block_size, kv_heads)
        x = heads_apart(name, x, axes, input_layout, kv_heads)
        require(
            x.shape[0] == batch,
            f"expected {name} of query's batch size {batch}, got {x.shape[0]}",
        )
        return x

    k, v = cache("key", key), cache("value", value)
    keys = k.shape[2]
    require(k.shape[3] == size, f"expected key of query's head size {size}, got {k.shape[3]}")
    require(v.shape[2] == keys, f"expected value of key's sequence length {keys}, got {v.shape[2]}")
    require(
        (query_rope is None) == (key_rope is None),
        "expected query_rope and key_rope together, "
        f"got only {'query_rope' if key_rope is None else 'key_rope'}",
    )
    if query_rope is not None:
        q_rope = heads_apart("query_rope", query_rope, axes, input_layout, num_heads)
        k_rope = cache("key_rope", key_rope)
        require(
            q_rope.shape[:3] == q.shape[:3],
            "expected query_rope of query's shape but for the head size, "
            f"got {list(query_rope.shape)}",
        )
        require(
            k_rope.shape[2] == keys and k_rope.shape[3] == q_rope.shape[3],
            "expected key_rope of key's shape with query_rope's head size "
            f"{q_rope.shape[3]}, got {list(key_rope.shape)}",
        )
        q, k = torch.cat([q, q_rope], 3), torch.cat([k, k_rope], 3)

    # Lengths, and positions i of queries and j of keys, in forms that broadcast to [B, N, Sq, Skv].
    require(
        not paged or actual_seq_lengths_kv is not None,
        "expected actual_seq_lengths_kv with block_table, got none",
    )
    # A single query takes every key: what it may not see is said by lengths and atten_mask alone.
    decode = rows == 1 and not packed and query_rope is None
    if packed:
        require(
            actual_seq_lengths is not None and actual_seq_lengths_kv is not None,
            "expected actual_seq_lengths and actual_seq_lengths_kv for input_layout "
            f"{input_layout}",
        )
        q_lengths, q_sequence, i = packed_rows(
            "actual_seq_lengths", actual_seq_lengths, rows, query
        )
        count = len(actual_seq_lengths)
        if paged:
            require(
                block_table.shape[0] == count,
                "expected one row of block_table per entry of actual_seq_lengths, "
                f"got {list(block_table.shape)}",
            )
            kv_lengths = lengths_per_batch(
                "actual_seq_lengths_kv", actual_seq_lengths_kv, count, keys, query
            ).expand(count)
            kv_lengths = torch.cat([kv_lengths, kv_lengths.new_zeros(1)])
            k, v = (x.transpose(0, 1).flatten(1, 2)[None] for x in (k, v))
            row = torch.arange(count * keys, device=query.device)
            kv_sequence, j = row // max(keys, 1), row % max(keys, 1)
        else:
            require(
                len(actual_seq_lengths_kv) == count,
                f"expected actual_seq_lengths_kv with {count} entries, "
                f"got {len(actual_seq_lengths_kv)}",
            )
            kv_lengths, kv_sequence, j = packed_rows(
                "actual_seq_lengths_kv", actual_seq_lengths_kv, keys, query
            )
        unused = (j >= kv_lengths[kv_sequence])[None, None, :, None]
        q_lengths, kv_lengths = q_lengths[q_sequence][:, None], kv_lengths[q_sequence][:, None]
        i, j = i[:, None], j[None, :]
        masked = (q_sequence[:, None] != kv_sequence[None, :]) | (i >= q_lengths)
        masked = (masked | (j >= kv_lengths))[None, None]
    else:
        q_lengths = lengths_per_batch(
            "actual_seq_lengths", None if decode else actual_seq_lengths, batch, rows, query
        ).view(-1, 1, 1, 1)
        kv_lengths = lengths_per_batch(
            "actual_seq_lengths_kv", actual_seq_lengths_kv, batch, keys, query
        ).view(-1, 1, 1, 1)
        i = torch.arange(rows, device=query.device)[:, None]
        j = torch.arange(keys, device=query.device)[None, :]
        unused = (j >= kv_lengths).transpose(2, 3)
        masked = (i >= q_lengths) | (j >= kv_lengths)

    compressed = sparse_mode >= 2 and atten_mask is not None and is_compressed(atten_mask)
    require(
        sparse_mode < 2 or decode or compressed,
        f"expected the [2048, 2048] atten_mask with sparse_mode {sparse_mode}, "
        f"got {'none' if atten_mask is None else list(atten_mask.shape)}",
    )
    offset = kv_lengths - q_lengths
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
        require(
            not packed,
            "expected atten_mask with sparse_mode 2, 3 or 4 only for input_layout "
            f"{input_layout}, got sparse_mode {sparse_mode}",
        )
        masked = masked | full_mask(atten_mask, batch, rows, keys, paged)

    compute = torch.float64 if query.dtype == torch.float64 else torch.float32
    group = num_heads // kv_heads
    k = k.to(compute).repeat_interleave(group, dim=1)
    # What lies beyond the lengths is no number to reckon with, not even times zero.
    v = v.to(compute).masked_fill(unused, 0.0).repeat_interleave(group, dim=1)
    scores = q.to(compute) @ k.transpose(2, 3) * scale
    if pse_shift is not None:
        shape = list(pse_shift.shape)
        require(not packed, f"expected no pse_shift for input_layout {input_layout}, got {shape}")
        require(
            pse_shift.dtype == query.dtype,
            f"expected pse_shift of query's dtype {query.dtype}, got {pse_shift.dtype}",
        )
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
    elif packed:
        lse = lse[0].transpose(0, 1).contiguous()
    return out, lse.to(torch.float32)


@op.function
def body(b, call, query, key, value, pse_shift, atten_mask, q_lengths, kv_lengths, *others):
    a = call.attrs
    names = [x.name for x in op.inputs]
    block_table, query_rope, key_rope = (
        others[names.index(name) - 7] for name in ("block_table", "query_rope", "key_rope")
    )
    heads = a["num_heads"]
    kv_heads = a["num_key_value_heads"] or heads
    axes, out_axes = LAYOUTS[a["input_layout"]]
    packed = "T" in axes
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

    def count_to(n):
        return b.Range(b.const(0, "int64"), b.Squeeze(n), b.const(1, "int64"))

    def apart(x, n):
        x = b.Cast(x, to="float32")
        if axes == "BSH":
            x = reshape(x, shape_of(x, 0, 2), n, b.Div(shape_of(x, 2, 3), n))
        if packed:
            x = b.Unsqueeze(b.Transpose(x, perm=[1, 0, 2]) if axes == "TND" else x, [0])
        return x if axes == "BNSD" or packed else b.Transpose(x, perm=[0, 2, 1, 3])

    def cache(name, x):
        if block_table is None:
            return apart(x, kv_heads)
        rank = call.rank(name)
        if rank not in (3, 4):
            raise ValueError(f"[{op.name}] expected {name} of known rank 3 or 4, got {rank}")
        table = b.Max(b.Min(block_table, b.Cast(b.Sub(shape_of(x, 0, 1), 1), to="int32")), 0)
        pages = b.Gather(b.Cast(x, to="float32"), table, axis=0)
        capacity = b.Mul(shape_of(table, 1, 2), shape_of(x, rank - 2, rank - 1))
        entries = shape_of(table, 0, 1)
        if rank == 3:
            size = b.Div(shape_of(x, 2, 3), kv_heads)
            rows = reshape(pages, entries, capacity, kv_heads, size)
            rows = b.Transpose(rows, perm=[0, 2, 1, 3])
        else:
            rows = b.Transpose(pages, perm=[0, 2, 1, 3, 4])
            rows = reshape(rows, entries, kv_heads, capacity, shape_of(x, 3, 4))
        if packed:
            rows = b.Transpose(rows, perm=[1, 0, 2, 3])
            rows = reshape(rows, 1, kv_heads, b.Mul(entries, capacity), shape_of(rows, 3, 4))
        return rows

    q, k, v = apart(query, heads), cache("key", key), cache("value", value)
    batch, rows, keys = shape_of(q, 0, 1), shape_of(q, 2, 3), shape_of(k, 2, 3)
    if query_rope is not None:
        q = b.Concat(q, apart(query_rope, heads), axis=3)
        k = b.Concat(k, cache("key_rope", key_rope), axis=3)

    def packed_rows(ends, limit):
        borders = b.Concat(b.const([0], "int64"), ends, axis=0)
        row = count_to(limit)
        passed = b.GreaterOrEqual(b.Unsqueeze(row, [1]), b.Unsqueeze(ends, [0]))
        sequence = b.ReduceSum(b.Cast(passed, to="int64"), [1], keepdims=0)
        lengths = b.Concat(
            b.Sub(ends, b.Slice(borders, [0], [-1], [0])), b.const([0], "int64"), axis=0
        )
        return lengths, sequence, b.Sub(row, b.Gather(borders, sequence))

    # As in the reference: lengths and positions in forms that broadcast to [B, N, Sq, Skv].
    masks = []
    unused = None  # [B or 1, 1, Skv, 1]
    if packed:
        q_length, q_sequence, i = packed_rows(q_lengths, rows)
        if block_table is None:
            kv_length, kv_sequence, j = packed_rows(kv_lengths, keys)
        else:
            entries = shape_of(block_table, 0, 1)
            capacity = b.Div(keys, b.Max(entries, b.const([1], "int64")))
            divisor = b.Max(capacity, b.const([1], "int64"))
            row = count_to(keys)
            kv_sequence, j = b.Div(row, divisor), b.Mod(row, divisor)
            kv_length = b.Expand(b.Slice(kv_lengths, [0], entries, [0]), entries)
            kv_length = b.Concat(kv_length, b.const([0], "int64"), axis=0)
        unused = b.Unsqueeze(b.GreaterOrEqual(j, b.Gather(kv_length, kv_sequence)), [0, 1, 3])
        q_length = b.Unsqueeze(b.Gather(q_length, q_sequence), [1])
        kv_length = b.Unsqueeze(b.Gather(kv_length, q_sequence), [1])
        i, j = b.Unsqueeze(i, [1]), b.Unsqueeze(j, [0])
        same = b.Equal(b.Unsqueeze(q_sequence, [1]), b.Unsqueeze(kv_sequence, [0]))
        masks += [b.Not(same), b.GreaterOrEqual(i, q_length), b.GreaterOrEqual(j, kv_length)]
    else:
        i, j = b.Unsqueeze(count_to(rows), [1]), b.Unsqueeze(count_to(keys), [0])

        def per_batch(lengths, limit):
            given = limit if lengths is None else b.Slice(lengths, [0], batch, [0])
            return b.Unsqueeze(given, [1, 2, 3])

        q_length, kv_length = per_batch(q_lengths, rows), per_batch(kv_lengths, keys)
        if kv_lengths is not None:
            masks.append(b.GreaterOrEqual(j, kv_length))
            unused = b.Transpose(masks[0], perm=[0, 1, 3, 2])
    # A single query ignores patterns and its own length, where rope is not apart.
    single_is_special = not packed and query_rope is None
    many = b.Greater(rows, 1)
    if not packed and q_lengths is not None:
        if single_is_special:
            q_length = b.Where(many, q_length, 1)
        masks.append(b.GreaterOrEqual(i, q_length))
    offset = b.Sub(kv_length, q_length)
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
    masks += [b.And(many, p) for p in pattern] if single_is_special else pattern
    if atten_mask is not None and (mode < 2 or single_is_special):
        flat = b.Reshape(b.Cast(atten_mask, to="bool"), [-1])
        size = b.Shape(flat)
        width = b.Shape(atten_mask, start=-1)  # may exceed the keys of pages
        # Empty planes do not tell how many there are; one is as good as any.
        plane = b.Max(b.Mul(rows, width), b.const([1], "int64"))
        planes = b.Where(b.Equal(size, 0), 1, b.Div(size, plane))
        if mode < 2:
            mask = reshape(flat, planes, 1, rows, width)
            masks.append(b.Slice(mask, [0], keys, [3]))
        else:
            # A compressed mask says nothing more: one element stands in, and counts for nothing.
            sides = b.ReduceMax(b.Abs(b.Sub(b.Shape(atten_mask, start=-2), COMPRESSED)), [0])
            compressed = b.And(b.Equal(size, COMPRESSED**2), b.Equal(sides, 0))
            full = b.Not(b.Or(many, compressed))
            flat = b.Slice(flat, [0], b.Where(full, size, 1), [0])
            mask = reshape(flat, b.Where(full, planes, 1), 1, 1, b.Where(full, width, 1))
            masks.append(b.And(full, b.Slice(mask, [0], b.Max(keys, b.const([1], "int64")), [3])))

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
    if unused is not None:
        v = b.Where(unused, 0.0, v)
    out = b.MatMul(reshape(weights, folded, keys), v)
    out = reshape(out, batch, heads, rows, shape_of(v, 3, 4))
    out = b.Div(out, b.Where(b.Equal(total, 0.0), 1.0, total))
    out = b.Cast(out, to=call.dtype("query"))
    if out_axes == "NBSD":
        out = b.Transpose(out, perm=[1, 0, 2, 3])
    elif out_axes == "NTD":
        out = b.Squeeze(out, [0])
    elif out_axes == "TND":
        out = b.Transpose(b.Squeeze(out, [0]), perm=[1, 0, 2])
    elif out_axes != "BNSD":
        out = b.Transpose(out, perm=[0, 2, 1, 3])
    if out_axes == "BSH":
        out = reshape(out, batch, rows, b.Mul(shape_of(v, 3, 4), heads))
    if not a["softmax_lse_flag"]:
        return out, b.const([0.0], "float32")
    lse = b.Add(maximum, b.Log(total))
    return out, b.Transpose(b.Squeeze(lse, [0]), perm=[1, 0, 2]) if packed else lse


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

    # Pages.
    pages = make(9, 16, 2 * 16), make(9, 16, 2 * 16)
    table = make.tensor([[7, 2, 5, 99], [0, 8, -1, -1]], dtype="int32")
    paged = {**bsnd, "block_table": table, "block_size": 16, "actual_seq_lengths_kv": [45, 17]}
    yield Sample(make(2, 1, 6, 16), *pages, **paged, softmax_lse_flag=True, id="paged_decode")
    yield Sample(make(2, 5, 6, 16), *pages, **paged, **causal, id="paged_prefill")
    yield Sample(make(2, 5, 6, 16), *pages, **paged, atten_mask=make.bools(2, 1, 5, 70),
                 id="paged_mask")  # fmt: skip
    pages = make(9, 2, 16, 24), make(9, 2, 16, 8)
    yield Sample(make(2, 6, 3, 24), *pages, **{**paged, "input_layout": "BNSD"}, **causal,
                 id="paged_bnsd")  # fmt: skip

    # Packed sequences.
    tnd = {"input_layout": "TND", "num_heads": 6, "num_key_value_heads": 2, "scale": 0.25,
           "softmax_lse_flag": True}  # fmt: skip
    qkv = make(12, 6, 16), make(40, 2, 16), make(40, 2, 16)
    ends = {"actual_seq_lengths": [3, 3, 4, 12], "actual_seq_lengths_kv": [10, 20, 25, 40]}
    yield Sample(*qkv, **tnd, **ends, id="tnd")
    yield Sample(*qkv, **tnd, **ends, **causal, id="tnd_causal")
    yield Sample(*qkv, **{**tnd, "input_layout": "TND_NTD"}, actual_seq_lengths=[2, 9],
                 actual_seq_lengths_kv=[1, 30], **causal, id="rows_of_no_sequence")  # fmt: skip
    qkv = make(6, 12, 16), make(2, 40, 16), make(2, 40, 24)
    yield Sample(*qkv, **{**tnd, "input_layout": "NTD"}, **ends, id="ntd")
    yield Sample(*qkv, **{**tnd, "input_layout": "NTD_TND"}, **ends, sparse_mode=4, pre_tokens=4,
                 next_tokens=1, atten_mask=compressed(make), id="ntd_tnd_band")  # fmt: skip
    pages = make(9, 16, 2 * 16), make(9, 16, 2 * 16)
    yield Sample(make(7, 6, 16), *pages, **tnd, **causal, block_table=table, block_size=16,
                 actual_seq_lengths=[6, 7], actual_seq_lengths_kv=[45, 17],
                 id="tnd_paged")  # fmt: skip

    # Rope apart.
    rope = {"query_rope": make(2, 6, 20, 8), "key_rope": make(2, 2, 33, 8)}
    yield Sample(make(2, 6, 20, 16), make(2, 2, 33, 16), make(2, 2, 33, 16), **bnsd, **causal,
                 **rope, id="rope")  # fmt: skip
    yield Sample(make(2, 1, 64), make(2, 9, 64), make(2, 9, 64), query_rope=make(2, 1, 16),
                 key_rope=make(2, 9, 16), num_heads=2, sparse_mode=2, atten_mask=compressed(make),
                 id="rope_decode_keeps_pattern")  # fmt: skip
    yield Sample(make(7, 6, 16), *pages, **tnd, **causal, block_table=table, block_size=16,
                 actual_seq_lengths=[6, 7], actual_seq_lengths_kv=[45, 17],
                 query_rope=make(7, 6, 8), key_rope=make(9, 16, 2 * 8),
                 id="tnd_paged_rope")  # fmt: skip

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
    "key of query's batch size 2, got 1",
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
refuse(
    "blocks of block_size 8 rows in key",
    "block_size",
    (2, 3, 4, 16),
    (5, 16, 32),
    (5, 16, 32),
    block_table=lambda make: make.ints(2, 2, high=5, dtype="int32"),
    block_size=8,
    actual_seq_lengths_kv=[16],
)
refuse(
    "actual_seq_lengths_kv with block_table, got none",
    "paged_without_lengths",
    (2, 3, 4, 16),
    (5, 16, 32),
    (5, 16, 32),
    block_table=lambda make: make.ints(2, 2, high=5, dtype="int32"),
    block_size=16,
)
refuse(
    r"block_table entries in \[0, 5\), got 5",
    "block_beyond_the_cache",
    (2, 3, 4, 16),
    (5, 16, 32),
    (5, 16, 32),
    needs_values=True,
    block_table=lambda make: make.tensor([[0, 1], [2, 5]], dtype="int32"),
    block_size=16,
    actual_seq_lengths_kv=[17],
)
refuse(
    r"actual_seq_lengths to ascend within \[0, 6\], got 2 behind 4",
    "descending_ends",
    (6, 4, 16),
    (9, 2, 16),
    (9, 2, 16),
    input_layout="TND",
    actual_seq_lengths=[4, 2],
    actual_seq_lengths_kv=[4, 9],
)
refuse(
    "actual_seq_lengths_kv with 2 entries, got 1",
    "packed_lengths",
    (6, 4, 16),
    (9, 2, 16),
    (9, 2, 16),
    input_layout="TND",
    actual_seq_lengths=[4, 6],
    actual_seq_lengths_kv=[9],
)
refuse(
    "query_rope and key_rope together, got only query_rope",
    "rope",
    query_rope=lambda make: make(2, 3, 4, 8),
)
