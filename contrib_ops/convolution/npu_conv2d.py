"""A 2-D convolution of which every argument is given.

Source: torch_npu.npu_conv2d, npu_conv2d_backward.
"""

from onnxruntime_npu.opdef import Sample

from ._convolution import convolve
from ._definitions import convolution, samples_of_two_axes

_RANKS = (4,)
op = convolution("npu_conv2d", _RANKS, has_out=True)


@op.function
def npu_conv2d(input, weight, bias, stride, padding, dilation, groups):
    """Return the cross-correlation of input and weight, plus bias, of input's dtype.

    input: [N, Ci, ..]; weight: [Co, Ci / groups, ..]; bias: [Co]; all of one dtype; stride,
    padding, dilation: a number for each axis, or of 2-D four: top, bottom, left, right.
    """
    return convolve("npu_conv2d", _RANKS, input, weight, bias, stride, padding, dilation, groups)


@op.samples
def samples(make):
    yield from samples_of_two_axes(make)
    weight = make(6, 2, 3, 2, scale=0.3)
    yield Sample(
        make(1, 2, 5, 6), weight, None, [1, 2], [0, 1, 2, 0], [2, 1], 1, id="four_paddings"
    )
