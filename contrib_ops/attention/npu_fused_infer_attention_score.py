"""Inference attention, prefill and decode, over a key/value cache, with grouped query heads.

Source: torch_npu.npu_fused_infer_attention_score. What torch_npu leaves open is settled in
_inference.py, which also lists what torch_npu forbids and is refused: rope parts or prefixes
together with what has no place for them. With softmax_lse_flag False the second result is [0.0].
key_rope_antiquant_scale is reserved: it is taken and has no effect.
"""

from onnxruntime_npu.opdef import FLOATS, Sample, npu_op, torch

from ._cases import catalogue_operands, compressed_mask, refusals, tolerate_rounded_weights
from ._inference import attend
from ._inference_body import attend_body
from ._inference_combinations import refuse_combinations
from ._inference_operands import result_typings
from ._inference_samples import padded_samples, quantised_output_samples, quantised_samples

SCALARS = [*FLOATS, "int64", "uint64"]  # 64-bit integers hold the bits of a float32
CACHES = [*FLOATS, "int8", "int32"]

op = npu_op(
    "npu_fused_infer_attention_score(Tensor query, Tensor key, Tensor value, *, "
    "Tensor? pse_shift=None, Tensor? atten_mask=None, SymInt[]? actual_seq_lengths=None, "
    "SymInt[]? actual_seq_lengths_kv=None, Tensor? dequant_scale1=None, "
    "Tensor? quant_scale1=None, Tensor? dequant_scale2=None, Tensor? quant_scale2=None, "
    "Tensor? quant_offset2=None, Tensor? antiquant_scale=None, Tensor? antiquant_offset=None, "
    "Tensor? key_antiquant_scale=None, Tensor? key_antiquant_offset=None, "
    "Tensor? value_antiquant_scale=None, Tensor? value_antiquant_offset=None, "
    "Tensor? block_table=None, Tensor? query_padding_size=None, Tensor? kv_padding_size=None, "
    "Tensor? key_shared_prefix=None, Tensor? value_shared_prefix=None, "
    "SymInt[]? actual_shared_prefix_len=None, Tensor? query_rope=None, Tensor? key_rope=None, "
    "Tensor? key_rope_antiquant_scale=None, int num_heads=1, float scale=1., "
    'int pre_tokens=2147483647, int next_tokens=2147483647, str input_layout="BSH", '
    "int num_key_value_heads=0, int sparse_mode=0, int inner_precise=0, int block_size=0, "
    "int antiquant_mode=0, int key_antiquant_mode=0, int value_antiquant_mode=0, "
    "bool softmax_lse_flag=False) -> (Tensor, Tensor)",
    onnx="NPUFusedInferAttentionScore",
    outputs=["attention_out", "softmax_lse"],
    dtypes={
        "query": [*FLOATS, "int8"],
        "key": CACHES,
        "value": CACHES,
        "pse_shift": FLOATS,
        "atten_mask": ["bool", "int8", "uint8"],
        "dequant_scale1": SCALARS,
        "quant_scale1": FLOATS,
        "dequant_scale2": SCALARS,
        "quant_scale2": FLOATS,
        "quant_offset2": FLOATS,
        "antiquant_scale": FLOATS,
        "antiquant_offset": FLOATS,
        "key_antiquant_scale": FLOATS,
        "key_antiquant_offset": FLOATS,
        "value_antiquant_scale": FLOATS,
        "value_antiquant_offset": FLOATS,
        "block_table": ["int32"],
        "query_padding_size": ["int64"],
        "kv_padding_size": ["int64"],
        "key_shared_prefix": CACHES,
        "value_shared_prefix": CACHES,
        "query_rope": FLOATS,
        "key_rope": FLOATS,
        "key_rope_antiquant_scale": FLOATS,
        "attention_out": [*FLOATS, "int8"],
        "softmax_lse": ["float32"],
    },
    cpu=["query_padding_size", "kv_padding_size"],
    sample_dtypes=FLOATS,
    typings=result_typings([*FLOATS, "int8"]),
)

LAYOUTS = (
    "BSH", "BSND", "BNSD", "BNSD_BSND", "BSH_BNSD", "BSND_BNSD", "BSH_NBSD", "BSND_NBSD",
    "BNSD_NBSD", "TND", "NTD", "TND_NTD", "NTD_TND", "NSD",
)  # fmt: skip


@op.reference
def reference(
    query,
    key,
    value,
    softmax_lse_flag=False,
    inner_precise=0,
    key_rope_antiquant_scale=None,
    **arguments,
):
    """Return softmax(scale * Q K^T + pse_shift, masked) V in float32, and its log-sum-exp.

    query, key, value: by input_layout, of one dtype; value may have a head size of its own.
    block_table: [B, blocks of a sequence] int32; key and value are then pages,
    [blocks, block_size, N*D], [blocks, N, block_size, D] or [blocks, N, D/16, block_size, 16],
    whatever input_layout is.
    query_rope, key_rope: as query and key, with a head size of their own; Q K^T runs over both.
    pse_shift: [B or 1, N, >= Sq, >= Skv] of query's dtype (float16 with int8), added after scaling.
    atten_mask: bool, int8 or uint8, nonzero = masked. Sparse modes 0 and 1: [Sq, Skv],
    [B or 1, Sq, Skv] or [B or 1, 1, Sq, Skv]; a single query row also takes [B, Skv]. Modes 2, 3
    and 4: [2048, 2048] behind up to two axes of size 1.
    actual_seq_lengths, actual_seq_lengths_kv: one length, or one per batch entry. In T layouts the
    ends of the sequences; with block_table actual_seq_lengths_kv are lengths all the same.
    query_padding_size, kv_padding_size: [1] int64; rows end so many before the end of their axis.
    key_shared_prefix, value_shared_prefix: as key and value with batch size 1, in front of every
    entry's own rows; actual_shared_prefix_len says how much of them.
    antiquant_*: scales and offsets of key and value as int8, or as int32 that hold eight int4. By
    mode: 0 [1] or N*D elements, 1 [B, S], 2 [N], 3 [B, N, S], 4 [blocks, block_size],
    5 [blocks, N, block_size]; in antiquant_scale, a pair of them for modes 0 and 1.
    dequant_scale1, quant_scale1, dequant_scale2: one element each, for query, key and value int8.
    quant_scale2, quant_offset2: 1 or N*D elements; the result is then int8.
    Result: the output layout with value's head size, of query's dtype (float16 with int8);
    log-sum-exp [B, N, Sq, 1] or, in T layouts, [T, N, 1] float32.
    """
    out, lse = attend(op.name, query, key, value, layouts=LAYOUTS, **arguments)
    return out, lse if softmax_lse_flag else torch.zeros(1, device=query.device)


@op.function
def body(b, call, *inputs):
    given = dict(zip((x.name for x in op.inputs), inputs, strict=True))
    out, lse = attend_body(b, call, op.name, given, call.attrs)
    return out, lse if call.attrs["softmax_lse_flag"] else b.const([0.0], "float32")


op.tolerance("int8", rtol=0, atol=1, reason="a result at the border of two integers")
tolerate_rounded_weights(op)


@op.samples
def samples(make):
    yield Sample(
        *catalogue_operands(make),
        atten_mask=compressed_mask(),
        input_layout="BNSD",
        scale=0.5,
        sparse_mode=3,
        softmax_lse_flag=True,
        id="catalogue",
        expect=None
        if make.dtype != "float32"
        else [[[[[1.75508, 2.75508], [3.30191, 4.30191]]]], [[[[0.974077], [1.45802]]]]],
    )
    bsnd = {"input_layout": "BSND", "num_heads": 6, "num_key_value_heads": 2, "scale": 0.25}
    bnsd = {"input_layout": "BNSD", "num_heads": 6, "num_key_value_heads": 2, "scale": 0.25}

    # Prefill.
    qkv = make(2, 37, 96), make(2, 37, 32), make(2, 37, 32)
    heads = {"num_heads": 6, "num_key_value_heads": 2, "scale": 0.25}
    yield Sample(*qkv, **heads, id="bsh")
    yield Sample(*qkv, **heads, input_layout="BSH_NBSD", softmax_lse_flag=True, id="bsh_nbsd")
    qkv = make(2, 37, 6, 16), make(2, 37, 2, 16), make(2, 37, 2, 16)
    causal = {"sparse_mode": 3, "atten_mask": compressed_mask()}
    yield Sample(*qkv, **bsnd, **causal, softmax_lse_flag=True, id="bsnd_causal")
    qkv = make(1, 6, 150, 16), make(1, 2, 150, 16), make(1, 2, 150, 16)
    yield Sample(*qkv, **bnsd, **causal, id="bnsd_causal")
    qkv = make(2, 6, 20, 16), make(2, 2, 133, 16), make(2, 2, 133, 32)
    yield Sample(*qkv, **bnsd, **causal, id="chunk_behind_a_past")
    yield Sample(
        *qkv, **{**bnsd, "input_layout": "BNSD_BSND"}, sparse_mode=4, pre_tokens=50, next_tokens=3,
        atten_mask=compressed_mask()[None], id="band",
    )  # fmt: skip
    mask = compressed_mask()[None, None]
    yield Sample(*qkv, **bnsd, sparse_mode=2, atten_mask=mask, id="left_up")
    yield Sample(
        *qkv, **bnsd, **causal, actual_seq_lengths=[20, 7], actual_seq_lengths_kv=[133, 64],
        softmax_lse_flag=True, id="lengths",
    )  # fmt: skip
    yield Sample(
        *qkv, **bnsd, **causal, actual_seq_lengths_kv=[9], softmax_lse_flag=True,
        id="rows_without_keys",
    )  # fmt: skip
    yield Sample(*qkv, **bnsd, atten_mask=make.bools(2, 1, 20, 133), id="mask_per_batch")
    yield Sample(
        *qkv,
        **bnsd,
        atten_mask=make.bools(20, 133),
        pre_tokens=5,
        next_tokens=40,
        id="mask_and_band",
    )
    yield Sample(
        *qkv, **bnsd, sparse_mode=1, atten_mask=make.ints(1, 20, 133, low=0, high=2, dtype="int8"),
        pse_shift=make(1, 6, 20, 133), id="mask_and_bias",
    )  # fmt: skip
    yield Sample(*qkv, **bnsd, pse_shift=make(2, 6, 32, 144), id="larger_bias")
    yield Sample(
        *qkv, **bnsd, sparse_mode=1, atten_mask=torch.ones(2, 1, 20, 133, dtype=torch.bool),
        softmax_lse_flag=True, id="all_masked",
    )  # fmt: skip
    yield Sample(make(1, 9, 3, 192), make(1, 9, 3, 192), make(1, 9, 3, 128), num_heads=3,
                 input_layout="BSND", scale=0.07, id="value_head_size")  # fmt: skip
    yield Sample(make(1, 4, 16), make(1, 4, 16), make(1, 4, 16), id="one_head_default_scale")

    # Decode.
    q = make(2, 1, 6, 16)
    cache = make(2, 70, 2, 16), make(2, 70, 2, 16)
    yield Sample(q, *cache, **bsnd, softmax_lse_flag=True, id="decode")
    yield Sample(q, *cache, **bsnd, **causal, id="decode_ignores_pattern")
    yield Sample(q, *cache, **bsnd, atten_mask=make.bools(2, 70), id="decode_mask")
    yield Sample(q, *cache, **bsnd, sparse_mode=3, atten_mask=make.bools(2, 1, 1, 70),
                 id="decode_mask_with_pattern")  # fmt: skip
    yield Sample(q, *cache, **bsnd, actual_seq_lengths=[1, 1], actual_seq_lengths_kv=[70, 31],
                 id="decode_lengths")  # fmt: skip
    cache = make(2, 2, 300, 16), make(2, 2, 300, 16)
    yield Sample(make(2, 6, 1, 16), *cache, **bnsd, actual_seq_lengths_kv=[257, 0],
                 softmax_lse_flag=True, id="static_cache")  # fmt: skip
    yield Sample(make(1, 1, 14 * 64), make(1, 513, 128), make(1, 513, 128), num_heads=14,
                 num_key_value_heads=2, scale=0.125, id="decode_bsh")  # fmt: skip
    yield Sample(make(1, 1, 1, 8), make(1, 1, 1, 8), make(1, 1, 1, 8), input_layout="BNSD",
                 id="one_token")  # fmt: skip

    # Pages.
    pages = make(9, 16, 2 * 16), make(9, 16, 2 * 16)
    table = make.tensor([[7, 2, 5, 99], [0, 8, -1, -1]], dtype="int32")
    paged = {**bsnd, "block_table": table, "block_size": 16, "actual_seq_lengths_kv": [45, 17]}
    yield Sample(make(2, 1, 6, 16), *pages, **paged, softmax_lse_flag=True, id="paged_decode")
    yield Sample(make(2, 5, 6, 16), *pages, **paged, **causal, id="paged_prefill")
    yield Sample(make(2, 5, 6, 16), *pages, **paged, atten_mask=make.bools(2, 1, 5, 70),
                 id="paged_mask")  # fmt: skip
    pages = make(9, 2, 16, 24), make(9, 2, 16, 8)
    yield Sample(make(2, 6, 3, 24), *pages, **{**paged, "input_layout": "BNSD"}, **causal,
                 id="paged_bnsd")  # fmt: skip

    # Packed sequences.
    tnd = {"input_layout": "TND", "num_heads": 6, "num_key_value_heads": 2, "scale": 0.25,
           "softmax_lse_flag": True}  # fmt: skip
    qkv = make(12, 6, 16), make(40, 2, 16), make(40, 2, 16)
    ends = {"actual_seq_lengths": [3, 3, 4, 12], "actual_seq_lengths_kv": [10, 20, 25, 40]}
    yield Sample(*qkv, **tnd, **ends, id="tnd")
    yield Sample(*qkv, **tnd, **ends, **causal, id="tnd_causal")
    yield Sample(*qkv, **{**tnd, "input_layout": "TND_NTD"}, actual_seq_lengths=[2, 9],
                 actual_seq_lengths_kv=[1, 30], **causal, id="rows_of_no_sequence")  # fmt: skip
    qkv = make(6, 12, 16), make(2, 40, 16), make(2, 40, 24)
    yield Sample(*qkv, **{**tnd, "input_layout": "NTD"}, **ends, id="ntd")
    yield Sample(*qkv, **{**tnd, "input_layout": "NTD_TND"}, **ends, sparse_mode=4, pre_tokens=4,
                 next_tokens=1, atten_mask=compressed_mask(), id="ntd_tnd_band")  # fmt: skip
    pages = make(9, 16, 2 * 16), make(9, 16, 2 * 16)
    yield Sample(make(7, 6, 16), *pages, **tnd, **causal, block_table=table, block_size=16,
                 actual_seq_lengths=[6, 7], actual_seq_lengths_kv=[45, 17],
                 id="tnd_paged")  # fmt: skip

    # Rope apart.
    rope = {"query_rope": make(2, 6, 20, 8), "key_rope": make(2, 2, 33, 8)}
    yield Sample(make(2, 6, 20, 16), make(2, 2, 33, 16), make(2, 2, 33, 16), **bnsd, **causal,
                 **rope, id="rope")  # fmt: skip
    yield Sample(make(2, 1, 64), make(2, 9, 64), make(2, 9, 64), query_rope=make(2, 1, 16),
                 key_rope=make(2, 9, 16), num_heads=2, sparse_mode=2, atten_mask=compressed_mask(),
                 id="rope_decode_keeps_pattern")  # fmt: skip
    yield Sample(make(7, 6, 16), *pages, **tnd, **causal, block_table=table, block_size=16,
                 actual_seq_lengths=[6, 7], actual_seq_lengths_kv=[45, 17],
                 query_rope=make(7, 6, 8), key_rope=make(9, 16, 2 * 8),
                 id="tnd_paged_rope")  # fmt: skip

    # Integers in the cache.
    yield from quantised_samples(make)
    yield from padded_samples(make)
    yield from quantised_output_samples(make)

    # Nothing.
    yield Sample(make(2, 0, 8), make(2, 3, 8), make(2, 3, 8), id="no_queries")
    yield Sample(make(2, 3, 8), make(2, 0, 8), make(2, 0, 8), softmax_lse_flag=True, id="no_keys")
    yield Sample(make(0, 3, 8), make(0, 3, 8), make(0, 3, 8), id="no_batch")


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
refuse("key of query's head size 16, got 8", "head_size", (2, 3, 4, 16), (2, 8, 2, 8), (2, 8, 2, 8))
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
    match=r"\[npu_fused_infer_attention_score\] expected query, key and value of one dtype, got .*"
    r"float32, .*float16 and .*float32",
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
