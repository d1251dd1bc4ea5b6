"""Convolutions of any number of dimensions, their gradients and refused arguments."""

import pytest
import torch
import torch.nn.functional as F

pytestmark = pytest.mark.usefixtures("no_fallback")

CONVOLUTIONS = [
    # input, weight, stride, padding, dilation, groups, transposed, output padding
    ((2, 3, 9), (4, 3, 3), 1, 0, 1, 1, False, 0),
    ((2, 4, 9), (6, 2, 3), 2, 2, 2, 2, False, 0),
    ((2, 3, 8, 7), (5, 3, 3, 2), (2, 1), (1, 0), 1, 1, False, 0),
    ((1, 3, 16, 16), (8, 3, 4, 4), 4, 0, 1, 1, False, 0),  # patches
    ((2, 6, 7, 7), (6, 1, 3, 3), 1, "same", 1, 6, False, 0),  # depthwise
    ((2, 3, 5, 6, 4), (4, 3, 2, 3, 2), 1, 1, 1, 1, False, 0),
    ((2, 3, 6), (3, 4, 3), 2, 1, 1, 1, True, 1),
    ((2, 4, 5, 4), (4, 3, 3, 3), (2, 1), 1, (1, 2), 2, True, (1, 0)),
    # Padding of the output with room for another window, as the dilation allows.
    ((2, 3, 6), (3, 4, 3), 1, 1, 3, 1, True, 2),
    ((1, 2, 4, 4, 4), (2, 2, 2, 3, 2), (3, 2, 1), (1, 2, 0), (1, 3, 2), 1, True, (2, 2, 1)),
]


@pytest.mark.parametrize("case", CONVOLUTIONS, ids=lambda c: f"{c[0]}-{c[1]}-{c[6]}")
def test_convolution_and_gradients(case):
    shape, weight_shape, stride, padding, dilation, groups, transposed, output_padding = case
    rank = len(shape) - 2
    kind = f"conv{'_transpose' if transposed else ''}{rank}d"
    generator = torch.Generator().manual_seed(0)
    outputs = weight_shape[1] * groups if transposed else weight_shape[0]
    leaves = [torch.randn(s, generator=generator) for s in (shape, weight_shape, (outputs,))]
    options = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
    if transposed:
        options["output_padding"] = output_padding

    def run(device):
        x, weight, bias = (t.to(device).requires_grad_() for t in leaves)
        y = getattr(F, kind)(x, weight, bias, **options)
        (y * y.detach().cos()).sum().backward()
        return [t.cpu() for t in (y.detach(), x.grad, weight.grad, bias.grad)]

    for got, expected in zip(run("npu"), run("cpu"), strict=True):
        # Sums of up to a few hundred float32 products, in another order.
        torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_convolution_of_16_bit_floats(dtype):
    leaves = [torch.randn(s).to(dtype) for s in ((2, 3, 8, 8), (4, 3, 3, 3))]

    def run(device, dtype):
        x, weight = (t.to(device, dtype).requires_grad_() for t in leaves)
        y = F.conv2d(x, weight, padding=1)
        y.backward(torch.ones_like(y))
        return [t.float().cpu() for t in (y.detach(), x.grad, weight.grad)]

    for got, expected in zip(run("npu", dtype), run("cpu", torch.float32), strict=True):
        # One rounding of the result.
        torch.testing.assert_close(got, expected, rtol=2**-7, atol=2**-7)


@pytest.mark.no_values
def test_convolution_kernel_larger_than_input_is_refused():
    with pytest.raises(RuntimeError, match=r"[Kk]ernel"):
        F.conv1d(torch.ones(1, 1, 2, device="npu"), torch.ones(1, 1, 3, device="npu"))
    assert F.conv1d(torch.ones(0, 1, 4, device="npu"), torch.ones(2, 1, 3, device="npu")).shape == (
        0,
        2,
        2,
    )


@pytest.mark.parametrize("convolution", ["conv2d", "conv_transpose2d"])
def test_convolution_rounds_once_after_bias(convolution):
    function = getattr(torch.nn.functional, convolution)
    x, w, b = torch.randn(1, 4, 9, 9), torch.randn(4, 4, 3, 3), torch.randn(4) * 50
    x, w, b = x.half(), w.half(), b.half()
    expected = function(x.double(), w.double(), b.double()).half()
    assert (function(x.npu(), w.npu(), b.npu()).cpu() != expected).sum() <= 1
