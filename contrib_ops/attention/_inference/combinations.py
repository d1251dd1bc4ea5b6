"""Combinations of arguments that torch_npu forbids in an inference attention call.

Rope parts: not with query int8 or a shared prefix. A shared prefix: not in T layouts, nor with
kv_padding_size, a cache of rank 5, or per-token scales, which its rows do not have.
"""

from __future__ import annotations

from .operands import LAYOUTS


def check_combination(call):
    """Reject combinations that torch_npu forbids or does not define."""
    require, layout = call.require, call.input_layout
    rope = call.query_rope is not None or call.key_rope is not None
    require(
        not rope or not call.integers,
        "expected no query_rope and key_rope with query int8, got both",
    )
    if call.key_shared_prefix is None and call.value_shared_prefix is None:
        return
    require(
        not rope,
        "expected no query_rope and key_rope with key_shared_prefix, which has no rope part, "
        "got both",
    )
    require(
        "T" not in LAYOUTS[layout][0],
        f"expected no key_shared_prefix for input_layout {layout}, got one",
    )
    require(
        call.kv_padding_size is None,
        "expected no kv_padding_size with key_shared_prefix, got both",
    )
    require(
        call.block_table is None or 5 not in (call.key.dim(), call.value.dim()),
        "expected no key_shared_prefix with a cache of rank 5, got both",
    )
    modes = [call.key_antiquant_mode, call.value_antiquant_mode]
    if call.antiquant_scale is not None:
        modes = [call.antiquant_mode]
    require(
        not call.quantised or all(mode in (0, 2) for mode in modes),
        "expected antiquant scales of tensors, channels or heads with key_shared_prefix, "
        "got scales of tokens",
    )
