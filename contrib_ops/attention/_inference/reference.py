"""Inference attention in plain torch: operands, positions and the computation of a call."""

from __future__ import annotations

from onnxruntime_npu.opdef import torch

from .._masked_product import masked_product
from .._patterns import bounded
from .arguments import Arguments
from .combinations import check_combination
from .operands import Operands
from .quantisation import dequantise, number, quantise
from .sequences import full_mask, is_compressed, lengths_per_batch, packed_mask, packed_rows


def attend(op, query, key, value, **arguments):
    """Return softmax(scale * Q K^T + pse_shift, masked) V and its log-sum-exp, [B, N, Sq, 1] or,
    in T layouts, [T, N, 1] float32. The arguments are those of Call.
    """
    return Call(op, query, key, value, **arguments).run()


def result_tensors(
    op, query, value, block_table=None, query_rope=None, quant_scale2=None, softmax_lse_flag=False,
    **attributes,
):  # fmt: skip
    """Return tensors like attention and log-sum-exp of a call, with whatever is in their memory."""
    call = Call(op, query, value, value, **attributes)
    call.check_attributes()
    pages = None if block_table is None else block_table.to("meta")
    rows_of_page = value.shape[1 if value.dim() == 3 else -2]
    operands = Operands(
        call.require, call.input_layout, call.num_heads, call.kv_heads, pages, rows_of_page
    )
    q = operands.rows("query", query.to("meta"), call.num_heads)
    batch, heads, rows, _ = q.shape
    size = operands.cache("value", value.to("meta"), batch).shape[3]
    lse = [1]
    if softmax_lse_flag:
        lse = [rows, heads, 1] if operands.packed else [batch, heads, rows, 1]
    dtype = query.dtype
    if quant_scale2 is not None:
        dtype = torch.int8
    elif dtype == torch.int8:
        dtype = torch.float16 if query_rope is None else query_rope.dtype
    out = operands.result(q.new_empty(batch, heads, rows, size)).shape
    return (
        torch.empty(out, dtype=dtype, device=query.device),
        torch.empty(lse, dtype=torch.float32, device=query.device),
    )


class Call(Arguments):
    """One call of an inference operator."""

    def run(self):
        """Return attention and log-sum-exp."""
        self.check_attributes()
        self.check_types()
        check_combination(self)
        self.set_operands()
        self.set_rope()
        self.set_prefix()
        self.set_positions()
        masked = self.masked()
        bias = None if self.pse_shift is None else self.bias()
        if self.paged:
            self.operands.check_table(self.op, self.seen, self.key.shape[0])
        group = self.num_heads // self.kv_heads
        k = self.k.to(self.compute).repeat_interleave(group, dim=1)
        v = self.v.to(self.compute).repeat_interleave(group, dim=1)
        scores = self.q.to(self.compute) @ k.transpose(2, 3) * self.scale
        if self.integers and self.query_rope is None:
            scores = scores * number(self.dequant_scale1)
        if bias is not None:
            scores = scores + bias
        scores = scores.masked_fill(masked, float("-inf"))
        # Without keys there is no max.
        maximum = scores.amax(-1, keepdim=True) if scores.shape[3] else scores.sum(-1, keepdim=True)
        maximum = maximum.masked_fill(maximum == float("-inf"), 0.0)
        weights = torch.exp(scores - maximum)
        total = weights.sum(-1, keepdim=True)
        if self.integers:
            weights = (weights * number(self.quant_scale1)).round().clamp(-128, 127)
        out = masked_product(weights, masked, v) / total.masked_fill(total == 0, 1.0)
        if self.integers:
            out = out * number(self.dequant_scale2)
        self.require(
            self.quant_scale2 is not None or self.quant_offset2 is None,
            "expected quant_scale2 with quant_offset2, got none",
        )
        if self.quant_scale2 is None:
            out = out.to(self.like)
        else:
            out = quantise(self.require, out, self.quant_scale2, self.quant_offset2)
        lse = (maximum + total.log()).to(torch.float32)
        if self.packed:
            lse = lse[0].transpose(0, 1).contiguous()
        return self.operands.result(out), lse

    def set_operands(self):
        """Set q, k and v as [B, N, S, D]; keys and values are dequantised from here on."""
        require, table = self.require, self.block_table
        self.operands = Operands(
            require, self.input_layout, self.num_heads, self.kv_heads, table, self.block_size
        )
        self.packed, self.paged = self.operands.packed, table is not None
        self.q = self.operands.rows("query", self.query, self.num_heads)
        self.batch, _, self.rows, size = self.q.shape
        k = self.operands.cache("key", self.key, self.batch)
        v = self.operands.cache("value", self.value, self.batch)
        self.own_keys = self.keys = keys = k.shape[2]
        require(k.shape[3] == size, f"expected key of query's head size {size}, got {k.shape[3]}")
        require(
            v.shape[2] == keys, f"expected value of key's sequence length {keys}, got {v.shape[2]}"
        )
        blocks = self.key.shape[0]
        require(
            not self.paged or blocks == self.value.shape[0],
            f"expected value of key's {blocks} blocks, got {self.value.shape[0]}",
        )
        self.numbers = {"key": lambda x: x, "value": lambda x: x}
        if self.quantised:
            entries = table.shape[0] if self.paged else k.shape[0]
            self.set_antiquant({"key": k.shape[3], "value": v.shape[3]}, entries, blocks)
        self.k, self.v = self.numbers["key"](k), self.numbers["value"](v)

    def set_antiquant(self, sizes, entries, blocks):
        """Set the dequantisation of key and value."""
        require, joint = self.require, self.antiquant_scale is not None
        own = (self.key_antiquant_scale, self.value_antiquant_scale)
        require(
            all((x is None) == joint for x in own),
            "expected either antiquant_scale or both key_antiquant_scale and value_antiquant_scale",
        )
        require(
            joint or self.antiquant_offset is None,
            "expected antiquant_scale with antiquant_offset, got none",
        )
        require(
            not joint
            or (self.key_antiquant_offset is None and self.value_antiquant_offset is None),
            "expected antiquant_offset with antiquant_scale, got an offset of key or value alone",
        )
        for kind, size in sizes.items():
            prefix = "antiquant" if joint else f"{kind}_antiquant"
            scale, offset, mode = (
                getattr(self, f"{prefix}_{part}") for part in ("scale", "offset", "mode")
            )
            self.numbers[kind] = dequantise(
                self.operands, kind, scale, offset, mode, joint, size, self.keys, entries, blocks,
                self.query.dtype,
            )  # fmt: skip

    def set_rope(self):
        """Append the rope parts to q and k."""
        require, query, key = self.require, self.query_rope, self.key_rope
        require(
            (query is None) == (key is None),
            "expected query_rope and key_rope together, "
            f"got only {'query_rope' if key is None else 'key_rope'}",
        )
        if query is None:
            return
        dtype = self.query.dtype
        alike = "one dtype" if self.integers else f"query's dtype {dtype}"
        require(
            query.dtype == key.dtype == (key.dtype if self.integers else dtype),
            f"expected query_rope and key_rope of {alike}, got {query.dtype} and {key.dtype}",
        )
        q = self.operands.rows("query_rope", query, self.num_heads)
        k = self.operands.cache("key_rope", key, self.batch)
        require(
            q.shape[:3] == self.q.shape[:3],
            f"expected query_rope of query's shape but for the head size, got {list(query.shape)}",
        )
        require(
            k.shape[2] == self.keys
            and k.shape[3] == q.shape[3]
            and (not self.paged or key.shape[0] == self.key.shape[0]),
            "expected key_rope of key's shape with query_rope's head size "
            f"{q.shape[3]}, got {list(key.shape)}",
        )
        if self.integers:
            self.q = self.q.to(self.compute) * number(self.dequant_scale1)
        self.q = torch.cat([self.q, q.to(self.q.dtype)], 3)
        self.k = torch.cat([self.k.to(self.compute), k.to(self.compute)], 3)

    def set_prefix(self):
        """Prepend the shared prefix to k and v."""
        require, given = self.require, self.actual_shared_prefix_len
        fronts = {"key": self.key_shared_prefix, "value": self.value_shared_prefix}
        require(
            (fronts["key"] is None) == (fronts["value"] is None),
            "expected key_shared_prefix and value_shared_prefix together, got only "
            f"{'key' if fronts['value'] is None else 'value'}_shared_prefix",
        )
        require(
            fronts["key"] is not None or given is None,
            "expected key_shared_prefix with actual_shared_prefix_len, got none",
        )
        self.prefix = 0
        if fronts["key"] is None:
            return
        for kind, own, size in (("key", self.key, self.k), ("value", self.value, self.v)):
            name, x, size = f"{kind}_shared_prefix", fronts[kind], size.shape[3]
            require(
                x.dtype == own.dtype,
                f"expected {name} of {kind}'s dtype {own.dtype}, got {x.dtype}",
            )
            x = self.operands.rows(name, x, self.kv_heads)
            require(x.shape[0] == 1, f"expected {name} of batch size 1, got {x.shape[0]}")
            require(
                x.shape[3] == size,
                f"expected {name} of {kind}'s head size {size}, got {x.shape[3]}",
            )
            fronts[kind] = x
        rows = fronts["key"].shape[2]
        require(
            fronts["value"].shape[2] == rows,
            f"expected value_shared_prefix of key_shared_prefix's sequence length {rows}, "
            f"got {fronts['value'].shape[2]}",
        )
        lengths_per_batch(require, "actual_shared_prefix_len", given, 1, rows, self.query)
        self.prefix = rows if given is None else given[0]

        def joined(kind, own):
            front = self.numbers[kind](fronts[kind][:, :, : self.prefix])
            return torch.cat([front.expand(own.shape[0], -1, -1, -1), own], 2)

        self.k, self.v = joined("key", self.k), joined("value", self.v)
        self.keys = self.prefix + self.own_keys

    def set_positions(self):
        """Set lengths and positions i of queries and j of keys, which broadcast to [B, N, Sq, Skv].

        `outside` is the mask that follows from lengths alone.
        """
        require, kv_name = self.require, self.name("actual_seq_lengths_kv")
        require(
            not self.paged or self.actual_seq_lengths_kv is not None,
            f"expected {kv_name} with block_table, got none",
        )
        require(
            (self.query_padding_size is None and self.kv_padding_size is None)
            or not (self.packed or self.paged),
            "expected no query_padding_size and kv_padding_size with block_table or a T layout",
        )
        require(
            self.decode != "always" or self.rows == 1, f"expected one query row, got {self.rows}"
        )
        single = self.rows == 1 and not self.packed and self.query_rope is None
        self.decoding = self.decode == "always" or (self.decode == "single row" and single)
        if self.packed:
            self.set_packed_positions(kv_name)
        else:
            self.set_batched_positions(kv_name)

    def set_packed_positions(self, kv_name):
        """Set the positions of rows in packed sequences."""
        require, query, keys = self.require, self.query, self.keys
        given, kv_given = self.actual_seq_lengths, self.actual_seq_lengths_kv
        require(
            given is not None and kv_given is not None,
            f"expected actual_seq_lengths and {kv_name} for input_layout {self.input_layout}",
        )
        lengths, sequence, i = packed_rows(require, "actual_seq_lengths", given, self.rows, query)
        count = len(given)
        if self.paged:
            require(
                self.block_table.shape[0] == count,
                "expected one row of block_table per entry of actual_seq_lengths, "
                f"got {list(self.block_table.shape)}",
            )
            kv_lengths = lengths_per_batch(require, kv_name, kv_given, count, keys, query)
            kv_lengths = kv_lengths.expand(count)
            self.seen = torch.where(lengths[:-1] > 0, kv_lengths, 0)
            kv_lengths = torch.cat([kv_lengths, kv_lengths.new_zeros(1)])
            self.k, self.v = (x.transpose(0, 1).flatten(1, 2)[None] for x in (self.k, self.v))
            row = torch.arange(count * keys, device=query.device)
            kv_sequence, j = row // max(keys, 1), row % max(keys, 1)
        else:
            require(
                len(kv_given) == count,
                f"expected {kv_name} with {count} entries, got {len(kv_given)}",
            )
            kv_lengths, kv_sequence, j = packed_rows(require, kv_name, kv_given, keys, query)
        self.set_sides(given, kv_given)
        self.sequence = sequence
        self.q_lengths, self.kv_lengths = lengths[sequence][:, None], kv_lengths[sequence][:, None]
        self.i, self.j = i[:, None], j[None, :]
        outside = (sequence[:, None] != kv_sequence[None, :]) | (self.i >= self.q_lengths)
        self.outside = (outside | (self.j >= self.kv_lengths))[None, None]

    def set_sides(self, ends, kv_ends):
        """Set the number of sequences, and of rows and keys of the longest with queries."""
        rows = [end - begin for begin, end in zip([0, *ends], ends, strict=False)]
        keys = [end - begin for begin, end in zip([0, *kv_ends], kv_ends, strict=False)]
        if self.paged:
            keys = list(kv_ends) * (len(rows) if len(kv_ends) == 1 else 1)
        keys = [n for n, m in zip(keys, rows, strict=False) if m > 0]
        self.sides = len(rows), max(rows, default=0), max(keys, default=0)

    def of_sequences(self, planes):
        """Return [B or 1, .., S, K] as what each packed row and key have of it, [.., Sq, Skv]."""
        count, rows, keys = planes.shape[0], planes.shape[-2], planes.shape[-1]
        # A row of no sequence and a key of another are masked, whatever is read for them.
        spare = torch.nn.functional.pad(planes.flatten(-2), (0, 1)).transpose(0, -2).flatten(-2)
        plane = self.sequence.clamp(max=count - 1)[:, None]
        row = self.i.clamp(max=max(rows - 1, 0))  # of one row: the same for all
        place = plane * (rows * keys + 1) + row * keys + self.j
        place = place.clamp(max=count * (rows * keys + 1) - 1)
        return spare.index_select(-1, place.flatten()).unflatten(-1, place.shape)

    def set_batched_positions(self, kv_name):
        """Set the positions of rows in batch entries, not counting padding on the left."""
        require, device = self.require, self.query.device
        given = None if self.decoding else self.actual_seq_lengths
        lengths = lengths_per_batch(
            require, "actual_seq_lengths", given, self.batch, self.rows, self.query
        ).view(-1, 1, 1, 1)
        kv_lengths = lengths_per_batch(
            require, kv_name, self.actual_seq_lengths_kv, self.batch, self.own_keys, self.query
        )
        self.seen = torch.where(lengths.flatten() > 0, kv_lengths, 0)  # keys that queries look at
        kv_lengths = kv_lengths.view(-1, 1, 1, 1)
        i = torch.arange(self.rows, device=device)[:, None]
        j = torch.arange(self.keys, device=device)[None, :]
        no_room = torch.zeros(1, 1, 1, 1, dtype=torch.bool, device=device)

        def begin_of(name, lengths, limit):
            padding = getattr(self, name)
            require(
                padding.numel() == 1 and padding.dtype == torch.int64,
                f"expected {name} as one int64, got {padding.dtype} {list(padding.shape)}",
            )
            return limit - padding.reshape(1, 1, 1, 1).clamp(min=0) - lengths

        if self.query_padding_size is not None and not self.decoding:
            begin = begin_of("query_padding_size", lengths, self.rows)
            i, no_room = i - begin, no_room | (begin < 0)
        own = j >= self.prefix
        if self.kv_padding_size is not None:
            begin = begin_of("kv_padding_size", kv_lengths, self.own_keys)
            j, no_room = torch.where(own, j - begin, j), no_room | (begin < 0)
        kv_lengths = kv_lengths + self.prefix
        hidden = (own & (j < self.prefix)) | (j >= kv_lengths) | no_room
        self.outside = hidden | (i < 0) | (i >= lengths)
        self.i, self.j, self.q_lengths, self.kv_lengths = i, j, lengths, kv_lengths

    def masked(self):
        """Return where scores are masked, to broadcast to [B, N, Sq, Skv]."""
        mode, mask, i, j = self.sparse_mode, self.atten_mask, self.i, self.j
        compressed = mode >= 2 and mask is not None and is_compressed(mask)
        self.require(
            mode < 2 or self.decoding or compressed,
            f"expected the [2048, 2048] atten_mask with sparse_mode {mode}, "
            f"got {'none' if mask is None else list(mask.shape)}",
        )
        masked, offset = self.outside, self.kv_lengths - self.q_lengths
        before, behind = bounded(self.pre_tokens), bounded(self.next_tokens)
        if not self.decoding:
            if mode == 0 and mask is not None:
                masked = masked | (j < i - before) | (j > i + behind)
            elif mode == 2:
                masked = masked | (j > i)
            elif mode == 3:
                masked = masked | (j > i + offset)
            elif mode == 4:
                at = i + offset
                masked = masked | (j < at - before) | (j > at + behind)
        if mask is None or compressed:
            return masked
        if self.packed:
            planes = packed_mask(self.require, mask, *self.sides, self.input_layout)
            return masked | self.of_sequences(planes)
        return masked | full_mask(
            self.require, mask, self.batch, self.rows, self.keys, self.paged, self.decoding
        )

    def bias(self):
        """Return pse_shift cut to [B or 1, N, 1 or Sq, Skv]."""
        pse, batch, heads, rows, keys = (
            self.pse_shift, self.batch, self.num_heads, self.rows, self.keys
        )  # fmt: skip
        shape = list(pse.shape)
        if self.packed:
            batch, rows, keys = self.sides
        self.require(
            pse.dtype == self.like,
            f"expected pse_shift of {self.like} with query {self.query.dtype}, got {pse.dtype}",
        )
        self.require(
            len(shape) == 4
            and shape[0] in (1, batch)
            and shape[1] == heads
            and (shape[2] == 1 or shape[2] >= rows)
            and shape[3] >= keys,
            f"expected pse_shift of shape [1 or {batch}, {heads}, 1 or >= {rows}, >= {keys}], "
            f"got {shape}",
        )
        if self.packed:
            return self.of_sequences(pse.to(self.compute))
        return pse[:, :, :rows, :keys].to(self.compute)
