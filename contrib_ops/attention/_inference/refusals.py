"""Calls that npu_fused_infer_attention_score rejects."""

from onnxruntime_npu.opdef import Sample

from .._cases import refusals

PREFIX = {
    "key_shared_prefix": lambda make: make(1, 4, 2, 16),
    "value_shared_prefix": lambda make: make(1, 4, 2, 16),
}


def add_refusals(op):
    """Add the rejected calls to the operator."""
    refuse = refusals(op, (2, 3, 4, 16))
    refuse("input_layout BSH, .* got 'BDSN'", "layout", input_layout="BDSN")
    refuse("num_key_value_heads to divide num_heads 4, got 3", "groups", num_key_value_heads=3)
    refuse(r"num_heads in \[1, 2147483647\], got 0", "no_heads", num_heads=0)
    refuse(r"num_heads in \[1, 2147483647\], got 2147483648", "many_heads", num_heads=2**31)
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
    keys = (2, 8, 2, 8)
    refuse("key of query's head size 16, got 8", "head_size", (2, 3, 4, 16), keys, keys)
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
    refuse(
        r"key of shape \[B, S, N, D\] for input_layout BSND, got \[2, 8, 32\]",
        "key_rank",
        (2, 3, 4, 16),
        (2, 8, 32),
        (2, 8, 2, 16),
    )
    refuse(
        "value of query's batch size 2, got 1",
        "value_batch",
        (2, 3, 4, 16),
        (2, 8, 2, 16),
        (1, 8, 2, 16),
    )
    refuse(
        "2 heads in key, got 4",
        "key_heads",
        (2, 3, 4, 16),
        (2, 8, 4, 16),
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
        match=r"\[npu_fused_infer_attention_score\] expected query, key and value of one dtype, "
        r"got .*float32, .*float16 and .*float32",
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
        r"block_table int32 of shape \[B, blocks of a sequence\], got .*int32 \[2\]",
        "table_rank",
        (2, 3, 4, 16),
        (5, 16, 32),
        (5, 16, 32),
        block_table=lambda make: make.ints(2, high=5, dtype="int32"),
        block_size=16,
        actual_seq_lengths_kv=[16],
    )
    refuse(
        "key with block_table of shape .* got",
        "pages_rank",
        (2, 3, 4, 16),
        (80, 32),
        (80, 32),
        block_table=lambda make: make.ints(2, 2, high=5, dtype="int32"),
        block_size=16,
        actual_seq_lengths_kv=[16],
    )
    refuse(
        "actual_seq_lengths and actual_seq_lengths_kv for input_layout TND",
        "no_lengths",
        (6, 4, 16),
        (9, 2, 16),
        (9, 2, 16),
        input_layout="TND",
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
    refuse(
        r"query_rope of shape \[B, S, N, D\] for input_layout BSND, got \[2, 3, 32\]",
        "rope_rank",
        query_rope=lambda make: make(2, 3, 32),
        key_rope=lambda make: make(2, 8, 2, 8),
    )
    refuse(
        "query_rope of query's shape but for the head size, got",
        "rope_rows",
        query_rope=lambda make: make(2, 2, 4, 8),
        key_rope=lambda make: make(2, 8, 2, 8),
    )
    refuse(
        r"key_rope of key's shape with query_rope's head size 8, got \[2, 8, 2, 4\]",
        "rope_size",
        query_rope=lambda make: make(2, 3, 4, 8),
        key_rope=lambda make: make(2, 8, 2, 4),
    )
    for blocks in (0, 6):
        refuse(
            rf"key_rope of key's shape with query_rope's head size 8, got \[{blocks}, 16, 16\]",
            f"rope_of_{blocks}_blocks",
            (2, 3, 4, 16),
            (5, 16, 32),
            (5, 16, 32),
            query_rope=lambda make: make(2, 3, 4, 8),
            key_rope=lambda make, blocks=blocks: make(blocks, 16, 16),
            block_table=lambda make: make.ints(2, 2, high=5, dtype="int32"),
            block_size=16,
            actual_seq_lengths_kv=[16],
        )
    refuse(
        "no dequant_scale1 with query .*float32, got",
        "scale_of_integers",
        dequant_scale1=lambda make: make(1, dtype="float32"),
    )
    refuse(
        "key and value of int8, or of int32 that hold int4, with antiquant scales, got .*float32",
        "scale_of_floats",
        antiquant_scale=lambda make: make(2),
    )

    refuse_int8 = refusals(op, (2, 3, 4, 16), lambda make, *s: make.ints(*s, dtype="int8"))
    refuse_int8("query, key and value of one dtype, got .*int8", "int8_without_scales")
    refuse_int8(
        "either antiquant_scale or both key_antiquant_scale and value_antiquant_scale",
        "half_a_scale",
        key_antiquant_scale=lambda make: make(1),
    )
    refuse_int8(
        r"antiquant_scale with two times 1 or N\*D elements for antiquant_mode 0, got \[2, 33\]",
        "antiquant_shape",
        antiquant_scale=lambda make: make(2, 33),
    )
    refuse_int8(
        r"value_antiquant_scale with shape \[B, S\] for value_antiquant_mode 1, got \[2, 7\]",
        "value_antiquant_shape",
        key_antiquant_scale=lambda make: make(2, 8),
        value_antiquant_scale=lambda make: make(2, 7),
        key_antiquant_mode=1,
        value_antiquant_mode=1,
    )
    refuse_int8(
        r"key_antiquant_mode from 0 to 5, got 6",
        "antiquant_mode",
        key_antiquant_scale=lambda make: make(1),
        value_antiquant_scale=lambda make: make(1),
        key_antiquant_mode=6,
    )
    refuse_int8(
        r"key_antiquant_scale with \[blocks, block_size\] elements for key_antiquant_mode 4 and a",
        "antiquant_pages",
        key_antiquant_scale=lambda make: make(16),
        value_antiquant_scale=lambda make: make(16),
        key_antiquant_mode=4,
        value_antiquant_mode=4,
    )
    refuse_int8(
        "antiquant_offset like antiquant_scale, ",
        "antiquant_offset",
        antiquant_scale=lambda make: make(2),
        antiquant_offset=lambda make: make(2, 32),
    )
    refuse_int8(
        "antiquant scales of tensors, channels or heads with key_shared_prefix",
        "prefix_and_tokens",
        antiquant_scale=lambda make: make(2, 2, 8),
        antiquant_mode=1,
        key_shared_prefix=lambda make: make.ints(1, 4, 2, 16, dtype="int8"),
        value_shared_prefix=lambda make: make.ints(1, 4, 2, 16, dtype="int8"),
    )
    refuse(
        "quant_scale2 with quant_offset2, got none",
        "offset_alone",
        quant_offset2=lambda make: make(1),
    )
    refuse(
        "quant_scale2 with 1 or 64 elements, got",
        "output_scale",
        quant_scale2=lambda make: make(4, 15),
    )
    refuse(
        "key_shared_prefix and value_shared_prefix together, got only key_shared_prefix",
        "half_a_prefix",
        key_shared_prefix=lambda make: make(1, 4, 2, 16),
    )
    refuse(
        "key_shared_prefix of batch size 1, got 2",
        "prefix_batch",
        key_shared_prefix=lambda make: make(2, 4, 2, 16),
        value_shared_prefix=lambda make: make(1, 4, 2, 16),
    )
    refuse(
        r"actual_shared_prefix_len in \[0, 4\], got 5",
        "prefix_length",
        key_shared_prefix=lambda make: make(1, 4, 2, 16),
        value_shared_prefix=lambda make: make(1, 4, 2, 16),
        actual_shared_prefix_len=[5],
    )
    refuse(
        r"kv_padding_size as one int64, got .*\[2\]",
        "padding_size",
        kv_padding_size=lambda make: make.tensor([1, 2], dtype="int64"),
    )
    refuse_combinations(op, refuse)


def refuse_combinations(op, refuse):
    """Add calls that must fail.

    refuse: takes a message, an id, shapes and the arguments of a call in BSND.
    """
    refuse(
        "no query_rope and key_rope with key_shared_prefix",
        "prefix_and_rope",
        **PREFIX,
        query_rope=lambda make: make(2, 3, 4, 8),
        key_rope=lambda make: make(2, 8, 2, 8),
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

    ends = {"actual_seq_lengths": [1, 4], "actual_seq_lengths_kv": [2, 4], "input_layout": "TND"}
    refuse(
        r"atten_mask of shape \[>= 3, >= 2\], \[1 or 2, >= 3, >= 2\] or "
        r"\[1 or 2, 1, >= 3, >= 2\] for input_layout TND, got \[3, 3, 2\]",
        "packed_mask",
        *packed,
        **ends,
        atten_mask=lambda make: make.bools(3, 3, 2),
    )
    refuse(
        r"atten_mask of shape \[>= 3, >= 2\], .* for input_layout TND, got \[0, 2\]",
        "packed_mask_without_rows",
        *packed,
        **ends,
        atten_mask=lambda make: make.bools(0, 2),
    )
    refuse(
        r"pse_shift of shape \[1 or 2, 4, 1 or >= 3, >= 2\], got \[1, 4, 2, 2\]",
        "packed_bias",
        *packed,
        **ends,
        pse_shift=lambda make: make(1, 4, 2, 2),
    )

    def integers_with_rope(make):
        query, key = (make.ints(2, s, n, 16, dtype="int8") for s, n in ((3, 4), (8, 2)))
        one = make.tensor([1.0], dtype="float32")
        return Sample(
            query, key, key, input_layout="BSND", num_heads=4, num_key_value_heads=2,
            dequant_scale1=one, quant_scale1=one, dequant_scale2=one,
            query_rope=make(2, 3, 4, 8, dtype="float16"),
            key_rope=make(2, 8, 2, 8, dtype="float32"),
        )  # fmt: skip

    op.errors(
        integers_with_rope,
        match=rf"\[{op.name}\] expected query_rope and key_rope of one dtype, got .*float16 and",
        id="int8_and_ropes",
    )
