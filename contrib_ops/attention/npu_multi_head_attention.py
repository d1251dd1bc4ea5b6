"""A whole attention block: projections, attention with additive mask, output projection.

Source: torch_npu.npu_multi_head_attention, deprecated upstream. Where torch_npu does not
specify the behaviour:

- dropout_prob is the probability to drop. Without dropout_mask bit n is set where word n of Philox
  4x32-10 with key seed is below (1 - dropout_prob) * 2^32; a torch call draws the seed from torch's
  generator. The second result holds the bits in use, which are all ones with dropout_prob 0.
- query_res is scaled by D^-0.5 with its bias, and rounded to the dtype before the scores are
  computed; attn_res and context are rounded before the matmuls that read them.
- attn_mask may also be broadcast over the batch, sizes may be any, and the dtype may be any float
  type.
- Only the first result is differentiable.
"""

from itertools import product

from onnxruntime_npu.opdef import FLOATS, NotPortable, Sample, check, npu_op, torch

from .._bits import bytes_of
from . import _dropout as dropout

INPUTS = (
    "query", "key", "value", "query_weight", "key_weight", "value_weight", "attn_mask",
    "out_proj_weight", "query_bias", "key_bias", "value_bias", "out_proj_bias",
)  # fmt: skip
RESULTS = ("y", "query_res", "key_res", "value_res", "attn_scores", "attn_res", "context")


def typings():
    """Return the result types; that of attn_scores depends on an attribute for 16-bit inputs."""
    for t in FLOATS:
        results = {n: t for n in RESULTS if n != "attn_scores" or t == "float32"}
        # In torch_npu's files an absent bias is an empty constant, possibly float32.
        for biases in product(dict.fromkeys((t, "float32")), repeat=4):
            yield {
                **dict.fromkeys(INPUTS, t),
                **dict(zip(INPUTS[8:], biases, strict=True)),
                **results,
            }


op = npu_op(
    "npu_multi_head_attention(Tensor query, Tensor key, Tensor value, Tensor query_weight, "
    "Tensor key_weight, Tensor value_weight, Tensor attn_mask, Tensor out_proj_weight, "
    "Tensor? query_bias, Tensor? key_bias, Tensor? value_bias, Tensor? out_proj_bias, "
    "Tensor? dropout_mask, int attn_head_num, int attn_dim_per_head, int src_len, int tgt_len, "
    "float dropout_prob, bool softmax_use_float) "
    "-> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
    onnx="NPUMultiHeadAttention",
    outputs=["y", "kept", *RESULTS[1:]],
    dtypes={
        **dict.fromkeys((*INPUTS, *RESULTS), FLOATS),
        "dropout_mask": ["uint8"],
        "kept": ["uint8"],
    },
    seeded=True,
    typings=typings(),
    not_portable="calls with dropout_prob > 0: ONNX draws no numbers that a seed fixes",
)


def require(condition, message):
    """Raise the operator's error unless the condition holds."""
    check(condition, f"[npu_multi_head_attention] {message}")


def random_bits(count, keep_prob, seed, device):
    """Return ceil(count / 8) bytes whose bits are 1 with the given probability."""
    number = torch.arange((count + 7) // 8 * 8, device=device).view(-1, 8)
    return bytes_of(dropout.factors(keep_prob, number, seed, 0) > 0)


@op.reference
def reference(
    query, key, value, query_weight, key_weight, value_weight, attn_mask, out_proj_weight,
    query_bias, key_bias, value_bias, out_proj_bias, dropout_mask, attn_head_num,
    attn_dim_per_head, src_len, tgt_len, dropout_prob, softmax_use_float, seed=0,
):  # fmt: skip
    """Return y, the bits that keep weights, and the intermediate results.

    With E = attn_head_num * attn_dim_per_head: query [B*tgt_len, E], key and value [B*src_len, E],
    weights [E, E], applied as x W^T, biases [E]; attn_mask [B or 1, N or 1, tgt_len, src_len],
    added to the scores; all of one dtype. dropout_mask: uint8, bit n % 8 of byte n // 8 keeps
    weight n of [B, N, tgt_len, src_len].
    Result: y [B*tgt_len, E]; the bits; query_res, key_res and value_res [B, N, S, D]; attn_scores,
    the softmax, [B, N, tgt_len, src_len], float32 with softmax_use_float; attn_res, the same after
    dropout; context, [B*tgt_len, E].
    """
    heads, size, dtype = attn_head_num, attn_dim_per_head, query.dtype
    require(heads >= 1, f"expected attn_head_num >= 1, got {heads}")
    require(size >= 1, f"expected attn_dim_per_head >= 1, got {size}")
    require(src_len >= 1, f"expected src_len >= 1, got {src_len}")
    require(tgt_len >= 1, f"expected tgt_len >= 1, got {tgt_len}")
    require(0 <= dropout_prob <= 1, f"expected dropout_prob in [0, 1], got {dropout_prob}")
    width = heads * size
    require(
        query.dim() == 2 and query.shape[0] % tgt_len == 0 and query.shape[1] == width,
        f"expected query of shape [B * {tgt_len}, {width}], got {list(query.shape)}",
    )
    batch = query.shape[0] // tgt_len

    def expect(name, x, shape):
        require(
            x.dtype == dtype and list(x.shape) == shape,
            f"expected {name} {dtype} of shape {shape}, got {x.dtype} {list(x.shape)}",
        )

    expect("key", key, [batch * src_len, width])
    expect("value", value, [batch * src_len, width])
    weights = (query_weight, key_weight, value_weight, out_proj_weight)
    biases = (query_bias, key_bias, value_bias, out_proj_bias)
    for name, w, b in zip(("query", "key", "value", "out_proj"), weights, biases, strict=True):
        expect(f"{name}_weight", w, [width, width])
        if b is not None:
            expect(f"{name}_bias", b, [width])
    shape = list(attn_mask.shape)
    require(
        attn_mask.dtype == dtype
        and len(shape) == 4
        and shape[0] in (1, batch)
        and shape[1] in (1, heads)
        and shape[2:] == [tgt_len, src_len],
        f"expected attn_mask {dtype} of shape [1 or {batch}, 1 or {heads}, {tgt_len}, {src_len}], "
        f"got {attn_mask.dtype} {shape}",
    )
    count = batch * heads * tgt_len * src_len
    if dropout_mask is None:
        dropout_mask = random_bits(count, 1 - dropout.single(dropout_prob), seed, query.device)
    require(
        dropout_mask.numel() >= (count + 7) // 8,
        f"expected dropout_mask uint8 with {(count + 7) // 8} bytes, "
        f"got {dropout_mask.dtype} {list(dropout_mask.shape)}",
    )
    kept = dropout_mask.flatten()[: (count + 7) // 8].clone()

    compute = torch.promote_types(dtype, torch.float32)

    def linear(x, w, b):
        y = x.to(compute) @ w.to(compute).t()
        return y if b is None else y + b.to(compute)

    def part(x, rows):
        return x.to(dtype).view(batch, rows, heads, size).transpose(1, 2).contiguous()

    query_res = part(linear(query, query_weight, query_bias) * size**-0.5, tgt_len)
    key_res = part(linear(key, key_weight, key_bias), src_len)
    value_res = part(linear(value, value_weight, value_bias), src_len)
    scores = query_res.to(compute) @ key_res.to(compute).transpose(2, 3)
    softmax = torch.softmax(scores + attn_mask.to(compute), -1)
    attn_scores = softmax if softmax_use_float else softmax.to(dtype)
    dropped = softmax * factors(kept, softmax, dropout_prob)
    attn_res = dropped.to(dtype)
    context = attn_res.to(compute) @ value_res.to(compute)
    context = context.to(dtype).transpose(1, 2).reshape(batch * tgt_len, width)
    y = linear(context, out_proj_weight, out_proj_bias).to(dtype)
    return y, kept, query_res, key_res, value_res, attn_scores, attn_res, context.contiguous()


def factors(kept, like, dropout_prob):
    """Return the factors of dropout for the weights."""
    if dropout_prob == 0:
        return 1.0
    number = torch.arange(like.numel(), device=like.device).view(like.shape)
    keep = (kept[number // 8] >> (number % 8)) & 1
    return keep.to(like.dtype) * (0.0 if dropout_prob == 1 else 1 / (1 - dropout_prob))


@op.backward(*INPUTS)
def backward(
    grad_y, query, key, value, query_weight, key_weight, value_weight, attn_mask, out_proj_weight,
    query_bias, key_bias, value_bias, out_proj_bias, dropout_prob, kept, query_res, key_res,
    value_res, attn_scores, attn_res, context, needs,
):  # fmt: skip
    """With P = attn_scores and g its gradient, that of the scores is P (g - sum(P g))."""
    dtype = query.dtype
    compute = torch.promote_types(dtype, torch.float32)
    q, k, v, weights = (x.to(compute) for x in (query_res, key_res, value_res, attn_res))
    p = attn_scores
    if p.dtype != compute:  # rounded: too inaccurate for the difference below
        p = torch.softmax(q @ k.transpose(2, 3) + attn_mask.to(compute), -1)
    batch, heads, rows, size = q.shape
    dy = grad_y.to(compute)
    d_context = (dy @ out_proj_weight.to(compute)).view(batch, rows, heads, size).transpose(1, 2)
    dp = d_context @ v.transpose(2, 3) * factors(kept, p, dropout_prob)
    d_scores = p * (dp - (p * dp).sum(-1, keepdim=True))

    grads = {"attn_mask": d_scores.sum_to_size(attn_mask.shape)}

    def through(name, d, x, w, b):
        if f"{name}_weight" in needs:
            grads[f"{name}_weight"] = d.t() @ x.to(compute)
        if b is not None:
            # Key's bias adds a constant to every score of a row, which does not change softmax.
            grads[f"{name}_bias"] = torch.zeros_like(b) if name == "key" else d.sum(0)
        if name in needs:
            grads[name] = d @ w.to(compute)

    def merge(d):
        return d.transpose(1, 2).reshape(-1, heads * size)

    through("out_proj", dy, context, out_proj_weight, out_proj_bias)
    through("query", merge(d_scores @ k) * size**-0.5, query, query_weight, query_bias)
    through("key", merge(d_scores.transpose(2, 3) @ q), key, key_weight, key_bias)
    through("value", merge(weights.transpose(2, 3) @ d_context), value, value_weight, value_bias)
    return tuple(grads[n].to(dtype) if n in grads and n in needs else None for n in INPUTS)


@op.function
def body(b, call, query, key, value, wq, wk, wv, mask, wo, bq, bk, bv, bo, dropout_mask):
    a = call.attrs
    if a["dropout_prob"] != 0:
        raise NotPortable(op.not_portable)
    heads, size, keys, rows = (
        a[n] for n in ("attn_head_num", "attn_dim_per_head", "src_len", "tgt_len")
    )
    dtype = call.dtype("query")

    def wide(x):
        return b.Cast(x, to="float32")

    def linear(x, w, bias):
        y = b.MatMul(wide(x), b.Transpose(wide(w), perm=[1, 0]))
        return y if bias is None else b.Add(y, wide(bias))

    batch = b.Div(b.Shape(query, start=0, end=1), rows)

    def part(x, length):
        shape = b.Concat(batch, b.const([length, heads, size], "int64"), axis=0)
        x = b.Reshape(b.Cast(x, to=dtype), shape, allowzero=1)
        return b.Cast(b.Transpose(wide(x), perm=[0, 2, 1, 3]), to=dtype)

    q = part(b.Mul(linear(query, wq, bq), size**-0.5), rows)
    k, v = part(linear(key, wk, bk), keys), part(linear(value, wv, bv), keys)
    scores = b.Add(b.MatMul(wide(q), b.Transpose(wide(k), perm=[0, 1, 3, 2])), wide(mask))
    softmax = b.Softmax(scores, axis=-1)
    attn_res = b.Cast(softmax, to=dtype)
    context = b.Transpose(b.MatMul(wide(attn_res), wide(v)), perm=[0, 2, 1, 3])
    context = b.Cast(b.Reshape(context, b.Shape(query), allowzero=1), to=dtype)
    y = b.Cast(linear(context, wo, bo), to=dtype)
    count = b.Div(b.Add(b.Mul(batch, heads * rows * keys), 7), 8)
    if dropout_mask is None:
        kept = b.Expand(b.const([255], "uint8"), count)
    else:
        kept = b.Slice(b.Reshape(dropout_mask, [-1]), [0], count, [0])
    attn_scores = softmax if a["softmax_use_float"] else b.Cast(softmax, to=dtype)
    return y, kept, q, k, v, attn_scores, attn_res, context


for name, limit in (("float16", 2e-3), ("bfloat16", 1.6e-2)):
    op.tolerance(
        name,
        rtol=limit,
        atol=limit,
        reason="a value in the middle of two of the dtype may be rounded either way before the "
        "next product reads it, and the result is rounded once more",
    )


@op.samples
def samples(make):
    def call(
        batch, heads, size, rows, keys, mask, bias=True, dropout_mask=None, prob=0.0, wide=True
    ):
        width = heads * size
        x = [make(batch * n, width) for n in (rows, keys, keys)]
        weights = [make(width, width, scale=width**-0.5) for _ in range(4)]
        biases = [make(width) if bias else None for _ in range(4)]
        return (
            *x, *weights[:3], mask, weights[3], *biases, dropout_mask, heads, size, keys, rows,
            prob, wide,
        )  # fmt: skip

    yield Sample(*call(2, 3, 8, 5, 7, make(2, 1, 5, 7)), id="cross")
    yield Sample(*call(1, 2, 16, 33, 33, make(1, 2, 33, 33), bias=False), id="no_bias")
    bits = make.ints((2 * 2 * 6 * 9 + 7) // 8, low=0, high=256, dtype="uint8")
    yield Sample(*call(2, 2, 8, 6, 9, make(1, 1, 6, 9), dropout_mask=bits), id="bits_unused")
    # For a bare node in a model, attn_scores is assumed to have query's dtype.
    wide = make.dtype == "float32"
    given = call(2, 2, 8, 6, 9, make(1, 1, 6, 9), dropout_mask=bits, prob=0.5, wide=wide)
    yield Sample(*given, id="dropout")
    yield Sample(*call(2, 2, 8, 5, 3, make(2, 2, 5, 3), wide=False), id="softmax_in_dtype")
    yield Sample(*call(0, 2, 8, 5, 3, make(1, 2, 5, 3)), id="no_batch")


def _wrong(match, **changes):
    def sample(make):
        shapes = {n: (16, 16) for n in INPUTS if n.endswith("weight")}
        shapes |= {"query": (10, 16), "key": (14, 16), "value": (14, 16), "attn_mask": (2, 1, 5, 7)}
        given = {"attn_head_num": 2, "attn_dim_per_head": 8, "src_len": 7, "tgt_len": 5}
        given |= {"dropout_prob": 0.0, "softmax_use_float": True, "dropout_mask": None}
        given |= dict.fromkeys(n for n in INPUTS if n.endswith("bias"))
        made = {n: make(*s) for n, s in {**shapes, **given, **changes}.items() if type(s) is tuple}
        return Sample(**{**given, **changes, **made})

    op.errors(sample, match=rf"\[npu_multi_head_attention\] {match}", id="_".join(changes))


_wrong("expected query of shape .B . 5, 16., got .11, 16.", query=(11, 16))
_wrong("expected key .* of shape .14, 16., got", key=(13, 16))
_wrong("expected key_weight .* of shape .16, 16., got", key_weight=(16, 8))
_wrong("expected out_proj_bias .* of shape .16., got", out_proj_bias=(8,))
_wrong("expected attn_mask .* of shape .1 or 2, 1 or 2, 5, 7., got", attn_mask=(3, 1, 5, 7))
_wrong("expected attn_head_num >= 1, got 0", attn_head_num=0)
_wrong("expected dropout_prob in .0, 1., got 1.5", dropout_prob=1.5)
_wrong("expected tgt_len >= 1, got 0", tgt_len=0)
