"""Combinations of arguments of an inference attention call that have no defined meaning.

A shared prefix consists of keys and values only: it has no rope part, and its rows have no
per-token scales. It has key's axes with a batch size of 1: T layouts have no batch, and pages of
rank 5 no sequence axis.
"""

from __future__ import annotations

from .operands import LAYOUTS


def check_combination(call):
    """Reject combinations that torch_npu forbids or does not define."""
    require, layout = call.require, call.input_layout
    rope = call.query_rope is not None or call.key_rope is not None
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
