"""A transposed 2-D or 3-D convolution, by the rank of its input.

Source: torch_npu.npu_convolution_transpose, npu_convolution_transpose_backward.
"""

from onnxruntime_npu.opdef import FLOATS, Sample, composition

from ._convolution import convolve_transposed, gradients
from ._taps import transposed_convolution

_RANKS = (4, 5)

op = composition(
    "npu_convolution_transpose(Tensor input, Tensor weight, Tensor? bias, int[] padding,"
    " int[] output_padding, int[] stride, int[] dilation, int groups) -> Tensor",
    dtypes=FLOATS,
    differentiable=True,
)


@op.function
def npu_convolution_transpose(
    input, weight, bias, padding, output_padding, stride, dilation, groups
):
    """Return the transposed convolution of input and weight, plus bias, of input's dtype.

    input: [N, Ci, ..]; weight: [Ci, Co / groups, ..]; bias: [Co]; all of one dtype; a number for
    each axis in padding, output_padding, stride and dilation, in this order.
    """
    how = padding, output_padding, stride, dilation, groups
    return convolve_transposed("npu_convolution_transpose", _RANKS, input, weight, bias, *how)


@op.partner(
    "npu_convolution_transpose_backward(Tensor input, Tensor grad, Tensor weight, int[] padding,"
    " int[] output_padding, int[] stride, int[] dilation, int groups, bool[3] grad_input_mask)"
    " -> (Tensor, Tensor, Tensor)"
)
def npu_convolution_transpose_backward(
    input, grad, weight, padding, output_padding, stride, dilation, groups, grad_input_mask
):
    """Return the gradients of input, weight and bias, None where grad_input_mask is false."""
    how = stride, padding, dilation, groups, grad_input_mask, output_padding
    return gradients("npu_convolution_transpose_backward", _RANKS, input, grad, weight, *how)


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

    cube = make(2, 2, 2, 3, 2, scale=0.3)
    one = [1, 1, 1]
    yield Sample(
        make(1, 2, 3, 2, 3), cube, None, [0, 1, 0], [0] * 3, [2, 1, 1], one, 1, id="three_axes"
    )


op.errors(
    lambda make: Sample(make(2, 3), make(2, 3), None, [0, 0], [0, 0], [1, 1], [1, 1], 1),
    match=r"\[npu_convolution_transpose\] expected input and weight of rank 4 or 5, "
    r"got \[2, 3\] and \[2, 3\]",
    id="rank",
)
op.errors(
    lambda make: Sample(
        make(1, 2, 4, 4), make(2, 3, 2, 2), None, [0, 0], [2, 0], [2, 2], [1, 1], 1
    ),
    match=r"\[npu_convolution_transpose\] expected a result with elements and output_padding below "
    r"stride or dilation, got sizes \[10, 8\] and output_padding \[2, 0\]",
    id="output_padding",
)
op.errors(
    lambda make: Sample(
        make(1, 2, 4, 4), make(2, 3, 2, 2), make(2), [0, 0], [0, 0], [2, 2], [1, 1], 1
    ),
    match=r"\[npu_convolution_transpose\] expected bias of shape \[3\], got \[2\]",
    id="bias",
)
