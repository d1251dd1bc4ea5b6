"""Training attention and its gradients, in plain torch."""

from onnxruntime_npu.opdef import torch

from .._masked_product import masked_product
from .problem import WIDTH, Problem

# sic: the schema's spelling
ARGUMENTS = "int pre_tockens=2147483647, int next_tockens=2147483647, int inner_precise=0, "


def attend(name, query, key, value, dropout_mask=None, seed=0, offset=0, scale=1.0, **others):
    """Return the forward operator's tensor results; the arguments are the operator's."""
    p = Problem(name, query, key, value, others)
    sink = others["sink"]
    parts = []
    for b in range(len(p.spans)):
        q, k, v = p.block(b)
        scores, masked = p.scores(b, q, k, scale)
        shape = (*scores.shape[:3], 1)
        top = scores.new_full(shape, float("-inf"))
        if scores.shape[3]:
            top = scores.amax(-1, keepdim=True)
        if sink is not None:
            single = sink.to(p.compute).view(1, -1, 1, 1)
            top = torch.maximum(top, single)
        base = top.masked_fill(top == float("-inf"), 0.0)
        weights = torch.exp(scores - base)
        total = weights.sum(-1, keepdim=True)
        if sink is not None:
            total = total + torch.exp(single - base)
        weights = weights / total.masked_fill(total == 0, 1.0)
        weights = weights * p.dropout(b, seed, offset, dropout_mask)
        out = masked_product(weights, masked, v)
        parts.append((out, top, total))
    if not parts:  # TND without sequences or rows
        empty = p.q.new_zeros(1, p.heads, 0, 1)
        parts.append((p.q.new_zeros(1, p.heads, 0, p.v.shape[3]), empty, empty))
    out, top, total = (torch.cat(x, 2) for x in zip(*parts, strict=True))
    out = p.together(out).to(query.dtype)
    return out, p.statistics(top), p.statistics(total), query.new_zeros(0)


def gradients(
    name, query, key, value, dy, softmax_max=None, softmax_sum=None, softmax_in=None,
    attention_in=None, scale_value=1.0, seed=0, offset=0, numels=0, bits=None, **others,
):  # fmt: skip
    """Return the backward operator's results; the arguments are the operator's.

    bits: the forward call's dropout_mask, for which the operator has no argument.
    """
    p = Problem(name, query, key, value, others)
    shape = list(p.together(p.q.new_empty(p.batch, p.heads, p.rows, p.v.shape[3])).shape)
    for name, x in (("dy", dy), ("attention_in", attention_in)):
        p.require(
            x is not None and list(x.shape) == shape and x.dtype == query.dtype,
            f"expected {name} {query.dtype} of shape {shape}, "
            f"got {'none' if x is None else f'{x.dtype} {list(x.shape)}'}",
        )
    shape = [p.rows, p.heads, WIDTH] if p.packed else [p.batch, p.heads, p.rows, WIDTH]
    for name, x in (("softmax_max", softmax_max), ("softmax_sum", softmax_sum)):
        p.require(
            x is not None and list(x.shape) == shape,
            f"expected {name} float32 of shape {shape}, "
            f"got {'none' if x is None else f'{x.dtype} {list(x.shape)}'}",
        )
    p.require(
        p.a["keep_prob"] in (0, 1) or seed != 0 or bits is not None,
        "expected the seed that the forward call returned with keep_prob < 1, got 0",
    )

    def rows_of(x):
        x = x[..., :1].to(p.compute)
        return x.transpose(0, 1)[None] if p.packed else x

    top, total = rows_of(softmax_max), rows_of(softmax_sum)
    d_out = p.apart("dy", dy, p.heads).to(p.compute)
    products = (d_out * p.apart("attention_in", attention_in, p.heads)).sum(-1, keepdim=True)
    sink, pse = others["sink"], others["pse"]
    dq, dk, dv = torch.zeros_like(p.q), torch.zeros_like(p.k), torch.zeros_like(p.v)
    group = p.heads // p.kv_heads
    d_pse = query.new_zeros(0) if pse is None else torch.zeros_like(pse, dtype=p.compute)

    for b, (row, rows, first, keys) in enumerate(p.spans):
        q, k, v = p.block(b)
        here, there = slice(row, row + rows), slice(first, first + keys)
        maximum, divisor = top[:, :, here], total[:, :, here]
        scores, masked = p.scores(b, q, k, scale_value)
        nothing = masked | (maximum == float("-inf")) | (divisor == 0)
        weights = (torch.exp(scores - maximum) / divisor).masked_fill(nothing, 0.0)
        factors = p.dropout(b, seed, offset, bits)
        d_here = d_out[:, :, here]
        d_weights = d_here @ v.transpose(2, 3) * factors
        d_scores = weights * (d_weights - products[:, :, here]) * scale_value
        d_scores = d_scores.masked_fill(nothing, 0.0)
        # NaN and infinity of a pair are already in d_scores.
        q, k = (x.masked_fill(~x.isfinite(), 0.0) for x in (q, k))
        dq[:, :, here] = d_scores @ k
        kept = (weights * factors).transpose(2, 3)
        for to, part in (
            (dk, d_scores.transpose(2, 3) @ q),
            (dv, masked_product(kept, kept == 0, d_here)),
        ):
            to[:, :, there] = part.unflatten(1, (p.kv_heads, group)).sum(2)
        if pse is not None:
            p.add_bias_gradient(b, d_scores, d_pse)
    d_sink = query.new_zeros(0, dtype=torch.float32)
    if sink is not None:
        share = torch.exp(sink.to(p.compute).view(1, -1, 1, 1) - top) / total
        share = share.masked_fill((top == float("-inf")) | (total == 0), 0.0)
        d_sink = -(share * products).sum((0, 2, 3)).to(sink.dtype)
    return (
        p.together(dq).to(query.dtype),
        p.together(dk).to(key.dtype),
        p.together(dv).to(value.dtype),
        d_pse.to(query.dtype),
        d_sink,
    )
