"""A transposed 2-D or 3-D convolution, by the rank of its input.

Source: torch_npu.npu_convolution_transpose, npu_convolution_transpose_backward.
"""

from onnxruntime_npu.opdef import Sample

from ._convolution import convolve_transposed
from ._definitions import transposed_convolution, transposed_samples_of_two_axes

_RANKS = (4, 5)
op = transposed_convolution(
    "npu_convolution_transpose", _RANKS, grad="grad", mask="grad_input_mask"
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


@op.samples
def samples(make):
    yield from transposed_samples_of_two_axes(make)
    cube, one = make(2, 2, 2, 3, 2, scale=0.3), [1, 1, 1]
    yield Sample(
        make(1, 2, 3, 2, 3), cube, None, [0, 1, 0], [0] * 3, [2, 1, 1], one, 1, id="three_axes"
    )
