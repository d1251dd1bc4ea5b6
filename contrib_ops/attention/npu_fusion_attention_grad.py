"""The gradient of npu_fusion_attention, which documents the unspecified behaviour.

Source: torch_npu.npu_fusion_attention_grad.
"""

from onnxruntime_npu.opdef import FLOATS, Sample, npu_op

from ._training.body import NOT_PORTABLE, Body
from ._training.reference import ARGUMENTS, attend, gradients
from ._training.refusals import wrong_calls
from ._training.samples import calls

op = npu_op(
    "npu_fusion_attention_grad(Tensor query, Tensor key, Tensor value, Tensor dy, int head_num, "
    "str input_layout, *, Tensor? pse=None, Tensor? padding_mask=None, Tensor? atten_mask=None, "
    "Tensor? softmax_max=None, Tensor? softmax_sum=None, Tensor? softmax_in=None, "
    "Tensor? attention_in=None, float scale_value=1., float keep_prob=1., "
    f"{ARGUMENTS}int seed=0, int offset=0, int numels=0, int[]? prefix=None, "
    "int[]? actual_seq_qlen=None, int[]? actual_seq_kvlen=None, int sparse_mode=0, "
    'bool gen_mask_parallel=True, bool sync=False, str softmax_layout="", Tensor? sink=None) '
    "-> (Tensor, Tensor, Tensor, Tensor, Tensor)",
    onnx="NPUFusionAttentionGrad",
    outputs=["dq", "dk", "dv", "dpse", "dsink"],
    cpu=["prefix", "actual_seq_qlen", "actual_seq_kvlen"],
    dtypes={
        **dict.fromkeys(("query", "key", "value", "dy", "pse", "softmax_in"), FLOATS),
        **dict.fromkeys(("attention_in", "dq", "dk", "dv", "dpse"), FLOATS),
        **dict.fromkeys(("padding_mask", "atten_mask"), ("bool", "uint8")),
        **dict.fromkeys(("softmax_max", "softmax_sum", "sink", "dsink"), ("float32",)),
    },
    not_portable=NOT_PORTABLE,
)


@op.reference
def reference(**arguments):
    """Return the gradients of query, key, value, pse and sink.

    query, key, value and the arguments after pse: as in the forward call. dy: the gradient of
    attention_out, which is attention_in; softmax_max and softmax_sum: its other results.
    seed and offset: the forward call's results; numels and softmax_in are not needed. bits, the
    forward call's dropout_mask, is not an argument of the operator.
    Result: each like its argument; empty for an absent pse or sink.
    """
    return gradients(op.name, **arguments)


@op.function
def body(
    b, call, query, key, value, dy, pse, padding_mask, atten_mask, softmax_max, softmax_sum,
    softmax_in, attention_in, prefix, query_ends, key_ends, sink,
):  # fmt: skip
    scale, keep = call.attrs["scale_value"], call.attrs["keep_prob"]
    p = Body(b, call, query, key, value, pse, atten_mask, prefix, query_ends, key_ends)

    def statistics(x):
        x = b.Slice(x, [0], [1], [-1])
        return b.Unsqueeze(b.Transpose(x, perm=[1, 0, 2]), [0]) if p.packed else x

    top, total = statistics(softmax_max), statistics(softmax_sum)
    nothing = b.Or(b.Equal(total, 0.0), b.Equal(top, p.infinity))
    base, total = p.where_not(nothing, top), b.Where(nothing, 1.0, total)
    weights = p.where_not(nothing, b.Div(b.Exp(b.Sub(p.scores(scale), base)), total))
    d_out = p.apart(dy, p.heads)
    products = b.ReduceSum(b.Mul(d_out, p.apart(attention_in, p.heads)), [3], keepdims=1)
    d_out = p.fold(d_out)
    d_weights = p.unfold(b.MatMul(d_out, b.Transpose(p.v, perm=[0, 1, 3, 2])))
    d_scores = b.Mul(b.Mul(weights, b.Sub(b.Mul(d_weights, keep), products)), scale)
    folded = p.fold(d_scores)
    across = b.Transpose(folded, perm=[0, 1, 3, 2])
    dq = p.together(p.unfold(p.product(folded, p.k, p.keys)), p.heads)
    dk = p.together(p.product(across, p.fold(p.q), p.rows), p.key_heads)
    weights = b.Transpose(p.fold(b.Mul(weights, keep)), perm=[0, 1, 3, 2])
    dv = p.together(p.product(weights, d_out, p.rows), p.key_heads)
    d_pse, d_sink = p.empty(call.dtype("query")), b.const([], "float32")
    if pse is not None:
        place, held = p.bias_places()
        at = p.reshape(place, 1, 1, b.Mul(p.rows, p.keys))
        whole = p.join(p.batch, p.heads, b.Mul(p.rows, p.keys))
        parts = b.Reshape(p.where_not(b.Not(held), d_scores), whole, allowzero=1)
        size = b.Mul(p.size_of(pse, 2), p.keys)
        zeros = b.Expand(b.const(0.0, "float32"), p.join(p.batch, p.heads, size))
        sums = b.ScatterElements(zeros, b.Expand(at, whole), parts, axis=2, reduction="add")
        shared = b.And(b.Equal(p.size_of(pse, 0), 1), b.Not(b.Equal(p.batch, 1)))
        axes = b.Compress(b.const([0], "int64"), shared)
        sums = b.ReduceSum(sums, axes, keepdims=1, noop_with_empty_axes=1)
        d_pse = b.Cast(b.Reshape(sums, b.Shape(pse), allowzero=1), to=call.dtype("query"))
    if sink is not None:
        share = b.Div(b.Exp(b.Sub(p.reshape(sink, 1, p.heads, 1, 1), base)), total)
        share = p.where_not(nothing, share)
        d_sink = b.Neg(b.ReduceSum(b.Mul(share, products), [0, 2, 3], keepdims=0))
    return dq, dk, dv, d_pse, d_sink


op.tolerance(
    "float32",
    rtol=2e-5,
    atol=2e-5,
    reason="sums over all queries of products whose factors each carry a few roundings of 2^-24",
)


DEFAULTS = {
    "pse": None, "padding_mask": None, "atten_mask": None, "keep_prob": 1.0,
    "pre_tockens": 2147483647, "next_tockens": 2147483647, "inner_precise": 0, "prefix": None,
    "actual_seq_qlen": None, "actual_seq_kvlen": None, "sparse_mode": 0, "softmax_layout": "",
    "sink": None,
}  # fmt: skip


def forward(**given):
    """Return the results of npu_fusion_attention."""
    return attend(op.name, **{**DEFAULTS, **given})


@op.samples
def samples(make):
    for name, q, k, v, given in calls(make):
        out, top, total, _ = forward(query=q, key=k, value=v, **given)
        given = {("scale_value" if n == "scale" else n): x for n, x in given.items()}
        yield Sample(
            q, k, v, make(*out.shape), **given, softmax_max=top, softmax_sum=total,
            attention_in=out, id=name,
        )  # fmt: skip


def refused(make, **changes):
    x, statistics = make(2, 4, 5, 8), make(2, 4, 5, 8, dtype="float32")
    given = {"dy": x, "attention_in": x, "softmax_max": statistics, "softmax_sum": statistics}
    given |= {"query": x, "key": x, "value": x, "head_num": 4, "input_layout": "BNSD"}
    return Sample(**{**given, **changes})


for message, arguments in wrong_calls():
    op.errors(
        lambda make, arguments=arguments: refused(make, **arguments(make)),
        match=rf"\[npu_fusion_attention_grad\] {message}",
    )
for name, message, changes in (
    ("dy", "expected dy .* of shape .2, 4, 5, 8.", lambda make: {"dy": make(2, 4, 5, 4)}),
    ("no_output", "expected attention_in .*, got none", lambda make: {"attention_in": None}),
    ("no_sum", "expected softmax_sum float32 of .*, got none", lambda make: {"softmax_sum": None}),
    ("seed", "expected the seed that the forward call returned", lambda make: {"keep_prob": 0.5}),
):
    op.errors(
        lambda make, changes=changes: refused(make, **changes(make)),
        match=rf"\[npu_fusion_attention_grad\] {message}",
        id=name,
    )
