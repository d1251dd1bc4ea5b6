"""The arguments of inference attention, and the checks of attributes and element types."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from onnxruntime_npu.opdef import check, torch


@dataclass
class Arguments:
    """The arguments of a call, with npu_fused_infer_attention_score's names."""

    op: str
    query: Any
    key: Any
    value: Any
    layouts: tuple[str, ...]  # layouts that the operator accepts
    # When a query row uses every key that lengths and atten_mask allow, so that patterns and query
    # lengths have no effect: "never", "always", or for a "single row".
    decode: str = "single row"
    names: Mapping[str, str] = field(default_factory=dict)  # the operator's own names of arguments
    pse_shift: Any = None
    atten_mask: Any = None
    actual_seq_lengths: Any = None
    actual_seq_lengths_kv: Any = None
    dequant_scale1: Any = None
    quant_scale1: Any = None
    dequant_scale2: Any = None
    quant_scale2: Any = None
    quant_offset2: Any = None
    antiquant_scale: Any = None
    antiquant_offset: Any = None
    key_antiquant_scale: Any = None
    key_antiquant_offset: Any = None
    value_antiquant_scale: Any = None
    value_antiquant_offset: Any = None
    block_table: Any = None
    query_padding_size: Any = None
    kv_padding_size: Any = None
    key_shared_prefix: Any = None
    value_shared_prefix: Any = None
    actual_shared_prefix_len: Any = None
    query_rope: Any = None
    key_rope: Any = None
    num_heads: int = 1
    scale: float = 1.0
    pre_tokens: int = 2147483647
    next_tokens: int = 2147483647
    input_layout: str = "BSH"
    num_key_value_heads: int = 0
    sparse_mode: int = 0
    block_size: int = 0
    antiquant_mode: int = 0
    key_antiquant_mode: int = 0
    value_antiquant_mode: int = 0

    def require(self, condition, message):
        """Raise the operator's error unless the condition holds."""
        check(condition, f"[{self.op}] {message}")

    def name(self, argument):
        """Return the operator's name of an argument."""
        return self.names.get(argument, argument)

    def check_attributes(self):
        """Check the attributes alone."""
        require, heads = self.require, self.num_heads
        require(
            self.input_layout in self.layouts,
            f"expected input_layout {', '.join(self.layouts)}, got '{self.input_layout}'",
        )
        self.kv_heads = self.num_key_value_heads or heads
        require(1 <= heads < 2**31, f"expected num_heads in [1, 2147483647], got {heads}")
        require(self.kv_heads >= 0, f"expected num_key_value_heads >= 0, got {self.kv_heads}")
        require(
            heads % self.kv_heads == 0,
            f"expected num_key_value_heads to divide num_heads {heads}, got {self.kv_heads}",
        )
        require(
            self.sparse_mode in range(5),
            f"expected sparse_mode 0, 1, 2, 3 or 4, got {self.sparse_mode}",
        )

    def check_types(self):
        """Check element types and their scales."""
        require, query, key, value = self.require, self.query, self.key, self.value
        self.integers = query.dtype == torch.int8
        self.compute = torch.float64 if query.dtype == torch.float64 else torch.float32
        self.like = query.dtype
        if self.integers:
            self.like = torch.float16 if self.query_rope is None else self.query_rope.dtype
        scales = (self.antiquant_scale, self.key_antiquant_scale, self.value_antiquant_scale)
        self.quantised = any(x is not None for x in scales)
        if self.quantised and not self.integers:
            require(
                key.dtype == value.dtype and key.dtype in (torch.int8, torch.int32),
                "expected key and value of int8, or of int32 that hold int4, with antiquant "
                f"scales, got {key.dtype} and {value.dtype}",
            )
        else:
            require(
                query.dtype == key.dtype == value.dtype,
                "expected query, key and value of one dtype, "
                f"got {query.dtype}, {key.dtype} and {value.dtype}",
            )
        for name in ("dequant_scale1", "quant_scale1", "dequant_scale2"):
            x, name = getattr(self, name), self.name(name)
            shape = "none" if x is None else list(x.shape)
            require(
                (x is not None) == self.integers,
                f"expected {'' if self.integers else 'no '}{name} with query {query.dtype}, "
                f"got {shape}",
            )
            require(x is None or x.numel() == 1, f"expected {name} with one element, got {shape}")
        require(
            not self.integers or not self.quantised,
            "expected no antiquant_scale, key_antiquant_scale or value_antiquant_scale with query "
            "int8",
        )
