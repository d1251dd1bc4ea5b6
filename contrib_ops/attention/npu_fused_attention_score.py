"""Attention with an additive mask that merges the heads of its result. Deprecated upstream.

Source: torch_npu.npu_fused_attention_score. Where torch_npu does not specify the behaviour:

- query_transpose, key_transpose and value_transpose mean that the last two axes of the operand are
  swapped. bmm_score_transpose_b swaps those of the second matmul's right operand, the value: it
  cancels value_transpose. bmm_score_transpose_a is rejected, since the rows of the transposed
  weights do not sum to 1; dx_transpose has no effect.
- With keep_prob < 1 weight n of [B, N, Sq, Skv] is kept where word n of Philox 4x32-10 with key
  seed is below keep_prob * 2^32; a torch call draws the seed from torch's generator, and its
  backward pass drops the same. A compiled call cannot pass the drawn seed to its backward pass and
  is therefore rejected: npu_fusion_attention takes a seed.
- A row whose scores are all -inf gives 0.
- Sq and Skv may differ, and the dtype may be any float type.
"""

from onnxruntime_npu.opdef import FLOATS, NotPortable, Sample, check, npu_op, torch

from ._cases import tolerate_rounded_weights
from ._dropout import factors

op = npu_op(
    "npu_fused_attention_score(Tensor query_layer, Tensor key_layer, Tensor value_layer, "
    "Tensor attention_mask, Scalar scale, float keep_prob, bool query_transpose=False, "
    "bool key_transpose=False, bool bmm_score_transpose_a=False, "
    "bool bmm_score_transpose_b=False, bool value_transpose=False, bool dx_transpose=False) "
    "-> Tensor",
    onnx="NPUFusedAttentionScore",
    outputs=["out"],
    dtypes=dict.fromkeys(
        ("query_layer", "key_layer", "value_layer", "attention_mask", "out"), FLOATS
    ),
    seeded=True,
    not_portable="calls with 0 < keep_prob < 1: ONNX draws no numbers that a seed fixes",
)
MAX_HEAD_SIZE = 768


def require(condition, message):
    """Raise the operator's error unless the condition holds."""
    check(condition, f"[npu_fused_attention_score] {message}")


def in_rows(name, x, transposed):
    """Return the operand as [B, N, S, D]."""
    require(x.dim() == 4, f"expected {name} of shape [B, N, S, D], got {list(x.shape)}")
    x = x.transpose(2, 3) if transposed else x
    require(
        1 <= x.shape[3] <= MAX_HEAD_SIZE,
        f"expected a head size from 1 to {MAX_HEAD_SIZE} in {name}, got {x.shape[3]}",
    )
    return x


@op.reference
def reference(
    query_layer, key_layer, value_layer, attention_mask, scale, keep_prob, query_transpose=False,
    key_transpose=False, bmm_score_transpose_a=False, bmm_score_transpose_b=False,
    value_transpose=False, dx_transpose=False, seed=0,
):  # fmt: skip
    """Return dropout(softmax(scale * Q K^T + attention_mask)) V, heads merged.

    query_layer: [B, N, Sq, D]; key_layer: [B, N, Skv, D]; value_layer: [B, N, Skv, Dv];
    attention_mask: [B or 1, N or 1, Sq or 1, Skv], added to the scores; all of one dtype.
    Result: [B*Sq, N*Dv].
    """
    require(0 <= keep_prob <= 1, f"expected keep_prob in [0, 1], got {keep_prob}")
    require(not bmm_score_transpose_a, "expected bmm_score_transpose_a False, got True")
    mask = attention_mask
    dtypes = [x.dtype for x in (query_layer, key_layer, value_layer, mask)]
    require(len(set(dtypes)) == 1, f"expected tensors of one dtype, got {dtypes}")
    q = in_rows("query_layer", query_layer, query_transpose)
    k = in_rows("key_layer", key_layer, key_transpose)
    v = in_rows("value_layer", value_layer, value_transpose != bmm_score_transpose_b)
    batch, heads, rows, size = q.shape
    keys = k.shape[2]
    require(heads >= 1, "expected at least one head, got 0")
    require(
        k.shape[:2] == q.shape[:2] and k.shape[3] == size,
        f"expected key_layer of shape [{batch}, {heads}, Skv, {size}], got {list(k.shape)}",
    )
    require(
        v.shape[:3] == k.shape[:3],
        f"expected value_layer of shape [{batch}, {heads}, {keys}, D], got {list(v.shape)}",
    )
    require(
        mask.dim() == 4
        and mask.shape[0] in (1, batch)
        and mask.shape[1] in (1, heads)
        and mask.shape[2] in (1, rows)
        and mask.shape[3] == keys,
        f"expected attention_mask of shape [1 or {batch}, 1 or {heads}, 1 or {rows}, {keys}], "
        f"got {list(mask.shape)}",
    )
    compute = torch.float64 if q.dtype == torch.float64 else torch.float32
    scores = q.to(compute) @ k.to(compute).transpose(2, 3) * scale + mask.to(compute)
    hidden = scores == float("-inf")
    weights = torch.softmax(scores, -1).masked_fill(hidden, 0.0)
    if keep_prob < 1:
        number = torch.arange(weights.numel(), device=weights.device).view(weights.shape)
        weights = weights * factors(keep_prob, number, seed, 0).to(compute)
    out = (weights @ v.to(compute)).to(q.dtype)
    return out.transpose(1, 2).reshape(batch * rows, heads * v.shape[3]).contiguous()


@op.backward("query_layer", "key_layer", "value_layer", "attention_mask")
def backward(
    grad_out, query_layer, key_layer, value_layer, attention_mask, scale, keep_prob,
    query_transpose, key_transpose, bmm_score_transpose_b, value_transpose, seed,
):  # fmt: skip
    """With weights P, kept by F, and g = F dO V^T: dS = P (g - sum(P g)); the rest follows."""
    require(
        keep_prob in (0, 1) or seed != 0,
        f"expected keep_prob 0 or 1 in a traced call whose gradient is wanted, got {keep_prob}: "
        "npu_fusion_attention takes a seed",
    )
    turn_value = value_transpose != bmm_score_transpose_b
    compute = torch.promote_types(query_layer.dtype, torch.float32)
    q, k, v = (
        (x.transpose(2, 3) if turned else x).to(compute)
        for x, turned in (
            (query_layer, query_transpose), (key_layer, key_transpose), (value_layer, turn_value),
        )
    )  # fmt: skip
    mask = attention_mask.to(compute)
    batch, heads, rows, _ = q.shape
    d_out = grad_out.to(compute).reshape(batch, rows, heads, v.shape[3]).transpose(1, 2)
    scores = q @ k.transpose(2, 3) * scale + mask
    weights = torch.softmax(scores, -1).masked_fill(scores == float("-inf"), 0.0)
    keep = keep_prob
    if 0 < keep_prob < 1:
        number = torch.arange(weights.numel(), device=weights.device).view(weights.shape)
        keep = factors(keep_prob, number, seed, 0).to(compute)
    d_weights = d_out @ v.transpose(2, 3) * keep
    d_scores = weights * (d_weights - (weights * d_weights).sum(-1, keepdim=True))
    dq = d_scores @ k * scale
    dk = d_scores.transpose(2, 3) @ q * scale
    dv = (weights * keep).transpose(2, 3) @ d_out
    turned = (query_transpose, key_transpose, turn_value)
    grads = [
        (g.transpose(2, 3) if t else g).to(query_layer.dtype)
        for g, t in zip((dq, dk, dv), turned, strict=True)
    ]
    return *grads, d_scores.sum_to_size(mask.shape).to(query_layer.dtype)


@op.function
def body(b, call, query, key, value, mask):
    a = call.attrs
    if a["keep_prob"] not in (0, 1):
        raise NotPortable(op.not_portable)

    def in_rows(x, transposed):
        x = b.Cast(x, to="float32")
        return b.Transpose(x, perm=[0, 1, 3, 2]) if transposed else x

    q = in_rows(query, a["query_transpose"])
    k = in_rows(key, not a["key_transpose"])  # as the right operand
    v = in_rows(value, bool(a["value_transpose"]) != bool(a["bmm_score_transpose_b"]))
    scores = b.Add(b.Mul(b.MatMul(q, k), a["scale"]), b.Cast(mask, to="float32"))
    infinity = b.const(float("-inf"), "float32")
    top = b.ReduceMax(scores, [3], keepdims=1)
    weights = b.Exp(b.Sub(scores, b.Where(b.Equal(top, infinity), 0.0, top)))
    total = b.ReduceSum(weights, [3], keepdims=1)
    weights = b.Mul(weights, a["keep_prob"])
    # Without keys, onnxruntime leaves the MatMul result unwritten.
    out = b.Where(b.Equal(total, 0.0), 0.0, b.Div(b.MatMul(weights, v), total))
    out = b.Cast(b.Transpose(out, perm=[0, 2, 1, 3]), to=call.dtype("query_layer"))

    def size(x, axis):
        return b.Shape(x, start=axis, end=axis + 1)

    shape = b.Concat(
        b.Mul(size(q, 0), size(q, 2)), b.Mul(size(q, 1), b.Shape(v, start=3, end=4)), axis=0
    )
    return b.Reshape(out, shape, allowzero=1)


tolerate_rounded_weights(op)


@op.samples
def samples(make):
    eye = make.tensor([[[[1.0, 0.0], [0.0, 1.0]]]])
    value = make.tensor([[[[1.0, 2.0], [3.0, 4.0]]]])
    known = [[[1.75508, 2.75508], [2.24492, 3.24492]]]
    yield Sample(
        eye, eye, value, make(1, 1, 2, 2) * 0, 0.5, 1.0, id="catalogue",
        expect=known if make.dtype == "float32" else None,
    )  # fmt: skip
    q, k, v = make(2, 3, 21, 16), make(2, 3, 37, 16), make(2, 3, 37, 8)
    yield Sample(q, k, v, make(2, 1, 21, 37), 0.25, 1.0, id="mask_per_batch")
    yield Sample(q, k, v, make(1, 3, 1, 37), 0.25, 1.0, id="mask_per_head")
    hidden = make(2, 3, 21, 37).masked_fill(make.bools(2, 3, 21, 37), float("-inf"))
    yield Sample(q, k, v, hidden, 0.25, 1.0, id="masked")
    yield Sample(q, k, v, make(2, 1, 21, 37), 0.25, 0.0, id="all_dropped")
    yield Sample(
        q.transpose(2, 3), k.transpose(2, 3), v.transpose(2, 3), hidden, 0.25, 1.0,
        query_transpose=True, key_transpose=True, value_transpose=True, id="transposed",
    )  # fmt: skip
    yield Sample(
        q, k, v.transpose(2, 3), hidden, 0.25, 1.0, bmm_score_transpose_b=True, id="right_operand"
    )
    yield Sample(q[:, :, :0], k, v, make(2, 1, 1, 37), 0.25, 1.0, id="no_queries")
    yield Sample(q[:0], k[:0], v[:0], make(1, 1, 21, 37), 0.25, 1.0, id="no_batch")


def _wrong(match, id="", **changes):
    def sample(make):
        q, k, v, mask = make(2, 3, 5, 8), make(2, 3, 7, 8), make(2, 3, 7, 8), make(2, 1, 5, 7)
        given = {"query_layer": q, "key_layer": k, "value_layer": v, "attention_mask": mask}
        made = {n: make(*c) if isinstance(c, tuple) else c for n, c in changes.items()}
        return Sample(**{**given, "scale": 1.0, "keep_prob": 1.0, **made})

    op.errors(sample, match=rf"\[npu_fused_attention_score\] {match}", id=id or "_".join(changes))


_wrong("expected query_layer of shape .B, N, S, D., got", query_layer=(6, 5, 8))
_wrong("expected key_layer of shape .2, 3, Skv, 8., got", key_layer=(2, 3, 7, 4))
_wrong("expected value_layer of shape .2, 3, 7, D., got", value_layer=(2, 3, 6, 8))
_wrong("expected attention_mask of shape", attention_mask=(2, 1, 5, 6))
_wrong("expected keep_prob in .0, 1., got 2", keep_prob=2.0)
_wrong("expected bmm_score_transpose_a False, got True", bmm_score_transpose_a=True)
_wrong("expected at least one head, got 0", "no_heads", query_layer=(2, 0, 5, 8))
_wrong(
    "expected a head size from 1 to 768 in query_layer, got 769",
    "head_size",
    query_layer=(2, 3, 5, 769),
)
_wrong("expected key_layer of shape .B, N, S, D., got .2, 7, 24.", "key_rank", key_layer=(2, 7, 24))
_wrong(
    "expected value_layer of shape .B, N, S, D., got .2, 7, 24.",
    "value_rank",
    value_layer=(2, 7, 24),
)
_wrong("expected attention_mask of shape .* got .5, 7.", "mask_rank", attention_mask=(5, 7))
_wrong("expected keep_prob in .0, 1., got nan", "keep_prob_nan", keep_prob=float("nan"))
op.errors(
    lambda make: Sample(
        make(1, 1, 2, 8, dtype="float32"), make(1, 1, 2, 8, dtype="float16"),
        make(1, 1, 2, 8, dtype="float32"), make(1, 1, 2, 2, dtype="float32"), 1.0, 1.0,
    ),
    match=r"\[npu_fused_attention_score\] expected tensors of one dtype, got .*float32, .*float16",
    id="dtypes",
)  # fmt: skip
