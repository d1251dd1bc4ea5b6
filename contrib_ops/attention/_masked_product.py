"""The product of attention weights with values, from which masked pairs are left out."""

from __future__ import annotations

from onnxruntime_npu.opdef import torch


def masked_product(weights, masked, values):
    """Return weights @ values; a masked pair adds nothing, not even where the value is NaN.

    weights: [.., Sq, Skv], 0 where masked; masked: bool that broadcasts to it; values [.., Skv, D].
    An infinity or NaN that is not masked makes the sum one, whatever its weight.
    """
    seen = (~masked).broadcast_to(weights.shape).to(weights.dtype)
    infinity = torch.tensor(float("inf"), dtype=values.dtype, device=values.device)
    nan = values.isnan()
    up, down = (
        torch.where(seen @ (nan | (values == end)).to(values.dtype) > 0, end, 0.0)
        for end in (infinity, -infinity)
    )
    return weights @ values.masked_fill(~values.isfinite(), 0.0) + (up + down)
