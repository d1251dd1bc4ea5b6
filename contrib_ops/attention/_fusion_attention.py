"""What training attention and its backward pass share: arguments, semantics and sample calls."""

from onnxruntime_npu.opdef import check, torch

from ._dropout import factors
from ._inference_rows import bounded
from ._masked_product import masked_product

# sic: the schema's spelling
ARGUMENTS = "int pre_tockens=2147483647, int next_tockens=2147483647, int inner_precise=0, "
LAYOUTS = {
    "BSH": "[B, S, N*D]",
    "SBH": "[S, B, N*D]",
    "BSND": "[B, S, N, D]",
    "BNSD": "[B, N, S, D]",
    "TND": "[T, N, D]",
}
PATTERNS = {2: 2048, 3: 2048, 4: 2048, 6: 3072, 7: 2048, 8: 2048}  # sparse mode: rows of its mask
MAX_HEAD_SIZE = 768
WIDTH = 8  # how often statistics repeat a value
COMPRESSED_BIAS = 1024


class Problem:
    """The arguments both passes share, checked, as a list of blocks of equal sequences.

    A block is a batch of sequences of one length, or one sequence of TND.
    """

    def __init__(self, name, query, key, value, a):
        self.name = name
        self.layout = a["input_layout"]
        self.heads = a["head_num"]
        self.mode = a["sparse_mode"]
        self.a = a
        self.query, self.like = query, query
        self.packed = self.layout == "TND"
        self.check_attributes()
        self.require(
            a["padding_mask"] is None,
            "expected no padding_mask, which torch_npu does not support either, "
            f"got {a['padding_mask'] is not None and list(a['padding_mask'].shape)}",
        )
        self.require(
            query.dtype == key.dtype == value.dtype,
            "expected query, key and value of one dtype, "
            f"got {query.dtype}, {key.dtype} and {value.dtype}",
        )
        self.compute = torch.float64 if query.dtype == torch.float64 else torch.float32
        q = self.apart("query", query, self.heads)
        self.batch, heads, self.rows, self.size = q.shape
        self.require(
            heads == self.heads,
            f"expected {self.heads} heads in query, got {heads} in shape {list(query.shape)}",
        )
        self.kv_heads = self.key_heads(key)
        k = self.apart("key", key, self.kv_heads)
        v = self.apart("value", value, self.kv_heads)
        self.keys = k.shape[2]
        self.require(
            k.shape[3] == self.size,
            f"expected key of query's head size {self.size}, got {k.shape[3]}",
        )
        self.require(
            k.shape[0] == self.batch and v.shape[0] == self.batch,
            f"expected key and value of query's batch size {self.batch}, "
            f"got {k.shape[0]} and {v.shape[0]}",
        )
        self.require(
            v.shape[1] == k.shape[1] and v.shape[2] == self.keys,
            f"expected value with key's {k.shape[1]} heads and {self.keys} rows, "
            f"got {v.shape[1]} and {v.shape[2]}",
        )
        self.q, self.k, self.v = (x.to(self.compute) for x in (q, k, v))
        self.spans = self.find_spans()  # (first row, rows, first key, keys), one per block
        self.check_mask()
        self.check_bias()
        sink = a["sink"]
        self.require(
            sink is None or list(sink.shape) == [self.heads],
            f"expected sink float32 of shape [{self.heads}], "
            f"got {'' if sink is None else list(sink.shape)}",
        )

    def require(self, condition, message):
        """Raise the operator's error unless the condition holds."""
        check(condition, f"[{self.name}] {message}")

    def check_attributes(self):
        """Check what is no tensor."""
        a = self.a
        self.require(
            self.layout in LAYOUTS,
            f"expected input_layout BSH, SBH, BSND, BNSD or TND, got '{self.layout}'",
        )
        self.require(
            1 <= self.heads < 2**31, f"expected head_num in [1, 2147483647], got {self.heads}"
        )
        self.require(
            0 <= a["keep_prob"] <= 1, f"expected keep_prob in [0, 1], got {a['keep_prob']}"
        )
        self.require(self.mode in range(9), f"expected sparse_mode in [0, 8], got {self.mode}")
        self.require(
            self.mode < 7 or self.packed,
            f"expected input_layout TND with sparse_mode {self.mode}, got {self.layout}",
        )
        self.require(
            self.mode != 5 or not self.packed,
            "expected sparse_mode 6 for a prefix in input_layout TND, got 5",
        )
        self.require(
            a["inner_precise"] in (0, 1, 2),
            f"expected inner_precise 0, 1 or 2, got {a['inner_precise']}",
        )
        self.require(
            a["softmax_layout"] in ("", "TND"),
            f"expected softmax_layout '' or 'TND', got '{a['softmax_layout']}'",
        )

    def check_rank(self, name, x):
        """Check the number of axes."""
        form = LAYOUTS[self.layout]
        self.require(
            x.dim() == form.count(",") + 1,
            f"expected {name} of shape {form} for input_layout {self.layout}, got {list(x.shape)}",
        )

    def key_heads(self, key):
        """Return how many heads key has; joined with their size, query's size tells."""
        self.check_rank("key", key)
        if self.layout in ("BSH", "SBH"):
            self.require(
                key.shape[2] >= self.size and key.shape[2] % self.size == 0,
                "expected the last axis of key to be a multiple of query's head size "
                f"{self.size}, got shape {list(key.shape)}",
            )
            heads = key.shape[2] // self.size
        else:
            heads = key.shape[1 if self.layout in ("BNSD", "TND") else 2]
        self.require(
            heads >= 1 and self.heads % heads == 0,
            f"expected the heads of key to divide head_num {self.heads}, got {heads}",
        )
        return heads

    def apart(self, name, x, heads):
        """Return x as [B, N, S, D]; packed sequences are one batch entry."""
        self.check_rank(name, x)
        if self.layout in ("BSH", "SBH"):
            self.require(
                x.shape[2] % heads == 0,
                f"expected the last axis of {name} to be a multiple of its {heads} heads, "
                f"got {x.shape[2]}",
            )
            x = x.unflatten(2, (heads, x.shape[2] // heads))
        self.require(
            1 <= x.shape[-1] <= MAX_HEAD_SIZE,
            f"expected a head size from 1 to {MAX_HEAD_SIZE} in {name}, got {x.shape[-1]}",
        )
        if self.layout == "SBH":
            return x.permute(1, 2, 0, 3)
        if self.packed:
            return x.transpose(0, 1)[None]
        return x if self.layout == "BNSD" else x.transpose(1, 2)

    def together(self, x):
        """Return [B, N, S, D] with the axes of the layout."""
        if self.layout == "SBH":
            x = x.permute(2, 0, 1, 3)
        elif self.packed:
            x = x[0].transpose(0, 1)
        elif self.layout != "BNSD":
            x = x.transpose(1, 2)
        x = x.contiguous()
        return x.flatten(2) if self.layout in ("BSH", "SBH") else x

    def find_spans(self):
        """Return where the sequences lie."""
        if not self.packed:
            return [(0, self.rows, 0, self.keys)]
        lists = []
        for name, limit in (("actual_seq_qlen", self.rows), ("actual_seq_kvlen", self.keys)):
            self.require(
                self.a["actual_seq_qlen"] is not None and self.a["actual_seq_kvlen"] is not None,
                "expected actual_seq_qlen and actual_seq_kvlen for input_layout TND",
            )
            ends = list(self.a[name])
            count = len(ends)
            while ends and ends[-1] == 0:
                ends.pop()  # unused entries
            begin = 0
            for end in ends:
                self.require(
                    begin <= end <= limit,
                    f"expected {name} to ascend within [0, {limit}], got {end} behind {begin}",
                )
                begin = end
            lists.append([0, *ends, *[begin] * (count - len(ends))])
        q, kv = lists
        self.require(
            len(q) == len(kv),
            f"expected actual_seq_kvlen with {len(q) - 1} entries, got {len(kv) - 1}",
        )
        spans = [(q[b], q[b + 1] - q[b], kv[b], kv[b + 1] - kv[b]) for b in range(len(q) - 1)]
        if q[-1] < self.rows:  # rows of no sequence
            spans.append((q[-1], self.rows - q[-1], 0, 0))
        return spans

    def sequences(self):
        """Return how many sequences there are."""
        return len(self.a["actual_seq_qlen"]) if self.packed else self.batch

    def used(self):
        """Return the numbers of the sequences that have queries and keys."""
        return [b for b, (_, rows, _, keys) in enumerate(self.spans) if rows and keys]

    def mask_sides(self):
        """Return rows and keys that a mask or bias has."""
        if not self.packed:
            return self.rows, self.keys
        spans = self.spans[: len(self.a["actual_seq_qlen"])]
        return max([s[1] for s in spans], default=0), max([s[3] for s in spans if s[1]], default=0)

    def check_mask(self):
        """Check atten_mask and prefix."""
        mask, prefix = self.a["atten_mask"], self.a["prefix"]
        if mask is None:
            return
        if self.mode in (5, 6):
            self.require(
                prefix is not None,
                f"expected prefix as a list of integers with sparse_mode {self.mode}, got none",
            )
            for b, n in enumerate(prefix):
                limit = self.keys
                if self.packed:
                    limit = self.spans[b][3] if b < len(self.spans) and self.spans[b][1] else n
                self.require(
                    0 <= n <= limit or b >= max(self.batch, len(self.spans)),
                    f"expected prefix in [0, {limit}], got {n} for batch entry {b}",
                )
            sequences = self.sequences()
            self.require(
                len(prefix) >= sequences,
                f"expected prefix with an entry for every sequence, got {len(prefix)}",
            )
        shape = list(mask.shape)
        rows, keys = self.mask_sides()
        if self.mode in PATTERNS:
            side = PATTERNS[self.mode]
            self.require(
                len(shape) in (2, 3, 4)
                and shape[-2:] == [side, 2048]
                and all(n == 1 for n in shape[:-2]),
                f"expected the [{side}, 2048] atten_mask with sparse_mode {self.mode}, got {shape}",
            )
        elif self.packed:
            self.require(
                len(shape) == 2 and shape[0] >= rows and shape[1] >= keys,
                f"expected atten_mask of shape [>= {rows}, >= {keys}] for input_layout TND, "
                f"got {shape}",
            )
        else:
            self.require(
                len(shape) in (2, 4)
                and shape[-2:] == [rows, keys]
                and (
                    len(shape) == 2 or (shape[0] in (1, self.batch) and shape[1] in (1, self.heads))
                ),
                f"expected atten_mask of shape [{rows}, {keys}] or [1 or {self.batch}, "
                f"1 or {self.heads}, {rows}, {keys}], got {shape}",
            )

    def check_bias(self):
        """Check pse."""
        pse = self.a["pse"]
        if pse is None:
            return
        self.require(self.mode < 7, f"expected no pse with sparse_mode {self.mode}")
        self.require(
            pse.dtype == self.like.dtype,
            f"expected pse of query's dtype {self.like.dtype}, got {pse.dtype}",
        )
        shape = list(pse.shape)
        rows, keys = self.mask_sides()
        batch = self.sequences()
        least = ">= " if self.packed else ""
        fits = len(shape) == 4 and shape[0] in (1, batch) and shape[1] == self.heads
        if fits and self.packed:
            fits = (shape[2] == 1 or shape[2] >= rows) and shape[3] >= keys
        elif fits:
            fits = (shape[2] in (1, rows) or self.bias_is_compressed()) and shape[3] == keys
        self.require(
            fits,
            f"expected pse of shape [1 or {batch}, {self.heads}, 1 or {least}{rows}, "
            f"{least}{keys}], got {shape}",
        )

    def bias_is_compressed(self):
        """Whether the last 1024 rows stand for all."""
        rows = self.a["pse"].shape[2]
        return not self.packed and rows == COMPRESSED_BIAS < self.rows == self.keys

    def bias_of(self, b, pse):
        """Return the part of pse that belongs to block b, [B or 1, N, Sq or 1, Skv]."""
        _, rows, _, keys = self.spans[b]
        if self.packed:
            entry = min(b, pse.shape[0] - 1)  # behind the last there are no keys
            return pse[entry : entry + 1, :, : 1 if pse.shape[2] == 1 else rows, :keys]
        if not self.bias_is_compressed():
            return pse
        first = rows - COMPRESSED_BIAS
        i = torch.arange(first, device=pse.device)[:, None]
        source = torch.arange(keys, device=pse.device) + (rows - 1 - i)
        last = pse[:, :, -1][:, :, source.clamp(max=keys - 1)]
        return torch.cat([last.masked_fill(source >= keys, 0.0), pse], 2)

    def add_bias_gradient(self, b, d_scores, to):
        """Add to `to`, which is like pse, what reaches it from block b."""
        _, rows, _, keys = self.spans[b]
        if self.packed:
            entry = min(b, to.shape[0] - 1)
            to = to[entry : entry + 1, :, : 1 if to.shape[2] == 1 else rows, :keys]
        elif self.bias_is_compressed():
            first = rows - COMPRESSED_BIAS
            i = torch.arange(first, device=to.device)[:, None]
            source = torch.arange(keys, device=to.device) + (rows - 1 - i)
            early = d_scores[:, :, :first].masked_fill(source >= keys, 0.0).flatten(2)
            d_scores = d_scores[:, :, first:].clone()
            d_scores[:, :, -1].index_add_(2, source.clamp(max=keys - 1).flatten(), early)
        to += d_scores.sum_to_size(to.shape)

    def masked(self, b):
        """Return what block b may not see: bool of [B or 1, N or 1, Sq, Skv]."""
        _, rows, _, keys = self.spans[b]
        device = self.like.device
        i = torch.arange(rows, device=device)[:, None]
        j = torch.arange(keys, device=device)[None, :]
        mask, mode = self.a["atten_mask"], self.mode
        if mask is None:
            return torch.zeros(1, 1, rows, keys, dtype=torch.bool, device=device)
        pre, following = bounded(self.a["pre_tockens"]), bounded(self.a["next_tockens"])
        used = self.used()
        if (mode == 7 and used and b == used[-1]) or (mode == 8 and used and b == used[0]):
            mode = 4
        delta = keys - rows
        origin = 0 if mode == 0 else delta
        if mode in (0, 4):
            hidden = (j < i + origin - pre) | (j > i + origin + following)
        elif mode in (2, 8):
            hidden = j > i
        elif mode in (3, 7):
            hidden = j > i + delta
        elif mode in (5, 6):
            if self.packed:  # a sequence of no list has no keys either
                seen = [[*self.a["prefix"], 0][min(b, len(self.a["prefix"]))]]
            else:
                seen = list(self.a["prefix"])[: self.batch]
            seen = torch.tensor(seen, dtype=torch.int64, device=device).view(-1, 1, 1, 1)
            hidden = (j > i + delta) & (j >= seen)
        else:
            hidden = torch.zeros(rows, keys, dtype=torch.bool, device=device)
        if self.mode not in PATTERNS:
            hidden = hidden | (mask[..., :rows, :keys] if self.packed else mask).bool()
        return hidden.view((1,) * (4 - hidden.dim()) + tuple(hidden.shape))

    def first_weight(self, b):
        """Return the number of the first weight of block b."""
        return sum(self.heads * rows * keys for _, rows, _, keys in self.spans[:b])

    def dropout(self, b, seed, offset, bits=None):
        """Return the factors of the weights of block b, or 1."""
        if self.a["keep_prob"] == 1:
            return 1.0
        _, rows, _, keys = self.spans[b]
        shape = (self.batch, self.heads, rows, keys)
        first = self.first_weight(b)
        count = self.batch * self.heads * rows * keys
        number = torch.arange(first, first + count, device=self.like.device).view(shape)
        if bits is not None:
            self.require(
                bits.numel() >= (self.weights() + 7) // 8,
                f"expected dropout_mask uint8 with a bit for each of {self.weights()} weights, "
                f"got {bits.dtype} {list(bits.shape)}",
            )
        return factors(self.a["keep_prob"], number, seed, offset, bits).to(self.compute)

    def weights(self):
        """Return how many weights there are."""
        return self.first_weight(len(self.spans)) * self.batch

    def block(self, b):
        """Return q [B, N, Sq, D], and k and v [B, N, Skv, D] with a head per query head."""
        row, rows, first, keys = self.spans[b]
        group = self.heads // self.kv_heads
        k, v = (
            x[:, :, first : first + keys].repeat_interleave(group, dim=1) for x in (self.k, self.v)
        )
        return self.q[:, :, row : row + rows], k, v

    def scores(self, b, q, k, scale):
        """Return scale * (Q K^T + pse) with -inf where masked, and what is masked."""
        scores = q @ k.transpose(2, 3)
        if self.a["pse"] is not None:
            scores = scores + self.bias_of(b, self.a["pse"].to(self.compute))
        masked = self.masked(b)
        return (scores * scale).masked_fill(masked, float("-inf")), masked

    def statistics(self, x):
        """Return [B, N, Sq, 1] as softmax_max and softmax_sum are given."""
        x = x[0].transpose(0, 1) if self.packed else x
        wide = x.repeat_interleave(WIDTH, dim=-1).contiguous()
        return wide if self.compute == torch.float64 else wide.to(torch.float32)


def attend(name, query, key, value, dropout_mask=None, seed=0, offset=0, scale=1.0, **others):
    """Return the forward operator's results that are tensors; the arguments are its own."""
    p = Problem(name, query, key, value, others)
    sink = others["sink"]
    parts = []
    for b in range(len(p.spans)):
        q, k, v = p.block(b)
        scores, masked = p.scores(b, q, k, scale)
        shape = (*scores.shape[:3], 1)
        top = scores.new_full(shape, float("-inf"))
        if scores.shape[3]:
            top = scores.amax(-1, keepdim=True)
        if sink is not None:
            single = sink.to(p.compute).view(1, -1, 1, 1)
            top = torch.maximum(top, single)
        base = top.masked_fill(top == float("-inf"), 0.0)
        weights = torch.exp(scores - base)
        total = weights.sum(-1, keepdim=True)
        if sink is not None:
            total = total + torch.exp(single - base)
        weights = weights / total.masked_fill(total == 0, 1.0)
        weights = weights * p.dropout(b, seed, offset, dropout_mask)
        out = masked_product(weights, masked, v)
        parts.append((out, top, total))
    if not parts:  # TND without sequences or rows
        empty = p.q.new_zeros(1, p.heads, 0, 1)
        parts.append((p.q.new_zeros(1, p.heads, 0, p.v.shape[3]), empty, empty))
    out, top, total = (torch.cat(x, 2) for x in zip(*parts, strict=True))
    out = p.together(out).to(query.dtype)
    return out, p.statistics(top), p.statistics(total), query.new_zeros(0)


def gradients(
    name, query, key, value, dy, softmax_max=None, softmax_sum=None, softmax_in=None,
    attention_in=None, scale_value=1.0, seed=0, offset=0, numels=0, bits=None, **others,
):  # fmt: skip
    """Return the backward operator's results; the arguments are its own.

    bits: the forward call's dropout_mask, for which the operator has no argument.
    """
    p = Problem(name, query, key, value, others)
    shape = list(p.together(p.q.new_empty(p.batch, p.heads, p.rows, p.v.shape[3])).shape)
    for name, x in (("dy", dy), ("attention_in", attention_in)):
        p.require(
            x is not None and list(x.shape) == shape and x.dtype == query.dtype,
            f"expected {name} {query.dtype} of shape {shape}, "
            f"got {'none' if x is None else f'{x.dtype} {list(x.shape)}'}",
        )
    shape = [p.rows, p.heads, WIDTH] if p.packed else [p.batch, p.heads, p.rows, WIDTH]
    for name, x in (("softmax_max", softmax_max), ("softmax_sum", softmax_sum)):
        p.require(
            x is not None and list(x.shape) == shape,
            f"expected {name} float32 of shape {shape}, "
            f"got {'none' if x is None else list(x.shape)}",
        )
    p.require(
        p.a["keep_prob"] in (0, 1) or seed != 0 or bits is not None,
        "expected the seed that the forward call returned with keep_prob < 1, got 0",
    )

    def rows_of(x):
        x = x[..., :1].to(p.compute)
        return x.transpose(0, 1)[None] if p.packed else x

    top, total = rows_of(softmax_max), rows_of(softmax_sum)
    d_out = p.apart("dy", dy, p.heads).to(p.compute)
    products = (d_out * p.apart("attention_in", attention_in, p.heads)).sum(-1, keepdim=True)
    sink, pse = others["sink"], others["pse"]
    dq, dk, dv = torch.zeros_like(p.q), torch.zeros_like(p.k), torch.zeros_like(p.v)
    group = p.heads // p.kv_heads
    d_pse = query.new_zeros(0) if pse is None else torch.zeros_like(pse, dtype=p.compute)

    for b, (row, rows, first, keys) in enumerate(p.spans):
        q, k, v = p.block(b)
        here, there = slice(row, row + rows), slice(first, first + keys)
        maximum, divisor = top[:, :, here], total[:, :, here]
        scores, masked = p.scores(b, q, k, scale_value)
        weights = torch.exp(scores - maximum.masked_fill(maximum == float("-inf"), 0.0))
        weights = weights / divisor.masked_fill(divisor == 0, 1.0)
        factors = p.dropout(b, seed, offset, bits)
        d_here = d_out[:, :, here]
        d_weights = d_here @ v.transpose(2, 3) * factors
        d_scores = weights * (d_weights - products[:, :, here]) * scale_value
        d_scores = d_scores.masked_fill(masked, 0.0)
        # Where a pair sees NaN or infinity, d_scores says so already.
        q, k = (x.masked_fill(~x.isfinite(), 0.0) for x in (q, k))
        dq[:, :, here] = d_scores @ k
        for to, part in (
            (dk, d_scores.transpose(2, 3) @ q),
            (dv, (weights * factors).transpose(2, 3) @ d_here),
        ):
            to[:, :, there] = part.unflatten(1, (p.kv_heads, group)).sum(2)
        if pse is not None:
            p.add_bias_gradient(b, d_scores, d_pse)
    d_sink = query.new_zeros(0, dtype=torch.float32)
    if sink is not None:
        share = torch.exp(sink.to(p.compute).view(1, -1, 1, 1) - top.clamp(min=-3e38))
        share = share / total.masked_fill(total == 0, 1.0)
        d_sink = -(share * products).sum((0, 2, 3)).to(sink.dtype)
    return (
        p.together(dq).to(query.dtype),
        p.together(dk).to(key.dtype),
        p.together(dv).to(value.dtype),
        d_pse.to(query.dtype),
        d_sink,
    )


def pattern(sparse_mode):
    """Return the mask that only names a pattern."""
    if sparse_mode == 6:
        left = torch.arange(2048) >= 1024
        return torch.cat([torch.ones(2048, 2048).triu(1).bool(), left.expand(1024, 2048)])
    return torch.ones(2048, 2048, dtype=torch.bool).triu(1)


def prefix_mask(rows, keys, prefix):
    """Return the full mask of sparse mode 5, [B, 1, Sq, Skv]."""
    i, j = torch.arange(rows)[:, None], torch.arange(keys)
    return ((j > i + keys - rows) & (j >= torch.tensor(prefix).view(-1, 1, 1))).unsqueeze(1)


def calls(make):
    """Yield (id, query, key, value, keyword arguments) for both passes."""

    def qkv(rows, keys, heads=4, kv_heads=2, size=16, value_size=16, batch=2, layout="BNSD"):
        shapes = {
            "BSH": lambda s, n, d: (batch, s, n * d),
            "SBH": lambda s, n, d: (s, batch, n * d),
            "BSND": lambda s, n, d: (batch, s, n, d),
            "BNSD": lambda s, n, d: (batch, n, s, d),
            "TND": lambda s, n, d: (s, n, d),
        }[layout]
        tensors = (
            make(*shapes(rows, heads, size)),
            make(*shapes(keys, kv_heads, size)),
            make(*shapes(keys, kv_heads, value_size)),
        )
        return *tensors, {"head_num": heads, "input_layout": layout, "scale": 0.25}

    for layout in ("BSH", "SBH", "BSND"):
        q, k, v, given = qkv(21, 37, layout=layout)
        yield layout.lower(), q, k, v, given
    q, k, v, given = qkv(37, 70, value_size=8)
    for mode in (2, 3, 4):
        given_mode = {"sparse_mode": mode, "pre_tockens": 20, "next_tockens": 4}
        yield f"mode_{mode}", q, k, v, {**given, **given_mode, "atten_mask": pattern(mode)}
    band = {"pre_tockens": 20, "next_tockens": 30, "atten_mask": make.bools(4, 37, 70)[:1]}
    band["atten_mask"] = make.bools(2, 4, 37, 70, p=0.2)
    yield "mask_per_head_and_band", q, k, v, {**given, **band}
    band |= {"pre_tockens": 2**63 - 1, "next_tockens": 2**63 - 1}
    yield "unbounded_band", q, k, v, {**given, **band}
    whole = {"sparse_mode": 1, "atten_mask": make.bools(37, 70), "pse": make(1, 4, 37, 70)}
    yield "mask_and_bias", q, k, v, {**given, **whole}
    yield "bias_per_batch", q, k, v, {**given, "pse": make(2, 4, 37, 70)}
    yield "bias_of_a_row", q, k, v, {**given, "pse": make(2, 4, 1, 70)}
    full = {"sparse_mode": 5, "prefix": [40, 61], "atten_mask": prefix_mask(37, 70, [40, 61])}
    yield "prefix", q, k, v, {**given, **full}
    short = {"sparse_mode": 6, "prefix": [0, 61], "atten_mask": pattern(6)}
    yield "prefix_by_pattern", q, k, v, {**given, **short}
    yield "sink", q, k, v, {**given, "sink": make(4, dtype="float32")}
    yield "dropout", q, k, v, {**given, "keep_prob": 0.75, "seed": 2**40 + 7, "offset": 12}
    yield "all_dropped", q, k, v, {**given, "keep_prob": 0.0}
    masked = {"sparse_mode": 1, "atten_mask": torch.ones(37, 70, dtype=torch.uint8)}
    yield "all_masked", q, k, v, {**given, **masked}
    q, k, v, given = qkv(30, 7, size=24)
    causal = {"sparse_mode": 3, "atten_mask": pattern(3)}
    yield "rows_without_keys", q, k, v, {**given, **causal}
    q, k, v, given = qkv(1, 9, heads=6, size=16)
    yield (
        "one_query",
        q,
        k,
        v,
        {**given, "keep_prob": 0.5, "seed": 3, "sink": make(6, dtype="float32")},
    )
    q, k, v, given = qkv(150, 150, batch=1, heads=2, kv_heads=1)
    yield "several_blocks", q, k, v, {**given, **causal, "keep_prob": 0.9, "seed": 1}

    q, k, v, given = qkv(40, 61, layout="TND")
    lists = {"actual_seq_qlen": [7, 7, 30, 39, 0], "actual_seq_kvlen": [9, 20, 20, 60, 0]}
    yield "tnd", q, k, v, {**given, **lists, "keep_prob": 0.8, "seed": 5}
    lists = {"actual_seq_qlen": (7, 20, 39), "actual_seq_kvlen": (9, 30, 60)}
    for mode in (3, 7, 8):
        given_mode = {"sparse_mode": mode, "pre_tockens": 8, "next_tockens": 2}
        yield (
            f"tnd_mode_{mode}",
            q,
            k,
            v,
            {**given, **lists, **given_mode, "atten_mask": pattern(mode)},
        )
    yield "tnd_mask_and_bias", q, k, v, {
        **given, **lists, "sparse_mode": 1, "atten_mask": make.bools(25, 40),
        "pse": make(3, 4, 22, 40),
    }  # fmt: skip
    yield "tnd_prefix", q, k, v, {
        **given, **lists, "sparse_mode": 6, "prefix": [3, 0, 30], "atten_mask": pattern(6),
        "sink": make(4, dtype="float32"),
    }  # fmt: skip
    q, k, v, given = qkv(5, 9, batch=0)
    yield "no_batch", q, k, v, given
    q, k, v, given = qkv(5, 0)
    yield "no_keys", q, k, v, given
    q, k, v, given = qkv(0, 5)
    yield "no_queries", q, k, v, given
    if make.dtype == "float32":  # one dtype shows it: the bias alone is 1100 x 1100
        q, k, v, given = qkv(1100, 1100, heads=2, kv_heads=1, batch=1, size=4, value_size=4)
        yield "compressed_bias", q, k, v, {**given, **causal, "pse": make(1, 2, 1024, 1100)}


def wrong_calls():
    """Return (message, make) of what both passes refuse; make gives the forward arguments."""
    cases = []

    def call(make, change=None, **given):
        q, k, v = make(2, 4, 5, 8), make(2, 2, 7, 8), make(2, 2, 7, 8)
        given = {"head_num": 4, "input_layout": "BNSD", **given}
        return {"query": q, "key": k, "value": v, **(change(make) if change else {}), **given}

    def add(match, change=None, **given):
        cases.append((match, lambda make: call(make, change, **given)))

    add("expected input_layout BSH, SBH, BSND, BNSD or TND, got 'NSD'", input_layout="NSD")
    add(r"expected head_num in \[1, 2147483647\], got 0", head_num=0)
    add(r"expected head_num in \[1, 2147483647\], got 2147483648", head_num=2**31)
    add("expected keep_prob in .0, 1., got 1.5", keep_prob=1.5)
    add("expected sparse_mode in .0, 8., got 9", sparse_mode=9)
    add("expected input_layout TND with sparse_mode 7, got BNSD", sparse_mode=7)
    add("expected inner_precise 0, 1 or 2, got 3", inner_precise=3)
    add("expected softmax_layout '' or 'TND', got 'NTD'", softmax_layout="NTD")
    add("expected 8 heads in query, got 4", head_num=8)
    add("expected key of query's head size 8, got 16", lambda make: {"key": make(2, 2, 7, 16)})
    add(
        "expected the heads of key to divide head_num 4, got 3",
        lambda make: {"key": make(2, 3, 7, 8), "value": make(2, 3, 7, 8)},
    )
    add("expected key of shape .* for input_layout BNSD", lambda make: {"key": make(2, 7, 16)})
    add(
        "expected value with key's 2 heads and 7 rows, got 2 and 6",
        lambda make: {"value": make(2, 2, 6, 8)},
    )
    add(
        r"expected the \[2048, 2048\] atten_mask with sparse_mode 3, got \[5, 7\]",
        lambda make: {"atten_mask": torch.zeros(5, 7, dtype=torch.bool)},
        sparse_mode=3,
    )
    add(
        r"expected atten_mask of shape \[5, 7\] or",
        lambda make: {"atten_mask": torch.zeros(5, 6, dtype=torch.bool)},
    )
    add(
        r"expected prefix in \[0, 7\], got 8 for batch entry 1",
        lambda make: {"atten_mask": pattern(6)},
        sparse_mode=6,
        prefix=[1, 8],
    )
    add(
        "expected prefix with an entry for every sequence, got 1",
        lambda make: {"atten_mask": pattern(6)},
        sparse_mode=6,
        prefix=[1],
    )
    add(
        r"expected pse of shape \[1 or 2, 4, 1 or 5, 7\], got \[2, 4, 5, 6\]",
        lambda make: {"pse": make(2, 4, 5, 6)},
    )
    add(
        r"expected sink float32 of shape \[4\]",
        lambda make: {"sink": make(3, dtype="float32")},
    )

    def packed(make):
        return {"query": make(5, 4, 8), "key": make(7, 2, 8), "value": make(7, 2, 8)}

    add(
        "expected actual_seq_qlen and actual_seq_kvlen for input_layout TND",
        packed,
        input_layout="TND",
    )
    add(
        r"expected actual_seq_kvlen to ascend within \[0, 7\], got 8 behind 3",
        packed,
        input_layout="TND",
        actual_seq_qlen=[2, 5],
        actual_seq_kvlen=[3, 8],
    )
    add(
        "expected actual_seq_kvlen with 2 entries, got 1",
        packed,
        input_layout="TND",
        actual_seq_qlen=[2, 5],
        actual_seq_kvlen=[7],
    )
    return cases
