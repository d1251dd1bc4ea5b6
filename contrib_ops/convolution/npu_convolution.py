"""A 2-D or 3-D convolution, by the rank of its input.

Source: torch_npu.npu_convolution, npu_convolution_backward.
"""

from ._convolution import convolve
from ._definitions import convolution, samples_of_three_axes, samples_of_two_axes

_RANKS = (4, 5)
op = convolution("npu_convolution", _RANKS)


@op.function
def npu_convolution(input, weight, bias, stride, padding, dilation, groups):
    """Return the cross-correlation of input and weight, plus bias, of input's dtype.

    input: [N, Ci, ..]; weight: [Co, Ci / groups, ..]; bias: [Co]; all of one dtype; stride,
    padding, dilation: a number for each axis, or of 2-D four: top, bottom, left, right.
    """
    return convolve(
        "npu_convolution", _RANKS, input, weight, bias, stride, padding, dilation, groups
    )


@op.samples
def samples(make):
    yield from samples_of_two_axes(make)
    yield from samples_of_three_axes(make, "catalogue_of_three_axes")
