"""The gradients that the group normalisations with an activation share."""

import math

from onnxruntime_npu.opdef import torch


def swish_gradients(dy, input, groups, weight, bias, epsilon, scale, needs):
    """With n = (x - mean) rstd, c = scale, s = sigmoid(c g), dg = dy (s + c g s (1 - s)):

    dx = rstd (h - mean(h) - n mean(h n)) for h = dg weight; dweight = sum(dg n), dbias = sum(dg).
    The statistics are computed anew, because the outputs are rounded. Without weight or bias they
    are 1 and 0.
    """
    compute = torch.promote_types(input.dtype, torch.float32)
    per_group = [input.shape[0], groups, math.prod(input.shape[1:]) // groups]

    def per_channel(t):
        return t.to(compute).reshape(-1, *[1 for _ in input.shape[2:]])

    x = input.to(compute).reshape(per_group)
    centered = x - x.mean(-1, keepdim=True)
    rstd = torch.rsqrt(centered.square().mean(-1, keepdim=True) + epsilon)
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
