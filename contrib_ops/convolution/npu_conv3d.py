"""A 3-D convolution of which every argument is given.

Source: torch_npu.npu_conv3d, npu_conv3d_backward.
"""

from ._convolution import convolve
from ._definitions import convolution, samples_of_three_axes

_RANKS = (5,)
op = convolution("npu_conv3d", _RANKS, grad="grad", has_out=True)


@op.function
def npu_conv3d(input, weight, bias, stride, padding, dilation, groups):
    """Return the cross-correlation of input and weight, plus bias, of input's dtype.

    input: [N, Ci, ..]; weight: [Co, Ci / groups, ..]; bias: [Co]; all of one dtype; stride,
    padding, dilation: a number for each axis.
    """
    return convolve("npu_conv3d", _RANKS, input, weight, bias, stride, padding, dilation, groups)


op.samples(samples_of_three_axes)
