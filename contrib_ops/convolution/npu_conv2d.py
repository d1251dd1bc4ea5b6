"""A 2-D convolution of which every argument is given.

Source: torch_npu.npu_conv2d, npu_conv2d_backward.
"""

from onnxruntime_npu.opdef import FLOATS, Sample, composition

from ._convolution import convolve, gradients
from ._taps import convolution

_RANKS = (4,)
_ARGUMENTS = (
    "Tensor input, Tensor weight, Tensor? bias, int[] stride, int[] padding, int[] dilation,"
    " int groups"
)

op = composition(
    f"npu_conv2d({_ARGUMENTS}) -> Tensor",
    out=f"npu_conv2d.out({_ARGUMENTS}, *, Tensor(a!) out) -> Tensor(a!)",
    dtypes=FLOATS,
    differentiable=True,
)


@op.function
def npu_conv2d(input, weight, bias, stride, padding, dilation, groups):
    """Return the cross-correlation of input and weight, plus bias, of input's dtype.

    input: [N, Ci, ..]; weight: [Co, Ci / groups, ..]; bias: [Co]; all of one dtype; stride,
    padding, dilation: a number for each axis, or of 2-D four: top, bottom, left, right.
    """
    return convolve("npu_conv2d", _RANKS, input, weight, bias, stride, padding, dilation, groups)


@op.partner(
    "npu_conv2d_backward(Tensor input, Tensor grad_output, Tensor weight, int[] stride,"
    " int[] padding, int[] dilation, int groups, bool[3] output_mask) -> (Tensor, Tensor, Tensor)"
)
def npu_conv2d_backward(input, grad_output, weight, stride, padding, dilation, groups, output_mask):
    """Return the gradients of input, weight and bias, None where output_mask is false."""
    how = stride, padding, dilation, groups, output_mask
    return gradients("npu_conv2d_backward", _RANKS, input, grad_output, weight, *how)


op.reference(convolution)


@op.samples
def samples(make):

    yield Sample(
        make.tensor([[[[1, 2, 3], [4, 5, 6], [7, 8, 9]]]]),
        make.tensor([[[[1, 1], [1, 1]]]]),
        make.tensor([0.5]),
        [1, 1],
        [0, 0],
        [1, 1],
        1,
        id="catalogue",
        expect=[[[[[12.5, 16.5], [24.5, 28.5]]]]],
    )
    weight = make(6, 2, 3, 2, scale=0.3)
    yield Sample(make(2, 4, 7, 6), weight, make(6), [2, 1], [1, 2], [1, 2], 2, id="groups")

    yield Sample(
        make(1, 2, 5, 6), weight, None, [1, 2], [0, 1, 2, 0], [2, 1], 1, id="four_paddings"
    )


op.errors(
    lambda make: Sample(make(2, 3), make(2, 3), None, [1, 1], [0, 0], [1, 1], 1),
    match=r"\[npu_conv2d\] expected input and weight of rank 4, got \[2, 3\] and \[2, 3\]",
    id="rank",
)
op.errors(
    lambda make: Sample(make(1, 3, 4, 4), make(4, 2, 2, 2), None, [1, 1], [0, 0], [1, 1], 1),
    match=r"\[npu_conv2d\] expected channels of input that weight .* takes in 1 groups, 2",
    id="channels",
)
op.errors(
    lambda make: Sample(make(1, 2, 4, 4), make(4, 2, 2, 2), None, [0] * 2, [0, 0], [1, 1], 1),
    match=r"\[npu_conv2d\] expected stride of 2 numbers >= 1, got \[0",
    id="stride",
)
op.errors(
    lambda make: Sample(make(1, 2, 2, 2), make(4, 2, 4, 4), None, [1, 1], [0, 0], [1, 1], 1),
    match=r"\[npu_conv2d\] expected a kernel that fits the padded input",
    id="kernel",
)
