"""A transposed 2-D convolution of which every argument is given.

Source: torch_npu.npu_conv_transpose2d, npu_conv_transpose2d_backward.
"""

from ._convolution import convolve_transposed
from ._definitions import transposed_convolution, transposed_samples_of_two_axes

_RANKS = (4,)
op = transposed_convolution("npu_conv_transpose2d", _RANKS)


@op.function
def npu_conv_transpose2d(input, weight, bias, padding, output_padding, stride, dilation, groups):
    """Return the transposed convolution of input and weight, plus bias, of input's dtype.

    input: [N, Ci, ..]; weight: [Ci, Co / groups, ..]; bias: [Co]; all of one dtype; a number for
    each axis in padding, output_padding, stride and dilation, in this order.
    """
    how = padding, output_padding, stride, dilation, groups
    return convolve_transposed("npu_conv_transpose2d", _RANKS, input, weight, bias, *how)


op.samples(transposed_samples_of_two_axes)
