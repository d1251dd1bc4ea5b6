"""A transposed 2-D convolution of which every argument is given.

Source: torch_npu.npu_conv_transpose2d, npu_conv_transpose2d_backward.
"""

from onnxruntime_npu.opdef import FLOATS, Sample, composition

from ._convolution import convolve_transposed, gradients
from ._taps import transposed_convolution

_RANKS = (4,)

op = composition(
    "npu_conv_transpose2d(Tensor input, Tensor weight, Tensor? bias, int[] padding,"
    " int[] output_padding, int[] stride, int[] dilation, int groups) -> Tensor",
    dtypes=FLOATS,
    differentiable=True,
)


@op.function
def npu_conv_transpose2d(input, weight, bias, padding, output_padding, stride, dilation, groups):
    """Return the transposed convolution of input and weight, plus bias, of input's dtype.

    input: [N, Ci, ..]; weight: [Ci, Co / groups, ..]; bias: [Co]; all of one dtype; a number for
    each axis in padding, output_padding, stride and dilation, in this order.
    """
    how = padding, output_padding, stride, dilation, groups
    return convolve_transposed("npu_conv_transpose2d", _RANKS, input, weight, bias, *how)


@op.partner(
    "npu_conv_transpose2d_backward(Tensor input, Tensor grad_output, Tensor weight, int[] padding,"
    " int[] output_padding, int[] stride, int[] dilation, int groups, bool[3] output_mask)"
    " -> (Tensor, Tensor, Tensor)"
)
def npu_conv_transpose2d_backward(
    input, grad_output, weight, padding, output_padding, stride, dilation, groups, output_mask
):
    """Return the gradients of input, weight and bias, None where output_mask is false."""
    how = stride, padding, dilation, groups, output_mask, output_padding
    return gradients("npu_conv_transpose2d_backward", _RANKS, input, grad_output, weight, *how)


op.reference(transposed_convolution)


@op.samples
def samples(make):

    yield Sample(
        make.tensor([[[[1, 2], [3, 4]]]]),
        make.tensor([[[[1, 1], [1, 1]]]]),
        None,
        [0, 0],
        [0, 0],
        [2, 2],
        [1, 1],
        1,
        id="catalogue",
        expect=[[[[[1, 1, 2, 2], [1, 1, 2, 2], [3, 3, 4, 4], [3, 3, 4, 4]]]]],
    )
    weight = make(4, 3, 3, 2, scale=0.3)
    yield Sample(make(2, 4, 3, 4), weight, make(6), [1, 2], [1, 0], [2, 3], [2, 1], 2, id="groups")


op.errors(
    lambda make: Sample(make(2, 3), make(2, 3), None, [0, 0], [0, 0], [1, 1], [1, 1], 1),
    match=r"\[npu_conv_transpose2d\] expected input and weight of rank 4, "
    r"got \[2, 3\] and \[2, 3\]",
    id="rank",
)
op.errors(
    lambda make: Sample(
        make(1, 2, 4, 4), make(2, 3, 2, 2), None, [0, 0], [2, 0], [2, 2], [1, 1], 1
    ),
    match=r"\[npu_conv_transpose2d\] expected a result with elements and output_padding below "
    r"stride or dilation, got sizes \[10, 8\] and output_padding \[2, 0\]",
    id="output_padding",
)
op.errors(
    lambda make: Sample(
        make(1, 2, 4, 4), make(2, 3, 2, 2), make(2), [0, 0], [0, 0], [2, 2], [1, 1], 1
    ),
    match=r"\[npu_conv_transpose2d\] expected bias of shape \[3\], got \[2\]",
    id="bias",
)
