"""A 3-D convolution of which every argument is given.

Source: torch_npu.npu_conv3d, npu_conv3d_backward.
"""

from onnxruntime_npu.opdef import FLOATS, Sample, composition

from ._convolution import convolve, gradients
from ._taps import convolution

_RANKS = (5,)
_ARGUMENTS = (
    "Tensor input, Tensor weight, Tensor? bias, int[] stride, int[] padding, int[] dilation,"
    " int groups"
)

op = composition(
    f"npu_conv3d({_ARGUMENTS}) -> Tensor",
    out=f"npu_conv3d.out({_ARGUMENTS}, *, Tensor(a!) out) -> Tensor(a!)",
    dtypes=FLOATS,
    differentiable=True,
)


@op.function
def npu_conv3d(input, weight, bias, stride, padding, dilation, groups):
    """Return the cross-correlation of input and weight, plus bias, of input's dtype.

    input: [N, Ci, ..]; weight: [Co, Ci / groups, ..]; bias: [Co]; all of one dtype; stride,
    padding, dilation: a number for each axis.
    """
    return convolve("npu_conv3d", _RANKS, input, weight, bias, stride, padding, dilation, groups)


@op.partner(
    "npu_conv3d_backward(Tensor input, Tensor grad, Tensor weight, int[] stride,"
    " int[] padding, int[] dilation, int groups, bool[3] output_mask) -> (Tensor, Tensor, Tensor)"
)
def npu_conv3d_backward(input, grad, weight, stride, padding, dilation, groups, output_mask):
    """Return the gradients of input, weight and bias, None where output_mask is false."""
    how = stride, padding, dilation, groups, output_mask
    return gradients("npu_conv3d_backward", _RANKS, input, grad, weight, *how)


op.reference(convolution)


@op.samples
def samples(make):

    ones = make.tensor([[[[[1, 1], [1, 1]], [[1, 1], [1, 1]]]]])
    yield Sample(
        ones, ones, None, [1] * 3, [0] * 3, [1] * 3, 1, id="catalogue", expect=[[[[[[8]]]]]]
    )
    weight3 = make(4, 1, 2, 3, 2, scale=0.3)
    yield Sample(
        make(2, 2, 4, 5, 4), weight3, make(4), [1, 2, 1], [1, 0, 1], [1, 2, 1], 2, id="three_axes"
    )


op.errors(
    lambda make: Sample(make(2, 3), make(2, 3), None, [1, 1, 1], [0, 0, 0], [1, 1, 1], 1),
    match=r"\[npu_conv3d\] expected input and weight of rank 5, got \[2, 3\] and \[2, 3\]",
    id="rank",
)
op.errors(
    lambda make: Sample(
        make(1, 3, 4, 4, 4), make(4, 2, 2, 2, 2), None, [1, 1, 1], [0, 0, 0], [1, 1, 1], 1
    ),
    match=r"\[npu_conv3d\] expected channels of input that weight .* takes in 1 groups, 2",
    id="channels",
)
op.errors(
    lambda make: Sample(
        make(1, 2, 4, 4, 4), make(4, 2, 2, 2, 2), None, [0] * 3, [0, 0, 0], [1, 1, 1], 1
    ),
    match=r"\[npu_conv3d\] expected stride of 3 numbers >= 1, got \[0",
    id="stride",
)
op.errors(
    lambda make: Sample(
        make(1, 2, 2, 2, 2), make(4, 2, 4, 4, 4), None, [1, 1, 1], [0, 0, 0], [1, 1, 1], 1
    ),
    match=r"\[npu_conv3d\] expected a kernel that fits the padded input",
    id="kernel",
)
