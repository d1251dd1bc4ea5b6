"""The arguments of training attention and its backward pass: checks, sequences, masks and bias."""

from onnxruntime_npu.opdef import check, torch

from .._dropout import factors
from .._patterns import bounded

LAYOUTS = {
    "BSH": "[B, S, N*D]",
    "SBH": "[S, B, N*D]",
    "BSND": "[B, S, N, D]",
    "BNSD": "[B, N, S, D]",
    "TND": "[T, N, D]",
}
PATTERNS = {2: 2048, 3: 2048, 4: 2048, 6: 3072, 7: 2048, 8: 2048}  # sparse mode: rows of its mask
MAX_HEAD_SIZE = 768
WIDTH = 8  # repetitions of each value in the statistics
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
        self.query = query
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
            f"got {'' if sink is None else f'{sink.dtype} {list(sink.shape)}'}",
        )

    def require(self, condition, message):
        """Raise the operator's error unless the condition holds."""
        check(condition, f"[{self.name}] {message}")

    def check_attributes(self):
        """Check the arguments other than tensors."""
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
        """Return key's number of heads; in a joint axis it follows from query's head size."""
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
        """Return the spans of the sequences."""
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
        # Nobody looks at keys without queries, which a mask need not hold.
        spans = [(row, rows, first, keys if rows else 0) for row, rows, first, keys in spans]
        if q[-1] < self.rows:  # rows of no sequence
            spans.append((q[-1], self.rows - q[-1], 0, 0))
        return spans

    def sequences(self):
        """Return the number of sequences."""
        return len(self.a["actual_seq_qlen"]) if self.packed else self.batch

    def used(self):
        """Return the indices of sequences with queries and keys."""
        return [b for b, (_, rows, _, keys) in enumerate(self.spans) if rows and keys]

    def mask_sides(self):
        """Return the numbers of rows and keys of a mask or bias."""
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
            pse.dtype == self.query.dtype,
            f"expected pse of query's dtype {self.query.dtype}, got {pse.dtype}",
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
        """Whether the last 1024 rows represent all."""
        rows = self.a["pse"].shape[2]
        return not self.packed and rows == COMPRESSED_BIAS < self.rows == self.keys

    def bias_of(self, b, pse):
        """Return the part of pse that belongs to block b, [B or 1, N, Sq or 1, Skv]."""
        _, rows, _, keys = self.spans[b]
        if self.packed:
            entry = min(b, pse.shape[0] - 1)  # entries after the last have no keys
            return pse[entry : entry + 1, :, : 1 if pse.shape[2] == 1 else rows, :keys]
        if not self.bias_is_compressed():
            return pse
        first = rows - COMPRESSED_BIAS
        i = torch.arange(first, device=pse.device)[:, None]
        source = torch.arange(keys, device=pse.device) + (rows - 1 - i)
        last = pse[:, :, -1][:, :, source.clamp(max=keys - 1)]
        return torch.cat([last.masked_fill(source >= keys, 0.0), pse], 2)

    def add_bias_gradient(self, b, d_scores, to):
        """Add block b's gradient to `to`, which has the shape of pse."""
        _, rows, _, keys = self.spans[b]
        if not keys:
            return
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
        """Return the mask of block b, true = masked: bool [B or 1, N or 1, Sq, Skv]."""
        _, rows, _, keys = self.spans[b]
        device = self.query.device
        i = torch.arange(rows, device=device)[:, None]
        j = torch.arange(keys, device=device)[None, :]
        mask, mode = self.a["atten_mask"], self.mode
        if mask is None or not keys:  # which rows of no sequence do not have: they may be many
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
            if self.packed:  # a sequence outside the lists has no keys either
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
        """Return the index of the first weight of block b."""
        return sum(self.heads * rows * keys for _, rows, _, keys in self.spans[:b])

    def dropout(self, b, seed, offset, bits=None):
        """Return the factors of the weights of block b, or 1."""
        if self.a["keep_prob"] == 1:
            return 1.0
        _, rows, _, keys = self.spans[b]
        shape = (self.batch, self.heads, rows, keys)
        first = self.first_weight(b)
        count = self.batch * self.heads * rows * keys
        number = torch.arange(first, first + count, device=self.query.device).view(shape)
        if bits is not None:
            self.require(
                bits.numel() >= (self.weights() + 7) // 8,
                f"expected dropout_mask uint8 with a bit for each of {self.weights()} weights, "
                f"got {bits.dtype} {list(bits.shape)}",
            )
        return factors(self.a["keep_prob"], number, seed, offset, bits).to(self.compute)

    def weights(self):
        """Return the number of weights."""
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
        """Return scale * (Q K^T + pse) with -inf where masked, and the mask."""
        scores = q @ k.transpose(2, 3)
        if self.a["pse"] is not None and self.spans[b][3]:
            scores = scores + self.bias_of(b, self.a["pse"].to(self.compute))
        masked = self.masked(b)
        return (scores * scale).masked_fill(masked, float("-inf")), masked

    def statistics(self, x):
        """Return [B, N, Sq, 1] in the form of softmax_max and softmax_sum."""
        x = x[0].transpose(0, 1) if self.packed else x
        wide = x.repeat_interleave(WIDTH, dim=-1).contiguous()
        return wide if self.compute == torch.float64 else wide.to(torch.float32)
