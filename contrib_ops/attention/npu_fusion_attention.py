"""Training attention: softmax over scaled scores with bias, mask and dropout, and its gradient.

Source: torch_npu.npu_fusion_attention. Both passes process the keys in blocks: memory is linear in
the sequence lengths, and the backward pass recomputes weights and dropout from softmax_max,
softmax_sum, seed and offset.

Where torch_npu does not specify the behaviour:

- A query row without visible keys gives output 0, softmax_max -inf and softmax_sum 0; its gradient
  is 0. inner_precise has no effect.
- Statistics of TND are [T, N, 8] in this order of axes for every softmax_layout.
- sink is an additional unscaled score per head, which enters softmax_max and softmax_sum and has no
  value row.
- Dropout keeps weight number n, in the order [B, N, Sq, Skv] (TND: sequence by sequence), where
  word n % 4 of Philox 4x32-10 is below keep_prob * 2^32; its key is seed and its counter is n // 4
  in the lower and offset in the upper 64 bits. Seed 0 takes both from the default generator of
  the device, whose offset moves on by the blocks of four weights, and returns them; for the seed 0
  of a generator, which would mean none, another number. On the CPU it draws a seed from torch's
  default generator. A traced call must pass one, and a node of a model draws at random.
- The content of the masks of sparse modes 2, 3, 4, 6, 7 and 8 is not read. In mode 5 the rule and
  the given mask both apply.
- pse in TND is [B or 1, N, at least the longest Sq or 1, at least the longest Skv], read from its
  upper left corner for each sequence. If 1024 rows represent more, earlier rows use the last one's
  values at the same distance j - i, and 0 where it has none.
- Values may have any head size, and float32 is also allowed.
- The number of weights is a SymInt, where torch_npu's schema has int: with int a trace would fix
  the product of the sizes.
- Gradients of a call with dropout_mask are computed by the reference, which materialises the
  weights: the backward operator has no such argument.
"""

from onnxruntime_npu.opdef import FLOATS, Sample, npu_op, torch

from ._cases import catalogue_operands, tolerate_rounded_weights
from ._training.body import NOT_PORTABLE, Body
from ._training.problem import LAYOUTS
from ._training.reference import ARGUMENTS, attend, gradients
from ._training.refusals import wrong_calls
from ._training.samples import calls, pattern

op = npu_op(
    "npu_fusion_attention(Tensor query, Tensor key, Tensor value, int head_num, "
    "str input_layout, Tensor? pse=None, Tensor? padding_mask=None, Tensor? atten_mask=None, "
    f"float scale=1., float keep_prob=1., {ARGUMENTS}int[]? prefix=None, "
    "int[]? actual_seq_qlen=None, int[]? actual_seq_kvlen=None, int sparse_mode=0, "
    'bool gen_mask_parallel=True, bool sync=False, str softmax_layout="", Tensor? sink=None, '
    "Tensor? dropout_mask=None, int seed=0, int offset=0) "
    "-> (Tensor, Tensor, Tensor, Tensor, int, int, SymInt)",
    onnx="NPUFusionAttention",
    outputs=["attention_out", "softmax_max", "softmax_sum", "softmax_out"],
    cpu=["prefix", "actual_seq_qlen", "actual_seq_kvlen"],
    dtypes={
        **dict.fromkeys(("query", "key", "value", "pse", "attention_out", "softmax_out"), FLOATS),
        **dict.fromkeys(("padding_mask", "atten_mask"), ("bool", "uint8")),
        **dict.fromkeys(("softmax_max", "softmax_sum", "sink"), ("float32",)),
        "dropout_mask": ["uint8"],
    },
    not_portable=NOT_PORTABLE,
)


@op.host
def host(draws, **a):
    """Draw seed and offset if there is no seed, and return them and numels."""
    seed, offset = a["seed"], a["offset"]
    query, key = a["query"], a["key"]
    layout, numels = a["input_layout"], 0
    lists = a["actual_seq_qlen"], a["actual_seq_kvlen"]
    if layout == "TND" and None not in lists:
        q, kv = ([n - p for n, p in zip(x, [0, *x], strict=False)] for x in lists)
        pairs = zip(q, kv, strict=False)
        numels = a["head_num"] * sum(max(rows, 0) * max(keys, 0) for rows, keys in pairs)
    elif "S" in layout and query.dim() == key.dim() == LAYOUTS.get(layout, "").count(",") + 1:
        axis = layout.index("S")  # wrong shapes are rejected later
        numels = query.shape[layout.index("B")] * a["head_num"]
        numels *= query.shape[axis] * key.shape[axis]
    if seed == 0 and 0 < a["keep_prob"] < 1 and a["dropout_mask"] is None:
        seed, offset = draws.position((numels + 3) // 4)
    return {"seed": seed, "offset": offset}, (seed, offset, numels)


@op.backward("query", "key", "value", "pse", "sink")
def backward(
    grad_attention_out, query, key, value, head_num, input_layout, pse, padding_mask, atten_mask,
    scale, keep_prob, pre_tockens, next_tockens, inner_precise, prefix, actual_seq_qlen,
    actual_seq_kvlen, sparse_mode, softmax_layout, sink, dropout_mask, seed, offset,
    attention_out, softmax_max, softmax_sum,
):  # fmt: skip
    """npu_fusion_attention_grad; its reference where it has no kernel or argument."""
    tensors = query, key, value, grad_attention_out, head_num, input_layout
    given = {
        "pse": pse, "padding_mask": padding_mask, "atten_mask": atten_mask,
        "softmax_max": softmax_max, "softmax_sum": softmax_sum, "attention_in": attention_out,
        "scale_value": scale, "keep_prob": keep_prob, "pre_tockens": pre_tockens,
        "next_tockens": next_tockens, "inner_precise": inner_precise, "seed": seed,
        "offset": offset, "prefix": prefix, "actual_seq_qlen": actual_seq_qlen,
        "actual_seq_kvlen": actual_seq_kvlen, "sparse_mode": sparse_mode,
        "softmax_layout": softmax_layout, "sink": sink,
    }  # fmt: skip
    if dropout_mask is not None or query.dtype == torch.float64:
        names = ("query", "key", "value", "dy", "head_num", "input_layout")
        arguments = {**dict(zip(names, tensors, strict=True)), **given}
        grads = gradients("npu_fusion_attention_grad", **arguments, bits=dropout_mask)
    else:
        grads = torch.ops.npu.npu_fusion_attention_grad(*tensors, **given)
    absent = None if pse is None else grads[3], None if sink is None else grads[4]
    return *grads[:3], *absent


@op.reference
def reference(**arguments):
    """Return dropout(softmax(scale * (Q K^T + pse), masked)) V and the softmax statistics.

    query, key, value: by input_layout, of one dtype; the heads of key divide head_num.
    pse: [B or 1, N, Sq or 1, Skv] of that dtype, or [B or 1, N, 1024, Skv] for Sq == Skv > 1024.
    atten_mask: bool or uint8, nonzero = masked; if absent, sparse_mode, pre_tockens and
    next_tockens have no effect. Modes 0, 1 and 5: [Sq, Skv] or [B or 1, N or 1, Sq, Skv], in TND
    [>= Sq, >= Skv].
    Modes 2, 3, 4, 7 and 8: [2048, 2048], mode 6: [3072, 2048], after axes of size 1.
    prefix: number of keys per sequence that every query sees in modes 5 and 6.
    actual_seq_qlen, actual_seq_kvlen: ends of the sequences, for TND.
    dropout_mask: uint8, bit n % 8 of byte n // 8 keeps weight n.
    Result: like query with value's head size; softmax_max and softmax_sum [B, N, Sq, 8] float32,
    in TND [T, N, 8]; an empty tensor; seed, offset and the number of weights.
    """
    return attend(op.name, **arguments)


@op.function
def body(
    b, call, query, key, value, pse, padding_mask, atten_mask, prefix, query_ends, key_ends, sink,
    dropout_mask,
):  # fmt: skip
    p = Body(b, call, query, key, value, pse, atten_mask, prefix, query_ends, key_ends)
    scores = p.scores(call.attrs["scale"])
    # Without keys, a score of -inf is used.
    edge = b.Expand(p.infinity, p.join(p.batch, p.heads, p.rows, 1))
    if sink is not None:
        edge = b.Expand(p.reshape(sink, 1, p.heads, 1, 1), b.Shape(edge))
    top = b.ReduceMax(b.Concat(scores, edge, axis=3), [3], keepdims=1)
    base = p.where_not(b.Equal(top, p.infinity), top)
    weights = b.Exp(b.Sub(scores, base))
    total = b.ReduceSum(weights, [3], keepdims=1)
    if sink is not None:
        total = b.Add(total, b.Exp(b.Sub(edge, base)))
    weights = b.Mul(weights, call.attrs["keep_prob"])
    out = p.unfold(p.product(p.fold(weights), p.v, p.keys))
    out = p.together(b.Div(out, b.Where(b.Equal(total, 0.0), 1.0, total)), p.heads)

    def statistics(x):
        x = b.Transpose(b.Squeeze(x, [0]), perm=[1, 0, 2]) if p.packed else x
        return b.Expand(x, b.Concat(b.Shape(x, start=0, end=-1), b.const([8], "int64"), axis=0))

    return out, statistics(top), statistics(total), p.empty(call.dtype("query"))


tolerate_rounded_weights(op)


@op.samples
def samples(make):
    yield Sample(
        *catalogue_operands(make),
        1,
        "BNSD",
        scale=0.5,
        sparse_mode=3,
        atten_mask=pattern(3),
        id="catalogue",
        expect=None
        if make.dtype != "float32"
        else [
            [[[[1.75508, 2.75508], [3.30191, 4.30191]]]],
            [[[[0.5] * 8, [0.5] * 8]]],
            [[[[1.60653] * 8, [2.60653] * 8]]],
            None,
        ],
    )
    for name, q, k, v, given in calls(make):
        yield Sample(q, k, v, **given, id=name)
    q, k, v = make(2, 2, 13, 8), make(2, 2, 11, 8), make(2, 2, 11, 8)
    bits = make.ints((2 * 2 * 13 * 11 + 127) // 128 * 16, low=0, high=256, dtype="uint8")
    yield Sample(q, k, v, 2, "BNSD", keep_prob=0.5, dropout_mask=bits, id="given_bits")
    q = make(2, 13, 2, 8).transpose(1, 2)
    yield Sample(q, k, v, 2, "BNSD", id="not_contiguous")


for message, arguments in wrong_calls():
    op.errors(
        lambda make, arguments=arguments: Sample(**arguments(make)),
        match=rf"\[npu_fusion_attention\] {message}",
    )
op.errors(
    lambda make: Sample(
        make(1, 2, 3, 8), make(1, 2, 3, 8), make(1, 2, 3, 8), 2, "BNSD", keep_prob=0.5,
        dropout_mask=make.ints(2, dtype="uint8"),
    ),
    match=r"\[npu_fusion_attention\] expected dropout_mask uint8 with a bit for each of 18",
    id="few_bits",
)  # fmt: skip
