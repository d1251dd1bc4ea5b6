"""Inference attention over a prompt: all query rows of all sequences.

Source: torch_npu.npu_prompt_flash_attention: npu_fused_infer_attention_score without a cache in
pages or integers, rope parts, prefixes and padding. The package _inference documents the
behaviour that torch_npu does not specify. Without atten_mask pre_tokens and next_tokens have no
effect; a single query row is not a special case; sparse mode 3 is aligned to the last row and key.
padding_mask is reserved.
"""

from onnxruntime_npu.opdef import FLOATS, Sample, check, npu_op, torch

from ._cases import catalogue_operands, compressed_mask, refusals, tolerate_rounded_weights
from ._inference.body import attend_body
from ._inference.operands import result_typings
from ._inference.reference import attend

OPERANDS = [*FLOATS, "int8"]
SCALARS = [*FLOATS, "int64", "uint64"]  # 64-bit integers hold the bits of a float32

op = npu_op(
    "npu_prompt_flash_attention(Tensor query, Tensor key, Tensor value, *, "
    "Tensor? padding_mask=None, Tensor? atten_mask=None, Tensor? pse_shift=None, "
    "int[]? actual_seq_lengths=None, Tensor? deq_scale1=None, Tensor? quant_scale1=None, "
    "Tensor? deq_scale2=None, Tensor? quant_scale2=None, Tensor? quant_offset2=None, "
    "int num_heads=1, float scale_value=1., int pre_tokens=2147483647, int next_tokens=0, "
    'str input_layout="BSH", int num_key_value_heads=0, int[]? actual_seq_lengths_kv=None, '
    "int sparse_mode=0) -> Tensor",
    onnx="NPUPromptFlashAttention",
    outputs=["attention_out"],
    dtypes={
        "query": OPERANDS,
        "key": OPERANDS,
        "value": OPERANDS,
        "padding_mask": ["bool", "int8", "uint8", *FLOATS],
        "atten_mask": ["bool", "int8", "uint8"],
        "pse_shift": FLOATS,
        "deq_scale1": SCALARS,
        "quant_scale1": FLOATS,
        "deq_scale2": SCALARS,
        "quant_scale2": FLOATS,
        "quant_offset2": FLOATS,
        "attention_out": OPERANDS,
    },
    cpu=["actual_seq_lengths", "actual_seq_lengths_kv"],
    late=["actual_seq_lengths", "actual_seq_lengths_kv"],
    sample_dtypes=FLOATS,
    typings=result_typings(OPERANDS),
)

LAYOUTS = ("BSH", "BSND", "BNSD", "BNSD_BSND", "SH", "NSD", "TND")
NAMES = {"dequant_scale1": "deq_scale1", "dequant_scale2": "deq_scale2"}


@op.reference
def reference(
    query,
    key,
    value,
    padding_mask=None,
    deq_scale1=None,
    deq_scale2=None,
    scale_value=1.0,
    **arguments,
):
    """Return softmax(scale_value * Q K^T + pse_shift, masked) V.

    query, key, value: by input_layout, of one dtype; SH is [S, N*D] and NSD [N, S, D] of one batch
    entry; value may have a different head size.
    atten_mask: bool, int8 or uint8, nonzero = masked. Sparse modes 0 and 1: [Sq, Skv],
    [B or 1, Sq, Skv] or [B or 1, 1, Sq, Skv]. Modes 2, 3 and 4: [2048, 2048] behind up to two axes
    of size 1.
    pse_shift: [B or 1, N, 1 or >= Sq, >= Skv] of query's dtype (float16 with int8), added after
    scaling; one row is added to the scores of all queries.
    actual_seq_lengths, actual_seq_lengths_kv: one length, or one per batch entry; in TND the ends
    of the sequences.
    deq_scale1, quant_scale1, deq_scale2: one element each, for query, key and value int8.
    quant_scale2, quant_offset2: 1 or N*D elements; the result is then int8.
    Result: the output layout with value's head size, of query's dtype (float16 with int8).
    """
    check(padding_mask is None, f"[{op.name}] expected no padding_mask: the argument is reserved")
    out, _ = attend(
        op.name,
        query,
        key,
        value,
        layouts=LAYOUTS,
        decode="never",
        names=NAMES,
        dequant_scale1=deq_scale1,
        dequant_scale2=deq_scale2,
        scale=scale_value,
        **arguments,
    )
    return out


@op.function
def body(b, call, *inputs):
    given = dict(zip((x.name for x in op.inputs), inputs, strict=True))
    given |= {general: given[own] for general, own in NAMES.items()}
    attributes = {**call.attrs, "scale": call.attrs["scale_value"]}
    out, _ = attend_body(b, call, op.name, given, attributes, decode="never", names=NAMES)
    return out


op.tolerance("int8", rtol=0, atol=1, reason="a result at the border of two integers")
tolerate_rounded_weights(op)


@op.samples
def samples(make):
    causal = compressed_mask()
    yield Sample(
        *catalogue_operands(make),
        atten_mask=causal,
        input_layout="BNSD",
        scale_value=0.5,
        sparse_mode=2,
        id="catalogue",
        expect=None if make.dtype != "float32" else [[[[[1.0, 2.0], [2.24492, 3.24492]]]]],
    )
    heads = {"num_heads": 4, "num_key_value_heads": 2, "scale_value": 0.25}
    bsh = make(2, 19, 64), make(2, 33, 32), make(2, 33, 32)
    yield Sample(*bsh, **heads, id="not_causal_without_a_mask")
    yield Sample(*bsh, **heads, atten_mask=torch.zeros(19, 33, dtype=torch.bool),
                 id="causal_by_next_tokens")  # fmt: skip
    yield Sample(*bsh, **heads, atten_mask=make.bools(2, 1, 19, 33), pre_tokens=2**63 - 1,
                 next_tokens=2**63 - 1, id="unbounded_tokens")  # fmt: skip
    yield Sample(*bsh, **heads, atten_mask=make.bools(2, 1, 19, 33), next_tokens=100,
                 pse_shift=make(1, 4, 20, 40), id="mask_and_bias")  # fmt: skip
    bnsd = make(2, 4, 19, 16), make(2, 2, 33, 16), make(2, 2, 33, 24)
    yield Sample(*bnsd, **heads, input_layout="BNSD_BSND", sparse_mode=3, atten_mask=causal[None],
                 actual_seq_lengths=[19, 5], actual_seq_lengths_kv=[33, 7],
                 id="right_down")  # fmt: skip
    yield Sample(*bnsd, **heads, input_layout="BNSD", sparse_mode=4, pre_tokens=3, next_tokens=2,
                 atten_mask=causal, id="band")  # fmt: skip
    yield Sample(make(2, 1, 4, 16), make(2, 9, 2, 16), make(2, 9, 2, 16), **heads, sparse_mode=2,
                 input_layout="BSND", atten_mask=causal, id="one_row_keeps_pattern")  # fmt: skip
    yield Sample(make(7, 64), make(9, 32), make(9, 32), **heads, input_layout="SH",
                 actual_seq_lengths_kv=[5], id="sh")  # fmt: skip
    yield Sample(make(4, 7, 16), make(2, 9, 16), make(2, 9, 16), **heads, input_layout="NSD",
                 sparse_mode=1, atten_mask=make.bools(7, 9), id="nsd")  # fmt: skip
    yield Sample(make(12, 4, 16), make(40, 2, 16), make(40, 2, 16), **heads, input_layout="TND",
                 actual_seq_lengths=[3, 3, 12], actual_seq_lengths_kv=[10, 20, 40], sparse_mode=3,
                 atten_mask=causal, id="tnd")  # fmt: skip
    yield Sample(*bsh, **heads, quant_scale2=make.tensor([50.0]), quant_offset2=make.tensor([3.0]),
                 id="int8_out")  # fmt: skip
    yield Sample(make(2, 0, 8), make(2, 3, 8), make(2, 3, 8), id="no_queries")
    yield Sample(make(2, 3, 8), make(2, 0, 8), make(2, 0, 8), id="no_keys")
    if make.dtype == "float16":  # the result of int8 operands is float16 for every dtype
        q, k = (make.ints(1, s, 32, low=-4, high=4, dtype="int8") for s in (9, 21))
        one = {name: make.tensor([x], dtype="float32") for name, x in
               (("deq_scale1", 0.25), ("quant_scale1", 127.0), ("deq_scale2", 2e-3))}  # fmt: skip
        yield Sample(q, k, k, num_heads=2, scale_value=0.125, **one, id="int8")


refuse = refusals(op, (2, 3, 4, 16))
refuse("input_layout BSH, .* got 'BSND_BNSD'", "layout", input_layout="BSND_BNSD")
refuse("num_key_value_heads to divide num_heads 4, got 3", "groups", num_key_value_heads=3)
refuse(r"num_heads in \[1, 2147483647\], got 0", "no_heads", num_heads=0)
refuse(r"query of shape \[B, S, N, D\]", "rank", (2, 3, 64), (2, 8, 2, 16), (2, 8, 2, 16))
refuse(r"key of shape \[B, S, N, D\]", "key_rank", (2, 3, 4, 16), (2, 8, 32), (2, 8, 2, 16))
refuse("key of query's batch size 2, got 1", "batch", (2, 3, 4, 16), (1, 8, 2, 16), (1, 8, 2, 16))
refuse("key of query's head size 16, got 8", "size", (2, 3, 4, 16), (2, 8, 2, 8), (2, 8, 2, 8))
refuse("4 heads in key, got 2", "heads", num_key_value_heads=0)
refuse("sparse_mode 0, 1, 2, 3 or 4, got -1", "sparse_mode", sparse_mode=-1)
refuse(r"the \[2048, 2048\] atten_mask with sparse_mode 3, got none", "no_mask", sparse_mode=3)
refuse(r"actual_seq_lengths_kv in \[0, 8\], got 9", "length", actual_seq_lengths_kv=[9])
refuse("no padding_mask: the arg", "padding_mask", padding_mask=lambda make: make.bools(3, 8))
refuse(
    "no deq_scale2 with query .*float32, got",
    "scale_of_integers",
    deq_scale2=lambda make: make(1, dtype="float32"),
)
