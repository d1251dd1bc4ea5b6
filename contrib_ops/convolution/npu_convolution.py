"""A 2-D or 3-D convolution, by the rank of its input.

Source: torch_npu.npu_convolution, npu_convolution_backward.
"""

from onnxruntime_npu.opdef import FLOATS, Sample, composition

from ._convolution import convolve, gradients
from ._taps import convolution

_RANKS = (4, 5)
_ARGUMENTS = (
    "Tensor input, Tensor weight, Tensor? bias, int[] stride, int[] padding, int[] dilation,"
    " int groups"
)

op = composition(
    f"npu_convolution({_ARGUMENTS}) -> Tensor",
    dtypes=FLOATS,
    differentiable=True,
)


@op.function
def npu_convolution(input, weight, bias, stride, padding, dilation, groups):
    """Return the cross-correlation of input and weight, plus bias, of input's dtype.

    input: [N, Ci, ..]; weight: [Co, Ci / groups, ..]; bias: [Co]; all of one dtype; stride,
    padding, dilation: a number for each axis, or of 2-D four: top, bottom, left, right.
    """
    return convolve(
        "npu_convolution", _RANKS, input, weight, bias, stride, padding, dilation, groups
    )


@op.partner(
    "npu_convolution_backward(Tensor input, Tensor grad_output, Tensor weight, int[] stride,"
    " int[] padding, int[] dilation, int groups, bool[3] output_mask) -> (Tensor, Tensor, Tensor)"
)
def npu_convolution_backward(
    input, grad_output, weight, stride, padding, dilation, groups, output_mask
):
    """Return the gradients of input, weight and bias, None where output_mask is false."""
    how = stride, padding, dilation, groups, output_mask
    return gradients("npu_convolution_backward", _RANKS, input, grad_output, weight, *how)


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

    ones = make.tensor([[[[[1, 1], [1, 1]], [[1, 1], [1, 1]]]]])
    yield Sample(
        ones,
        ones,
        None,
        [1] * 3,
        [0] * 3,
        [1] * 3,
        1,
        id="catalogue_of_three_axes",
        expect=[[[[[[8]]]]]],
    )
    weight3 = make(4, 1, 2, 3, 2, scale=0.3)
    yield Sample(
        make(2, 2, 4, 5, 4), weight3, make(4), [1, 2, 1], [1, 0, 1], [1, 2, 1], 2, id="three_axes"
    )


op.errors(
    lambda make: Sample(make(2, 3), make(2, 3), None, [1, 1], [0, 0], [1, 1], 1),
    match=r"\[npu_convolution\] expected input and weight of rank 4 or 5, "
    r"got \[2, 3\] and \[2, 3\]",
    id="rank",
)
op.errors(
    lambda make: Sample(make(1, 3, 4, 4), make(4, 2, 2, 2), None, [1, 1], [0, 0], [1, 1], 1),
    match=r"\[npu_convolution\] expected channels of input that weight .* takes in 1 groups, 2",
    id="channels",
)
op.errors(
    lambda make: Sample(make(1, 2, 4, 4), make(4, 2, 2, 2), None, [0] * 2, [0, 0], [1, 1], 1),
    match=r"\[npu_convolution\] expected stride of 2 numbers >= 1, got \[0",
    id="stride",
)
op.errors(
    lambda make: Sample(make(1, 2, 2, 2), make(4, 2, 4, 4), None, [1, 1], [0, 0], [1, 1], 1),
    match=r"\[npu_convolution\] expected a kernel that fits the padded input",
    id="kernel",
)
