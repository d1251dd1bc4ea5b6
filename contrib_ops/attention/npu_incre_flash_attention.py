"""Inference attention of one query row per sequence over a key/value cache: decode.

Source: torch_npu.npu_incre_flash_attention: npu_fused_infer_attention_score for one row, without
patterns, rope parts and prefixes. The package _inference documents unspecified
behaviour. padding_mask is reserved, and so are dequant_scale1, quant_scale1 and dequant_scale2,
because query is never int8. inner_precise has no effect.
"""

from onnxruntime_npu.opdef import FLOATS, Sample, check, npu_op

from ._cases import refusals
from ._inference.body import attend_body
from ._inference.operands import result_typings
from ._inference.reference import attend

CACHES = [*FLOATS, "int8"]

op = npu_op(
    "npu_incre_flash_attention(Tensor query, Tensor key, Tensor value, *, "
    "Tensor? padding_mask=None, Tensor? atten_mask=None, Tensor? pse_shift=None, "
    "SymInt[]? actual_seq_lengths=None, Tensor? antiquant_scale=None, "
    "Tensor? antiquant_offset=None, Tensor? block_table=None, Tensor? dequant_scale1=None, "
    "Tensor? quant_scale1=None, Tensor? dequant_scale2=None, Tensor? quant_scale2=None, "
    "Tensor? quant_offset2=None, Tensor? kv_padding_size=None, int num_heads=1, "
    'float scale_value=1., str input_layout="BSH", int num_key_value_heads=0, int block_size=0, '
    "int inner_precise=1) -> Tensor",
    onnx="NPUIncreFlashAttention",
    outputs=["attention_out"],
    dtypes={
        "query": FLOATS,
        "key": CACHES,
        "value": CACHES,
        "padding_mask": ["bool", "int8", "uint8", *FLOATS],
        "atten_mask": ["bool", "int8", "uint8"],
        "pse_shift": FLOATS,
        "antiquant_scale": FLOATS,
        "antiquant_offset": FLOATS,
        "block_table": ["int32"],
        "dequant_scale1": FLOATS,
        "quant_scale1": FLOATS,
        "dequant_scale2": FLOATS,
        "quant_scale2": FLOATS,
        "quant_offset2": FLOATS,
        "kv_padding_size": ["int64"],
        "attention_out": [*FLOATS, "int8"],
    },
    cpu=["kv_padding_size"],
    late=["actual_seq_lengths", "kv_padding_size"],
    typings=result_typings(FLOATS),
)

LAYOUTS = ("BSH", "BSND", "BNSD")
NAMES = {"actual_seq_lengths_kv": "actual_seq_lengths"}


@op.reference
def reference(
    query,
    key,
    value,
    padding_mask=None,
    actual_seq_lengths=None,
    scale_value=1.0,
    inner_precise=1,
    **arguments,
):
    """Return softmax(scale_value * q K^T + pse_shift, masked) V.

    query: by input_layout with one row per sequence. key, value: likewise with more rows, of
    query's dtype, or int8 with antiquant_scale; with block_table [B, blocks of a sequence] int32
    they are pages, [blocks, block_size, N*D], [blocks, N, block_size, D] or
    [blocks, N, D/16, block_size, 16].
    atten_mask: bool, int8 or uint8, nonzero = masked: [B, Skv], [1, Skv], [B or 1, 1, Skv] or
    [B or 1, 1, 1, Skv]. pse_shift: [B or 1, N, >= 1, >= Skv] of query's dtype.
    actual_seq_lengths: number of keys, one for all or one per sequence.
    antiquant_scale, antiquant_offset: [2] or two times N*D elements, first key's and then value's.
    kv_padding_size: [1] int64; number of padding keys at the end of the axis.
    quant_scale2, quant_offset2: 1 or N*D elements; the result is then int8.
    Result: query's layout with value's head size, of query's dtype.
    """
    check(padding_mask is None, f"[{op.name}] expected no padding_mask: the argument is reserved")
    out, _ = attend(
        op.name,
        query,
        key,
        value,
        layouts=LAYOUTS,
        decode="always",
        names=NAMES,
        actual_seq_lengths_kv=actual_seq_lengths,
        scale=scale_value,
        sparse_mode=1,
        **arguments,
    )
    return out


@op.function
def body(b, call, *inputs):
    given = dict(zip((x.name for x in op.inputs), inputs, strict=True))
    given["actual_seq_lengths_kv"] = given.pop("actual_seq_lengths")
    attributes = {**call.attrs, "scale": call.attrs["scale_value"], "sparse_mode": 1}
    out, _ = attend_body(b, call, op.name, given, attributes, decode="always", names=NAMES)
    return out


op.tolerance("int8", rtol=0, atol=1, reason="a result at the border of two integers")


@op.samples
def samples(make):
    heads = {"num_heads": 6, "num_key_value_heads": 2, "scale_value": 0.25}
    bsh = make(2, 1, 96), make(2, 70, 32), make(2, 70, 32)
    yield Sample(*bsh, **heads, id="bsh")
    yield Sample(*bsh, **heads, actual_seq_lengths=[70, 31], inner_precise=0, id="lengths")
    yield Sample(*bsh, **heads, actual_seq_lengths=[9], atten_mask=make.bools(2, 70),
                 pse_shift=make(1, 6, 1, 72), id="mask_and_bias")  # fmt: skip
    bnsd = make(2, 6, 1, 16), make(2, 2, 300, 16), make(2, 2, 300, 24)
    yield Sample(*bnsd, **heads, input_layout="BNSD", atten_mask=make.bools(2, 1, 1, 300),
                 actual_seq_lengths=[300, 0], id="bnsd")  # fmt: skip
    yield Sample(*bnsd, **heads, input_layout="BNSD", actual_seq_lengths=[280, 295],
                 kv_padding_size=make.tensor([10], dtype="int64"), id="left_padding")  # fmt: skip
    ints = [make.ints(2, 70, 2, 16, low=-128, high=128, dtype="int8") for _ in range(2)]
    q, bsnd = make(2, 1, 6, 16), {**heads, "input_layout": "BSND"}
    yield Sample(q, *ints, **bsnd, antiquant_scale=make.uniform(2, 2, 16, low=0.005, high=0.02),
                 antiquant_offset=make(2, 2, 16, scale=8), id="int8_channel")  # fmt: skip
    yield Sample(q, *ints, **bsnd, antiquant_scale=make.tensor([0.01, 0.02]),
                 quant_scale2=make.tensor([20.0]), id="int8_in_and_out")  # fmt: skip
    table = make.tensor([[7, 2, 5, 99], [0, 8, -1, -1]], dtype="int32")
    paged = {"block_table": table, "block_size": 16, "actual_seq_lengths": [45, 17]}
    yield Sample(q, make(9, 16, 32), make(9, 16, 32), **bsnd, **paged, id="pages")
    yield Sample(make(2, 6, 1, 16), make(9, 2, 16, 16), make(9, 2, 16, 16), **heads, **paged,
                 input_layout="BNSD", id="pages_bnsd")  # fmt: skip
    ints = [make.ints(9, 16, 32, low=-128, high=128, dtype="int8") for _ in range(2)]
    yield Sample(q, *ints, **bsnd, **paged, id="int8_pages",
                 antiquant_scale=make.uniform(2, 32, low=0.005, high=0.02))  # fmt: skip
    yield Sample(make(2, 1, 8), make(2, 0, 8), make(2, 0, 8), id="no_keys")
    yield Sample(make(0, 1, 8), make(0, 3, 8), make(0, 3, 8), id="no_batch")


refuse = refusals(op, (2, 1, 4, 16))
refuse("input_layout BSH, BSND, BNSD, got 'TND'", "layout", input_layout="TND")
refuse("num_key_value_heads to divide num_heads 4, got 3", "groups", num_key_value_heads=3)
refuse(r"num_heads in \[1, 2147483647\], got 0", "no_heads", num_heads=0)
refuse(r"query of shape \[B, S, N, D\]", "rank", (2, 1, 64), (2, 8, 2, 16), (2, 8, 2, 16))
refuse(r"key of shape \[B, S, N, D\]", "key_rank", (2, 1, 4, 16), (2, 8, 32), (2, 8, 2, 16))
refuse("key of query's batch size 2, got 1", "batch", (2, 1, 4, 16), (1, 8, 2, 16), (1, 8, 2, 16))
refuse("key of query's head size 16, got 8", "size", (2, 1, 4, 16), (2, 8, 2, 8), (2, 8, 2, 8))
refuse("2 heads in key, got 3", "heads", (2, 1, 4, 16), (2, 8, 3, 16), (2, 8, 3, 16))
refuse("one query row, got 2", "rows", (2, 2, 4, 16), (2, 8, 2, 16), (2, 8, 2, 16))
refuse(r"actual_seq_lengths in \[0, 8\], got 9 for batch", "length", actual_seq_lengths=[9, 1])
refuse(r"atten_mask of shape .* got \[2, 9\]", "mask", atten_mask=lambda make: make.bools(2, 9))
refuse("no padding_mask: the arg", "padding_mask", padding_mask=lambda make: make.bools(2, 8))
refuse("no quant_scale1 with query .*float32, got", "reserved", quant_scale1=lambda make: make(1))
refuse(
    "key and value of int8, or of int32 that hold int4, with antiquant scales",
    "scale_of_floats",
    antiquant_scale=lambda make: make(2),
)
op.errors(
    lambda make: Sample(
        make(1, 1, 16), make(3, 8, 16), make(3, 8, 16),
        block_table=make.tensor([[0, 3]], dtype="int32"), block_size=8, actual_seq_lengths=[9],
    ),
    match=r"\[npu_incre_flash_attention\] expected block_table entries in \[0, 3\), got 3",
    needs_values=True,
    id="block_beyond_the_cache",
)  # fmt: skip
op.errors(
    lambda make: Sample(
        make(1, 1, 16), make(3, 8, 16), make(3, 8, 16),
        block_table=make.tensor([[0, 1]], dtype="int32"), block_size=8,
    ),
    match=r"\[npu_incre_flash_attention\] expected actual_seq_lengths with block_table, got none",
    id="paged_without_lengths",
)  # fmt: skip
