"""The matmul of attention weights with values that skips masked pairs."""

from __future__ import annotations

from onnxruntime_npu.opdef import torch


def masked_product(weights, masked, values):
    """Return weights @ values; a masked pair contributes nothing, even if the value is NaN.

    weights: [.., Sq, Skv], 0 where masked; masked: bool that broadcasts to it; values [.., Skv, D].
    An unmasked infinity or NaN propagates to the sum, whatever its weight.
    """
    seen = (~masked).broadcast_to(weights.shape).to(weights.dtype)
    infinity = torch.tensor(float("inf"), dtype=values.dtype, device=values.device)
    nan = values.isnan()
    up, down = (
        torch.where(seen @ (nan | (values == end)).to(values.dtype) > 0, end, 0.0)
        for end in (infinity, -infinity)
    )
    return weights @ values.masked_fill(~values.isfinite(), 0.0) + (up + down)
