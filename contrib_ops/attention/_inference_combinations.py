"""The parts of an inference attention call that do not go together, for torch_npu forbids it.

Rope parts: not with query int8, nor with a shared prefix. A shared prefix: not in T layouts, nor
with kv_padding_size, a cache of rank 5, or scales of tokens, of which its rows have none.
"""

from __future__ import annotations

from onnxruntime_npu.opdef import Sample

from ._inference_operands import LAYOUTS

PREFIX = {
    "key_shared_prefix": lambda make: make(1, 4, 2, 16),
    "value_shared_prefix": lambda make: make(1, 4, 2, 16),
}


def check_combination(call):
    """Refuse parts that torch_npu forbids, or does not define, in one call."""
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


def refuse_combinations(op, refuse):
    """State calls that must fail.

    refuse: takes a message, an id, shapes and the arguments of a call in BSND.
    """
    refuse(
        "no query_rope and key_rope with key_shared_prefix",
        "prefix_and_rope",
        **PREFIX,
        query_rope=lambda make: make(2, 3, 4, 8),
        key_rope=lambda make: make(2, 8, 2, 8),
    )
    refuse(
        "no kv_padding_size with key_shared_prefix, got both",
        "prefix_and_padding",
        **PREFIX,
        kv_padding_size=lambda make: make.tensor([1], dtype="int64"),
    )
    packed = (4, 4, 16), (4, 2, 16), (4, 2, 16)
    heads_first = (4, 4, 16), (2, 4, 16), (2, 4, 16)
    for layout in ("TND", "NTD", "TND_NTD", "NTD_TND"):
        refuse(
            f"no key_shared_prefix for input_layout {layout}, got one",
            f"prefix_and_{layout.lower()}",
            *(packed if layout.startswith("TND") else heads_first),
            **PREFIX,
            input_layout=layout,
            actual_seq_lengths=[1, 4],
            actual_seq_lengths_kv=[2, 4],
        )
    refuse(
        "no key_shared_prefix with a cache of rank 5, got both",
        "prefix_and_pieces",
        (2, 3, 4, 16),
        (5, 2, 1, 8, 16),
        (5, 2, 1, 8, 16),
        **PREFIX,
        block_table=lambda make: make.ints(2, 2, high=5, dtype="int32"),
        block_size=8,
        actual_seq_lengths_kv=[16],
    )

    def integers_with_rope(make):
        query, key = (make.ints(2, s, n, 16, dtype="int8") for s, n in ((3, 4), (8, 2)))
        one = make.tensor([1.0], dtype="float32")
        return Sample(
            query, key, key, input_layout="BSND", num_heads=4, num_key_value_heads=2,
            dequant_scale1=one, quant_scale1=one, dequant_scale2=one,
            query_rope=make(2, 3, 4, 8), key_rope=make(2, 8, 2, 8),
        )  # fmt: skip

    op.errors(
        integers_with_rope,
        match=rf"\[{op.name}\] expected no query_rope and key_rope with query int8, got both",
        id="int8_and_rope",
    )
