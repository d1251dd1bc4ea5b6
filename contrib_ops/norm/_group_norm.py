"""Semantics, function body and gradients that group norms with an activation share."""

import math

from onnxruntime_npu.opdef import check, torch


def normalised(op, group_argument, input, groups, weight, bias, eps):
    """Return (x - mean) * rstd * weight + bias like input, mean and rstd [N, groups], unrounded.

    weight and bias default to 1 and 0; errors for wrong shapes name the operator.
    """
    check(input.dim() >= 2, f"[{op}] expected input of rank >= 2, got {list(input.shape)}")
    n, c, *spatial = input.shape
    check(
        0 < groups <= max(c, 1) and c % groups == 0,
        f"[{op}] expected {group_argument} to be a positive divisor of the {c} channels, "
        f"got {groups}",
    )
    for name, t in (("weight", weight), ("bias", bias)):
        check(
            t is None or list(t.shape) == [c],
            f"[{op}] expected {name} of shape {[c]}, got {t is not None and list(t.shape)}",
        )
    compute = torch.promote_types(input.dtype, torch.float32)
    x = input.to(compute).reshape(n, groups, c // groups * math.prod(spatial))
    mean = x.mean(-1, keepdim=True)
    centered = x - mean
    rstd = torch.rsqrt(centered.square().mean(-1, keepdim=True) + eps)
    per_channel = [c, *[1 for _ in spatial]]
    g = (centered * rstd).reshape(input.shape)
    if weight is not None:
        g = g * weight.to(compute).reshape(per_channel)
    if bias is not None:
        g = g + bias.to(compute).reshape(per_channel)
    return g, mean.squeeze(-1), rstd.squeeze(-1)


def body_normalised(b, input, groups, weight, bias, eps):
    """Return the results of `normalised` in ONNX; the first one as [N, C, rest]."""
    x = b.Cast(input, to="float32")
    shape = b.Shape(x)
    channels = b.Slice(shape, [1], [2])
    spatial = b.ReduceProd(b.Slice(shape, [2], [2**62]), keepdims=1)
    per_group = b.Div(b.Mul(channels, spatial), groups)
    # Abs keeps onnxruntime from turning a plain slice into Reshape to [0, groups, -1], which
    # fails for N = 0.
    n = b.Abs(b.Slice(shape, [0], [1]))
    flat = b.Reshape(x, b.Concat(n, [groups], per_group, axis=0), allowzero=1)
    mean = b.ReduceMean(flat, [-1], keepdims=1)
    centered = b.Sub(flat, mean)
    variance = b.ReduceMean(b.Mul(centered, centered), [-1], keepdims=1)
    rstd = b.Reciprocal(b.Sqrt(b.Add(variance, eps)))
    # [N, C, rest] serves any rank.
    rank_3 = b.Concat(n, channels, spatial, axis=0)
    g = b.Reshape(b.Mul(centered, rstd), rank_3, allowzero=1)
    if weight is not None:
        g = b.Mul(g, b.Unsqueeze(b.Cast(weight, to="float32"), [-1]))
    if bias is not None:
        g = b.Add(g, b.Unsqueeze(b.Cast(bias, to="float32"), [-1]))
    return g, *(b.Reshape(s, [0, groups]) for s in (mean, rstd))


def swish_gradients(dy, input, groups, weight, bias, epsilon, scale, needs, *, statistics=None):
    """With n = (x - mean) rstd, c = scale, s = sigmoid(c g), dg = dy (s + c g s (1 - s)):

    dx = rstd (h - mean(h) - n mean(h n)) for h = dg weight; dweight = sum(dg n), dbias = sum(dg).
    Without statistics (mean, rstd) they are recomputed, because the outputs are rounded. Absent
    weight and bias are 1 and 0.
    """
    compute = torch.promote_types(input.dtype, torch.float32)
    per_group = [input.shape[0], groups, math.prod(input.shape[1:]) // groups]

    def per_channel(t):
        return t.to(compute).reshape(-1, *[1 for _ in input.shape[2:]])

    x = input.to(compute).reshape(per_group)
    if statistics is None:
        centered = x - x.mean(-1, keepdim=True)
        rstd = torch.rsqrt(centered.square().mean(-1, keepdim=True) + epsilon)
    else:
        mean, rstd = (t.to(compute)[..., None] for t in statistics)
        centered = x - mean
    normalized = centered * rstd
    n = normalized.reshape(input.shape)
    g = n if weight is None else n * per_channel(weight)
    if bias is not None:
        g = g + per_channel(bias)
    s = torch.sigmoid(scale * g)
    dg = dy.to(compute) * s * (1 + scale * g * (1 - s))
    dx = None
    if "input" in needs:
        h = (dg if weight is None else dg * per_channel(weight)).reshape(per_group)
        along = normalized * (h * normalized).mean(-1, keepdim=True)
        dx = (rstd * (h - h.mean(-1, keepdim=True) - along)).reshape(input.shape)
    others = [axis for axis in range(input.dim()) if axis != 1]
    dweight = (dg * n).sum(others) if "weight" in needs else None
    return dx, dweight, dg.sum(others) if "bias" in needs else None
