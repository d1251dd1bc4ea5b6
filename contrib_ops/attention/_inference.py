"""The semantics that the inference attention operators share, in plain torch.

An operator's reference hands its arguments to :func:`attend`, under the names that
npu_fused_infer_attention_score gives them.

Where torch_npu leaves a point open, this holds:

- A query row that may see no key gives output 0 and log-sum-exp -inf; so do rows beyond the query
  lengths, rows of padding, and all rows of an entry whose padding leaves no room for its rows.
- Head sizes are any from 1 to 512, and the dtype may be float32 too.
- A compressed mask of sparse modes 2, 3 and 4 is checked by its shape only.
- Sparse mode 0 applies pre_tokens and next_tokens together with atten_mask, from the top left.
- T layouts need both lists of lengths, and take neither pse_shift nor a full atten_mask.
- Entries of block_table behind a sequence's length are never looked at.
- Patterns count rows and keys from the first that is no padding, after the prefix has been put in
  front of the keys. A full atten_mask and pse_shift speak of places in the tensors: their last axis
  counts the prefix, then every row of key.
- Integers of a cache stand for (x + offset) * scale, rounded after each step to the scales' dtype:
  query's, or float32.
- With query int8, weights are exp(score - maximum) quantised to int8; they are summed before that.
  The kernel quantises against the maximum of the keys so far, the reference against that of all.
"""

from __future__ import annotations

from onnxruntime_npu.opdef import check, torch

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
    "NSD": ("NSD", "NSD"),
    "SH": ("SH", "SH"),
}
COMPRESSED = 2048  # side of the square mask that stands for a pattern
MAX_HEAD_SIZE = 512
# What the modes of antiquant scales hold.
SCALE_FORMS = (
    "1 or N*D elements",
    "shape [B, S]",
    "N elements",
    "shape [B, N, S]",
    "[blocks, block_size] elements",
    "[blocks, N, block_size] elements",
)


class Operands:
    """The operands of one call as [B, N, S, D], checked on the way."""

    def __init__(self, require, input_layout, heads, kv_heads, block_table, block_size):
        self.require = require
        self.layout = input_layout
        self.axes, self.out_axes = LAYOUTS[input_layout]
        self.heads, self.kv_heads = heads, kv_heads
        self.table, self.block_size = block_table, block_size

    @property
    def packed(self):
        """Whether sequences follow each other in one axis."""
        return "T" in self.axes

    def rows(self, name, x, heads):
        """Return x as [B, N, S, D]; packed sequences are one batch entry."""
        shape, axes = list(x.shape), self.axes
        form = {"BSH": "[B, S, N*D]", "SH": "[S, N*D]"}.get(axes, f"[{', '.join(axes)}]")
        self.require(
            x.dim() == len(axes),
            f"expected {name} of shape {form} for input_layout {self.layout}, got {shape}",
        )
        if axes in ("BSH", "SH"):
            self.require(
                shape[-1] % heads == 0,
                f"expected the last axis of {name} to be a multiple of its {heads} heads, "
                f"got {shape[-1]}",
            )
            x = x.unflatten(-1, (heads, shape[-1] // heads))
        if axes in ("BSH", "BSND"):
            x = x.transpose(1, 2)
        elif axes in ("TND", "SH"):
            x = x.transpose(0, 1)[None]
        elif axes in ("NTD", "NSD"):
            x = x[None]
        return self._checked(name, x, heads)

    def cache(self, name, x, batch):
        """Return keys or values as [B, N, S, D]: of pages, S being what the table has room for."""
        if self.table is None:
            x = self.rows(name, x, self.kv_heads)
            self.require(
                self.packed or x.shape[0] == batch,
                f"expected {name} of query's batch size {batch}, got {x.shape[0]}",
            )
            return x
        shape, heads = list(x.shape), self.kv_heads
        table = self.table
        self.require(
            table.dim() == 2 and (self.packed or table.shape[0] == batch),
            "expected block_table int32 of shape [B, blocks of a sequence], "
            f"got {table.dtype} {list(table.shape)}",
        )
        self.require(
            self.block_size >= 1,
            f"expected block_size >= 1 with block_table, got {self.block_size}",
        )
        self.require(
            len(shape) in (3, 4, 5),
            f"expected {name} with block_table of shape [blocks, block_size, N*D], "
            f"[blocks, N, block_size, D] or [blocks, N, D/16, block_size, 16], got {shape}",
        )
        self.require(
            shape[-2 if len(shape) > 3 else 1] == self.block_size,
            f"expected blocks of block_size {self.block_size} rows in {name}, got shape {shape}",
        )
        self.require(
            shape[2] % heads == 0 if len(shape) == 3 else shape[1] == heads,
            f"expected {heads} heads in {name}, got shape {shape}",
        )
        if len(shape) == 3:
            x = x.unflatten(2, (heads, shape[2] // heads)).transpose(1, 2)
        elif len(shape) == 5:
            x = x.permute(0, 1, 3, 2, 4).flatten(3)
        return self._checked(name, self.from_pages(x), heads)

    def from_pages(self, pages):
        """Return [blocks, N, block_size, ..] as [B, N, S, ..]."""
        # What stands behind a sequence's length may be anything: it is masked later.
        rows = pages[self.table.long().clamp(0, max(pages.shape[0] - 1, 0))]
        return rows.transpose(1, 2).flatten(2, 3)

    def _checked(self, name, x, heads):
        self.require(x.shape[1] == heads, f"expected {heads} heads in {name}, got {x.shape[1]}")
        size = x.shape[3] * (8 if x.dtype == torch.int32 else 1)
        self.require(
            1 <= size <= MAX_HEAD_SIZE,
            f"expected a head size from 1 to {MAX_HEAD_SIZE} in {name}, got {size}",
        )
        return unpack_int4(x) if x.dtype == torch.int32 else x

    def result(self, x):
        """Return [B, N, S, D] with the axes of the output layout."""
        axes = self.out_axes
        if axes == "NBSD":
            x = x.transpose(0, 1)
        elif axes in ("NTD", "NSD"):
            x = x[0]
        elif axes in ("TND", "SH"):
            x = x[0].transpose(0, 1)
        elif axes != "BNSD":
            x = x.transpose(1, 2)
        x = x.contiguous()
        return x.flatten(-2) if axes in ("BSH", "SH") else x


def unpack_int4(x):
    """Return the eight signed 4-bit integers of every int32, the lowest bits first."""
    bits = (x[..., None] >> torch.arange(0, 32, 4, dtype=torch.int32, device=x.device)) & 15
    return (bits - 16 * (bits >= 8).to(torch.int32)).flatten(-2)


def dequantise(operands, kind, scale, offset, mode, joint, size, keys, entries, blocks, dtype):
    """Return a function that turns the integers [B, N, S, D] of key or value into numbers.

    kind: "key" or "value", which is the second half of a joint scale.
    """
    require, heads = operands.require, operands.kv_heads
    name = "antiquant" if joint else f"{kind}_antiquant"
    modes = 2 if joint else 6
    require(mode in range(modes), f"expected {name}_mode from 0 to {modes - 1}, got {mode}")
    require(
        scale.dtype in (dtype, torch.float32),
        f"expected {name}_scale of query's dtype or float32, got {scale.dtype}",
    )
    shape = list(scale.shape)
    n = scale.numel() // 2 if joint else scale.numel()
    last = shape[-1] if shape else 1
    paged = operands.table is not None
    size_of_mode = (
        heads * size,
        entries * last,
        heads,
        entries * heads * last,
        blocks * operands.block_size,
        blocks * heads * operands.block_size,
    )[mode]
    require(
        (n == size_of_mode or (mode == 0 and n == 1))
        and (mode not in (1, 3) or last >= keys)
        and (mode < 4 or paged)
        and (not joint or (bool(shape) and shape[0] == 2)),
        f"expected {name}_scale with {'two times ' if joint else ''}{SCALE_FORMS[mode]} for "
        f"{name}_mode {mode}{' and a block_table' if mode >= 4 and not paged else ''}, got {shape}",
    )
    require(
        offset is None or (offset.dtype == scale.dtype and offset.numel() == scale.numel()),
        f"expected {name}_offset like {name}_scale, {scale.dtype} {shape}, got "
        f"{None if offset is None else (offset.dtype, list(offset.shape))}",
    )

    def broadcast(x):
        """Return the scales as they spread over [B, N, S, D]."""
        if joint:
            x = x[int(kind == "value")]
        x = x.reshape(-1)
        if mode == 0:
            return x.reshape(1, 1, 1, 1) if n == 1 else x.reshape(1, heads, 1, size)
        if mode == 2:
            return x.reshape(1, heads, 1, 1)
        if mode in (1, 3):
            return x.reshape(entries, heads if mode == 3 else 1, last, 1)[:, :, :keys]
        pages = x.reshape(blocks, heads if mode == 5 else 1, operands.block_size, 1)
        return operands.from_pages(pages)

    def apply(x):
        x = x.to(scale.dtype)
        if offset is not None:
            x = x + broadcast(offset)
        return x * broadcast(scale)

    return apply


def lengths_per_batch(require, name, lengths, batch, limit, like):
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


def packed_rows(require, name, ends, limit, like):
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


def full_mask(require, mask, batch, rows, keys, paged, decode):
    """Return atten_mask as bool [B or 1, 1, Sq, Skv], after checking its shape."""
    shape = list(mask.shape)
    per_batch = decode and len(shape) == 2
    leading = shape[:1] if per_batch else shape[:-2]
    require(
        len(shape) >= 2
        and (shape[-1] == keys or (paged and shape[-1] > keys))
        and (shape[-2] == rows or per_batch)
        and leading in ([], [1], [batch], [1, 1], [batch, 1]),
        f"expected atten_mask of shape [{rows}, {keys}], [1 or {batch}, {rows}, {keys}] or "
        f"[1 or {batch}, 1, {rows}, {keys}]{' or [B, Skv]' if decode else ''}, got {shape}",
    )
    mask = (mask != 0).reshape(leading[0] if leading else 1, 1, rows, shape[-1])
    return mask[..., :keys]


def number(x):
    """Return the one element of a scale; 64-bit integers hold the bits of a float32."""
    x = x.reshape(1)
    return x.view(torch.float32)[0] if x.dtype in (torch.uint64, torch.int64) else x[0]


def attend(
    op,
    query,
    key,
    value,
    *,
    layouts,
    decode="single row",
    names=None,
    pse_shift=None,
    atten_mask=None,
    actual_seq_lengths=None,
    actual_seq_lengths_kv=None,
    dequant_scale1=None,
    quant_scale1=None,
    dequant_scale2=None,
    quant_scale2=None,
    quant_offset2=None,
    antiquant_scale=None,
    antiquant_offset=None,
    key_antiquant_scale=None,
    key_antiquant_offset=None,
    value_antiquant_scale=None,
    value_antiquant_offset=None,
    block_table=None,
    query_padding_size=None,
    kv_padding_size=None,
    key_shared_prefix=None,
    value_shared_prefix=None,
    actual_shared_prefix_len=None,
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
    antiquant_mode=0,
    key_antiquant_mode=0,
    value_antiquant_mode=0,
):
    """Return softmax(scale * Q K^T + pse_shift, masked) V and its log-sum-exp [B, N, Sq, 1] or,
    in T layouts, [T, N, 1] float32.

    op, names: the operator and its own names of arguments, for messages. layouts: those it takes.
    decode: when a query row takes every key that lengths and atten_mask leave, so that patterns and
    query lengths say nothing: "never", "always", or for a "single row".
    """
    names = names or {}

    def require(condition, message):
        check(condition, f"[{op}] {message}")

    require(
        input_layout in layouts, f"expected input_layout {', '.join(layouts)}, got '{input_layout}'"
    )
    kv_heads = num_key_value_heads or num_heads
    require(num_heads >= 1, f"expected num_heads >= 1, got {num_heads}")
    require(kv_heads >= 0, f"expected num_key_value_heads >= 0, got {kv_heads}")
    require(
        num_heads % kv_heads == 0,
        f"expected num_key_value_heads to divide num_heads {num_heads}, got {kv_heads}",
    )
    require(sparse_mode in range(5), f"expected sparse_mode 0, 1, 2, 3 or 4, got {sparse_mode}")

    # Element types.
    integers = query.dtype == torch.int8
    split = key_antiquant_scale is not None or value_antiquant_scale is not None
    joint = antiquant_scale is not None
    if (joint or split) and not integers:
        require(
            key.dtype == value.dtype and key.dtype in (torch.int8, torch.int32),
            "expected key and value of int8, or of int32 that hold int4, with antiquant scales, "
            f"got {key.dtype} and {value.dtype}",
        )
    else:
        require(
            query.dtype == key.dtype == value.dtype,
            "expected query, key and value of one dtype, "
            f"got {query.dtype}, {key.dtype} and {value.dtype}",
        )
    scalars = {
        "dequant_scale1": dequant_scale1,
        "quant_scale1": quant_scale1,
        "dequant_scale2": dequant_scale2,
    }
    for name, x in scalars.items():
        name = names.get(name, name)
        require(
            (x is not None) == integers,
            f"expected {'' if integers else 'no '}{name} with query {query.dtype}, "
            f"got {'none' if x is None else list(x.shape)}",
        )
        require(
            x is None or x.numel() == 1,
            f"expected {name} with one element, got {None if x is None else list(x.shape)}",
        )
    require(
        not integers or not (joint or split),
        "expected no antiquant_scale, key_antiquant_scale or value_antiquant_scale with query int8",
    )
    compute = torch.float64 if query.dtype == torch.float64 else torch.float32
    like = torch.float16 if integers else query.dtype

    # Operands as [B, N, S, D].
    operands = Operands(require, input_layout, num_heads, kv_heads, block_table, block_size)
    packed, paged = operands.packed, block_table is not None
    q = operands.rows("query", query, num_heads)
    batch, _, rows, size = q.shape
    k, v = (operands.cache(n, x, batch) for n, x in (("key", key), ("value", value)))
    own = keys = k.shape[2]
    require(k.shape[3] == size, f"expected key of query's head size {size}, got {k.shape[3]}")
    require(v.shape[2] == keys, f"expected value of key's sequence length {keys}, got {v.shape[2]}")
    require(
        not paged or key.shape[0] == value.shape[0],
        f"expected value of key's {key.shape[0]} blocks, got {value.shape[0]}",
    )
    modes = (key_antiquant_mode, value_antiquant_mode)
    from_integers = (lambda x: x, lambda x: x)
    if joint or split:
        modes = (antiquant_mode, antiquant_mode) if joint else modes
        require(
            not split if joint else None not in (key_antiquant_scale, value_antiquant_scale),
            "expected either antiquant_scale or both key_antiquant_scale and value_antiquant_scale",
        )
        require(
            joint or antiquant_offset is None,
            "expected antiquant_scale with antiquant_offset, got none",
        )
        require(
            not joint or (key_antiquant_offset is None and value_antiquant_offset is None),
            "expected antiquant_offset with antiquant_scale, got an offset of key or value alone",
        )
        scales = [(antiquant_scale, antiquant_offset)] * 2
        if not joint:
            scales = [(key_antiquant_scale, key_antiquant_offset),
                      (value_antiquant_scale, value_antiquant_offset)]  # fmt: skip
        entries = block_table.shape[0] if paged else k.shape[0]
        from_integers = tuple(
            dequantise(
                operands, kind, *scales[i], modes[i], joint, x.shape[3], keys, entries,
                key.shape[0], query.dtype,
            )
            for i, (kind, x) in enumerate((("key", k), ("value", v)))
        )  # fmt: skip
        k, v = from_integers[0](k), from_integers[1](v)
    require(
        (query_rope is None) == (key_rope is None),
        "expected query_rope and key_rope together, "
        f"got only {'query_rope' if key_rope is None else 'key_rope'}",
    )
    if query_rope is not None:
        require(not integers, "expected no query_rope and key_rope with query int8")
        require(
            key_shared_prefix is None,
            "expected no query_rope and key_rope with key_shared_prefix",
        )
        require(
            query_rope.dtype == key_rope.dtype == query.dtype,
            f"expected query_rope and key_rope of query's dtype {query.dtype}, "
            f"got {query_rope.dtype} and {key_rope.dtype}",
        )
        q_rope = operands.rows("query_rope", query_rope, num_heads)
        k_rope = operands.cache("key_rope", key_rope, batch)
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
        q = torch.cat([q, q_rope], 3)
        k = torch.cat([k.to(compute), k_rope.to(compute)], 3)
    require(
        (key_shared_prefix is None) == (value_shared_prefix is None),
        "expected key_shared_prefix and value_shared_prefix together, got only "
        f"{'key' if value_shared_prefix is None else 'value'}_shared_prefix",
    )
    require(
        key_shared_prefix is not None or actual_shared_prefix_len is None,
        "expected key_shared_prefix with actual_shared_prefix_len, got none",
    )
    prefix = 0
    if key_shared_prefix is not None:
        require(not packed, f"expected no key_shared_prefix for input_layout {input_layout}")
        require(kv_padding_size is None, "expected no kv_padding_size with key_shared_prefix")
        require(
            not (joint or split) or all(mode in (0, 2) for mode in modes),
            "expected antiquant scales of tensors, channels or heads with key_shared_prefix, "
            "got scales of tokens",
        )
        prefixes = []
        for name, x, own_x in (("key", key_shared_prefix, k), ("value", value_shared_prefix, v)):
            of = key if name == "key" else value
            name = f"{name}_shared_prefix"
            kind = name.partition("_")[0]
            require(
                x.dtype == of.dtype,
                f"expected {name} of {kind}'s dtype {of.dtype}, got {x.dtype}",
            )
            require(of.dim() < 5 or not paged, f"expected no {name} with a cache of rank 5")
            x = operands.rows(name, x, kv_heads)
            require(x.shape[0] == 1, f"expected {name} of batch size 1, got {x.shape[0]}")
            require(
                x.shape[3] == own_x.shape[3],
                f"expected {name} of {kind}'s head size {own_x.shape[3]}, got {x.shape[3]}",
            )
            prefixes.append(x)
        rows_of_prefix = prefixes[0].shape[2]
        require(
            prefixes[1].shape[2] == rows_of_prefix,
            "expected value_shared_prefix of key_shared_prefix's sequence length "
            f"{rows_of_prefix}, got {prefixes[1].shape[2]}",
        )
        given = actual_shared_prefix_len
        lengths_per_batch(require, "actual_shared_prefix_len", given, 1, rows_of_prefix, query)
        prefix = rows_of_prefix if given is None else given[0]
        k, v = (
            torch.cat([f(x[:, :, :prefix]).expand(own_x.shape[0], -1, -1, -1), own_x], 2)
            for f, x, own_x in zip(from_integers, prefixes, (k, v), strict=True)
        )
        keys = prefix + own

    # Lengths, and positions i of queries and j of keys, in forms that broadcast to [B, N, Sq, Skv].
    kv_name = names.get("actual_seq_lengths_kv", "actual_seq_lengths_kv")
    require(
        not paged or actual_seq_lengths_kv is not None,
        f"expected {kv_name} with block_table, got none",
    )
    require(
        (query_padding_size is None and kv_padding_size is None) or not (packed or paged),
        "expected no query_padding_size and kv_padding_size with block_table or a T layout",
    )
    require(decode != "always" or rows == 1, f"expected one query row, got {rows}")
    single = rows == 1 and not packed and query_rope is None
    decoding = decode == "always" or (decode == "single row" and single)
    if packed:
        require(
            actual_seq_lengths is not None and actual_seq_lengths_kv is not None,
            f"expected actual_seq_lengths and {kv_name} for input_layout {input_layout}",
        )
        q_lengths, q_sequence, i = packed_rows(
            require, "actual_seq_lengths", actual_seq_lengths, rows, query
        )
        count = len(actual_seq_lengths)
        if paged:
            require(
                block_table.shape[0] == count,
                "expected one row of block_table per entry of actual_seq_lengths, "
                f"got {list(block_table.shape)}",
            )
            kv_lengths = lengths_per_batch(
                require, kv_name, actual_seq_lengths_kv, count, keys, query
            ).expand(count)
            kv_lengths = torch.cat([kv_lengths, kv_lengths.new_zeros(1)])
            k, v = (x.transpose(0, 1).flatten(1, 2)[None] for x in (k, v))
            row = torch.arange(count * keys, device=query.device)
            kv_sequence, j = row // max(keys, 1), row % max(keys, 1)
        else:
            require(
                len(actual_seq_lengths_kv) == count,
                f"expected {kv_name} with {count} entries, got {len(actual_seq_lengths_kv)}",
            )
            kv_lengths, kv_sequence, j = packed_rows(
                require, kv_name, actual_seq_lengths_kv, keys, query
            )
        unused = (j >= kv_lengths[kv_sequence])[None, None, :, None]
        q_lengths, kv_lengths = q_lengths[q_sequence][:, None], kv_lengths[q_sequence][:, None]
        i, j = i[:, None], j[None, :]
        masked = (q_sequence[:, None] != kv_sequence[None, :]) | (i >= q_lengths)
        masked = (masked | (j >= kv_lengths))[None, None]
    else:
        given = None if decoding else actual_seq_lengths
        q_lengths = lengths_per_batch(require, "actual_seq_lengths", given, batch, rows, query)
        kv_lengths = lengths_per_batch(require, kv_name, actual_seq_lengths_kv, batch, own, query)
        q_lengths, kv_lengths = q_lengths.view(-1, 1, 1, 1), kv_lengths.view(-1, 1, 1, 1)
        i = torch.arange(rows, device=query.device)[:, None]
        j = torch.arange(keys, device=query.device)[None, :]
        no_room = torch.zeros(1, 1, 1, 1, dtype=torch.bool, device=query.device)

        def begin_of(name, padding, lengths, limit):
            require(
                padding.numel() == 1 and padding.dtype == torch.int64,
                f"expected {name} as one int64, got {padding.dtype} {list(padding.shape)}",
            )
            return limit - padding.reshape(1, 1, 1, 1).clamp(min=0) - lengths

        if query_padding_size is not None and not decoding:
            begin = begin_of("query_padding_size", query_padding_size, q_lengths, rows)
            i, no_room = i - begin, no_room | (begin < 0)
        if kv_padding_size is not None:
            begin = begin_of("kv_padding_size", kv_padding_size, kv_lengths, own)
            j, no_room = j - begin, no_room | (begin < 0)
        kv_lengths = kv_lengths + prefix
        unused = ((j < 0) | (j >= kv_lengths) | no_room).transpose(2, 3)
        masked = (i < 0) | (i >= q_lengths) | (j < 0) | (j >= kv_lengths) | no_room

    compressed = sparse_mode >= 2 and atten_mask is not None and is_compressed(atten_mask)
    require(
        sparse_mode < 2 or decoding or compressed,
        f"expected the [2048, 2048] atten_mask with sparse_mode {sparse_mode}, "
        f"got {'none' if atten_mask is None else list(atten_mask.shape)}",
    )
    offset = kv_lengths - q_lengths
    if not decoding:
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
        masked = masked | full_mask(require, atten_mask, batch, rows, keys, paged, decoding)

    group = num_heads // kv_heads
    k = k.to(compute).repeat_interleave(group, dim=1)
    # What lies beyond the lengths is no number to reckon with, not even times zero.
    v = v.to(compute).masked_fill(unused, 0.0).repeat_interleave(group, dim=1)
    scores = q.to(compute) @ k.transpose(2, 3) * scale
    if integers:
        scores = scores * number(dequant_scale1)
    if pse_shift is not None:
        shape = list(pse_shift.shape)
        require(not packed, f"expected no pse_shift for input_layout {input_layout}, got {shape}")
        require(
            pse_shift.dtype == like,
            f"expected pse_shift of {like} with query {query.dtype}, got {pse_shift.dtype}",
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
    # Without keys there is no maximum to take.
    maximum = scores.amax(-1, keepdim=True) if scores.shape[3] else scores.sum(-1, keepdim=True)
    maximum = maximum.masked_fill(maximum == float("-inf"), 0.0)
    weights = torch.exp(scores - maximum)
    total = weights.sum(-1, keepdim=True)
    if integers:
        weights = (weights * number(quant_scale1)).round().clamp(-128, 127)
    out = (weights @ v) / total.masked_fill(total == 0, 1.0)
    if integers:
        out = out * number(dequant_scale2)
    require(
        quant_scale2 is not None or quant_offset2 is None,
        "expected quant_scale2 with quant_offset2, got none",
    )
    if quant_scale2 is not None:
        out = quantise(require, out, quant_scale2, quant_offset2)
    else:
        out = out.to(like)
    lse = (maximum + total.log()).to(torch.float32)
    if packed:
        lse = lse[0].transpose(0, 1).contiguous()
    return operands.result(out), lse


def quantise(require, out, scale, offset):
    """Return [B, N, S, D] as int8, with one scale or one for each head and column."""
    columns = out.shape[1] * out.shape[3]
    require(
        scale.numel() in (1, columns),
        f"expected quant_scale2 with 1 or {columns} elements, got {list(scale.shape)}",
    )
    require(
        offset is None or (offset.dtype == scale.dtype and offset.numel() == scale.numel()),
        f"expected quant_offset2 like quant_scale2, {scale.dtype} {list(scale.shape)}, got "
        f"{None if offset is None else (offset.dtype, list(offset.shape))}",
    )

    def spread(x):
        if x.numel() == 1:
            return x.reshape(1, 1, 1, 1).to(out.dtype)
        return x.reshape(1, out.shape[1], 1, out.shape[3]).to(out.dtype)

    out = out * spread(scale)
    if offset is not None:
        out = out + spread(offset)
    return out.round().clamp(-128, 127).to(torch.int8)
