"""Inference attention, prefill and decode, over a key/value cache, with grouped query heads.

Source: torch_npu.npu_fused_infer_attention_score. The package _inference documents the behaviour
that torch_npu does not specify; its combinations.py lists the combinations with a prefix that are
rejected, with the reasons. With softmax_lse_flag False the second result is [0.0].
key_rope_antiquant_scale is reserved: it is accepted without effect.
"""

from onnxruntime_npu.opdef import FLOATS, Sample, npu_op, torch

from ._cases import catalogue_operands, compressed_mask, tolerate_rounded_weights
from ._inference.body import attend_body
from ._inference.operands import result_typings
from ._inference.reference import attend, result_tensors
from ._inference.refusals import add_refusals
from ._inference.samples import padded_samples, quantised_output_samples, quantised_samples

SCALARS = [*FLOATS, "int64", "uint64"]  # 64-bit integers hold the bits of a float32
CACHES = [*FLOATS, "int8", "int32"]

ARGUMENTS = (
    "Tensor query, Tensor key, Tensor value, *, "
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
    "bool softmax_lse_flag=False"
)

op = npu_op(
    f"npu_fused_infer_attention_score({ARGUMENTS}) -> (Tensor, Tensor)",
    onnx="NPUFusedInferAttentionScore",
    out=f"npu_fused_infer_attention_score.out({ARGUMENTS}, Tensor? workspace=None, "
    "Tensor(a!)[] out) -> (Tensor, Tensor)",
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
    late=[
        "actual_seq_lengths",
        "actual_seq_lengths_kv",
        "query_padding_size",
        "kv_padding_size",
    ],
    sample_dtypes=FLOATS,
    typings=result_typings([*FLOATS, "int8"], ropes=FLOATS),
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

    query, key, value: by input_layout, of one dtype; value may have a different head size.
    block_table: [B, blocks of a sequence] int32; key and value are then pages,
    [blocks, block_size, N*D], [blocks, N, block_size, D] or [blocks, N, D/16, block_size, 16],
    whatever input_layout is.
    query_rope, key_rope: as query and key, with their own head size, of any float type if query is
    int8; Q K^T covers both.
    pse_shift: [B or 1, N, 1 or >= Sq, >= Skv] of the dtype that the result has before it is
    quantised, added after scaling; one row is added to the scores of all queries.
    atten_mask: bool, int8 or uint8, nonzero = masked. Sparse modes 0 and 1: [Sq, Skv],
    [B or 1, Sq, Skv] or [B or 1, 1, Sq, Skv]; a single query row also takes [B, Skv]. Modes 2, 3
    and 4: [2048, 2048] behind up to two axes of size 1. In T layouts B counts the sequences, and Sq
    and Skv are at least those of the longest.
    actual_seq_lengths, actual_seq_lengths_kv: one length, or one per batch entry. In T layouts the
    ends of the sequences; with block_table actual_seq_lengths_kv are always lengths.
    query_padding_size, kv_padding_size: [1] int64; number of padding rows at the end of the axis.
    key_shared_prefix, value_shared_prefix: as key and value with batch size 1, before every
    entry's own rows; actual_shared_prefix_len is their used length.
    antiquant_*: scales and offsets of key and value as int8, or as int32 that hold eight int4. By
    mode: 0 [1] or N*D elements, 1 [B, S], 2 [N], 3 [B, N, S], 4 [blocks, block_size],
    5 [blocks, N, block_size]; in antiquant_scale, a pair of them for modes 0 and 1.
    dequant_scale1, quant_scale1, dequant_scale2: one element each, for query, key and value int8.
    quant_scale2, quant_offset2: 1 or N*D elements; the result is then int8.
    Result: the output layout with value's head size, of query's dtype (query_rope's or float16 with
    int8);
    log-sum-exp [B, N, Sq, 1] or, in T layouts, [T, N, 1] float32.
    """
    out, lse = attend(op.name, query, key, value, layouts=LAYOUTS, **arguments)
    return out, lse if softmax_lse_flag else torch.zeros(1, device=query.device)


@op.partner(f"_npu_fused_infer_attention_score_get_max_workspace({ARGUMENTS}) -> Tensor")
def workspace(query, *_, **__):
    """Return the workspace that the overload ``out`` takes: uint8, of no elements.

    A kernel takes its scratch memory from the allocator, in the order of the stream.
    """
    return torch.empty(0, dtype=torch.uint8, device=query.device)


@op.partner(
    "_npu_fused_infer_attention_score_infer_output(Tensor query, Tensor value, *, "
    'str input_layout="BSH", Tensor? quant_scale2=None, Tensor? block_table=None, '
    "int num_heads=1, int num_key_value_heads=0, bool softmax_lse_flag=False, "
    "Tensor? query_rope=None) -> (Tensor, Tensor)"
)
def infer_output(query, value, **arguments):
    """Return tensors of the shapes and types of the results, for the overload ``out``."""
    return result_tensors(op.name, query, value, layouts=LAYOUTS, **arguments)


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
    yield Sample(*qkv, **bnsd, **causal, pse_shift=make(2, 6, 1, 133), id="bias_of_keys")
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

    yield Sample(make(7, 6, 16), *pages, **tnd, **causal, block_table=table, block_size=16,
                 actual_seq_lengths=[7, 7], actual_seq_lengths_kv=[45, 60],
                 id="tnd_pages_without_queries")  # fmt: skip

    # Separate rope parts.
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

    # What speaks of sequences one by one.
    qkv = make(12, 6, 16), make(40, 2, 16), make(40, 2, 16)
    yield Sample(*qkv, **tnd, **ends, sparse_mode=1, atten_mask=make.bools(8, 15),
                 pse_shift=make(1, 6, 9, 16), id="tnd_mask_and_bias")  # fmt: skip
    yield Sample(*qkv, **{**tnd, "input_layout": "TND_NTD"}, actual_seq_lengths=[2, 9, 9],
                 actual_seq_lengths_kv=[1, 30, 40], pre_tokens=4, next_tokens=9,
                 atten_mask=make.bools(3, 1, 7, 29, p=0.3), pse_shift=make(3, 6, 7, 30),
                 id="tnd_mask_and_bias_per_sequence")  # fmt: skip
    yield Sample(make(7, 6, 16), *pages, **tnd, block_table=table, block_size=16,
                 actual_seq_lengths=[6, 7], actual_seq_lengths_kv=[45, 17],
                 atten_mask=make.bools(2, 6, 64).to(torch.int8), pse_shift=make(2, 6, 6, 64),
                 id="tnd_paged_mask_and_bias")  # fmt: skip
    yield Sample(make(7, 6, 16), *pages, **tnd, **causal, block_table=table, block_size=16,
                 actual_seq_lengths=[6, 7], actual_seq_lengths_kv=[45, 17],
                 pse_shift=make(2, 6, 1, 64), id="tnd_paged_bias_of_keys")  # fmt: skip

    # Nothing.
    yield Sample(make(2, 0, 8), make(2, 3, 8), make(2, 3, 8), id="no_queries")
    yield Sample(make(2, 3, 8), make(2, 0, 8), make(2, 0, 8), softmax_lse_flag=True, id="no_keys")
    yield Sample(make(0, 3, 8), make(0, 3, 8), make(0, 3, 8), id="no_batch")


add_refusals(op)
