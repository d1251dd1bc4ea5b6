"""Operands of the inference attention operators as [B, N, S, D], in plain torch."""

from __future__ import annotations

from onnxruntime_npu.opdef import ABSENT, check_indices, torch

from .quantisation import unpack_int4

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
MAX_HEAD_SIZE = 512


class Operands:
    """The operands of one call as [B, N, S, D], checked during conversion."""

    def __init__(self, require, input_layout, heads, kv_heads, block_table, block_size):
        self.require = require
        self.layout = input_layout
        self.axes, self.out_axes = LAYOUTS[input_layout]
        self.heads, self.kv_heads = heads, kv_heads
        self.table, self.block_size = block_table, block_size

    @property
    def packed(self):
        """Whether sequences are concatenated along one axis."""
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
        """Return keys or values as [B, N, S, D]: for pages, S is the capacity of the table."""
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

    def check_table(self, op, lengths, blocks):
        """Reject a page beyond the cache; entries beyond a sequence's length are arbitrary."""
        first_row = torch.arange(self.table.shape[1], device=self.table.device) * self.block_size
        read = (first_row < lengths[:, None]).expand_as(self.table)
        check_indices(self.table, 0, blocks, f"[{op}] expected block_table entries", where=read)

    def from_pages(self, pages):
        """Return [blocks, N, block_size, ..] as [B, N, S, ..]."""
        if pages.shape[0] == 0:
            pages = pages.new_zeros(1, *pages.shape[1:])
        # Rows beyond a sequence's length are arbitrary: they are masked later.
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


def result_typings(queries, ropes=()):
    """Return the types of attention_out for those of query: int8 with quant_scale2.

    ropes: those that query_rope may have where query is int8, and attention_out then has.
    """
    # onnxruntime matches an omitted input with any type, so that calls without ropes come first.
    plain = {
        "query": "int8",
        "query_rope": ABSENT,
        "quant_scale2": ABSENT,
        "attention_out": "float16",
    }
    return [
        *([plain] if ropes else []),
        *(
            {
                "query": "int8",
                "query_rope": rope,
                "quant_scale2": ABSENT,
                "attention_out": rope,
            }
            for rope in ropes
        ),
        *(
            {
                "query": query,
                "quant_scale2": ABSENT,
                "attention_out": "float16" if query == "int8" else query,
            }
            for query in queries
        ),
        {"attention_out": "int8"},
    ]
