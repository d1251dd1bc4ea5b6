"""Convolutions tap by tap, in float64: references that share nothing with the operators."""

from onnxruntime_npu.opdef import torch


def convolution(input, weight, bias, stride, padding, dilation, groups):
    """Sum shifted products, tap by tap, in float64."""
    x, w = input.double(), weight.double()
    if len(padding) > len(stride):
        top, bottom, left, right = padding
        x, padding = torch.nn.functional.pad(x, [left, right, top, bottom]), [0, 0]
    x = torch.nn.functional.pad(x, [p for n in reversed(padding) for p in (n, n)])
    sizes = [
        (n - d * (k - 1) - 1) // s + 1
        for n, k, s, d in zip(x.shape[2:], w.shape[2:], stride, dilation, strict=True)
    ]
    x, w = x.unflatten(1, (groups, -1)), w.unflatten(0, (groups, -1))
    y = 0
    for tap in torch.cartesian_prod(*(torch.arange(k) for k in w.shape[3:])).tolist():
        window = x
        for axis, (t, d, s, n) in enumerate(zip(tap, dilation, stride, sizes, strict=True)):
            window = window.narrow(axis + 3, t * d, (n - 1) * s + 1)
            window = window[(slice(None),) * (axis + 3) + (slice(None, None, s),)]
        y = y + torch.einsum("ngc...,gmc->ngm...", window, w[(..., *tap)])
    y = y.flatten(1, 2)
    return y if bias is None else y + bias.double().reshape(-1, *[1] * len(stride))


def transposed_convolution(input, weight, bias, padding, output_padding, stride, dilation, groups):
    """Add the products of each tap where it belongs, in float64."""
    x, w = input.double().unflatten(1, (groups, -1)), weight.double().unflatten(0, (groups, -1))
    whole = [
        (n - 1) * s + d * (k - 1) + 1 + more
        for n, k, s, d, more in zip(
            x.shape[3:], w.shape[3:], stride, dilation, output_padding, strict=True
        )
    ]
    y = x.new_zeros(x.shape[0], groups, w.shape[2], *whole)
    for tap in torch.cartesian_prod(*(torch.arange(k) for k in w.shape[3:])).tolist():
        places = tuple(
            slice(t * d, t * d + (n - 1) * s + 1, s)
            for t, d, s, n in zip(tap, dilation, stride, x.shape[3:], strict=True)
        )
        y[(..., *places)] += torch.einsum("ngc...,gcm->ngm...", x, w[(..., *tap)])
    inner = tuple(slice(p, n - p) for p, n in zip(padding, whole, strict=True))
    y = y[(..., *inner)].flatten(1, 2)
    return y if bias is None else y + bias.double().reshape(-1, *[1] * len(stride))
