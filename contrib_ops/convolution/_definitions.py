"""What the definitions of convolutions share: schemas, gradients, samples and refusals."""

from onnxruntime_npu.opdef import FLOATS, Sample, composition

from . import _taps
from ._convolution import gradients

_ARGUMENTS = (
    "Tensor input, Tensor weight, Tensor? bias, int[] stride, int[] padding, int[] dilation,"
    " int groups"
)


def convolution(name, ranks, *, grad="grad_output", has_out=False):
    """Define a convolution but for its function and samples; ``grad`` is its gradient's name."""
    op = composition(
        f"{name}({_ARGUMENTS}) -> Tensor",
        out=f"{name}.out({_ARGUMENTS}, *, Tensor(a!) out) -> Tensor(a!)" if has_out else None,
        dtypes=FLOATS,
        differentiable=True,
    )
    op.reference(_taps.convolution)

    @op.partner(
        f"{name}_backward(Tensor input, Tensor {grad}, Tensor weight, int[] stride,"
        " int[] padding, int[] dilation, int groups, bool[3] output_mask)"
        " -> (Tensor, Tensor, Tensor)"
    )
    def backward(input, grad, weight, stride, padding, dilation, groups, output_mask):
        """Return the gradients of input, weight and bias, None where output_mask is false."""
        how = stride, padding, dilation, groups, output_mask
        return gradients(f"{name}_backward", ranks, input, grad, weight, *how)

    axes = ranks[0] - 2
    zeros, ones = [0] * axes, [1] * axes

    def refuse(id, message, input, weight, stride=ones):
        op.errors(
            lambda make: Sample(make(*input), make(*weight), None, stride, zeros, ones, 1),
            match=rf"\[{name}\] expected {message}",
            id=id,
        )

    refuse(
        "rank", rf"input and weight of rank {_or(ranks)}, got \[2, 3\] and \[2, 3\]", (2, 3), (2, 3)
    )
    four, small = (1, 2, *[4] * axes), (4, 2, *[2] * axes)
    message = "channels of input that weight .* takes in 1 groups, 2"
    refuse("channels", message, (1, 3, *[4] * axes), small)
    refuse("stride", rf"stride of {axes} numbers >= 1, got \[0", four, small, zeros)
    message = "a kernel that fits the padded input"
    refuse("kernel", message, (1, 2, *[2] * axes), (4, 2, *[4] * axes))
    return op


def transposed_convolution(name, ranks, *, grad="grad_output", mask="output_mask"):
    """Define a transposed convolution but for its function and samples."""
    op = composition(
        f"{name}(Tensor input, Tensor weight, Tensor? bias, int[] padding,"
        " int[] output_padding, int[] stride, int[] dilation, int groups) -> Tensor",
        dtypes=FLOATS,
        differentiable=True,
    )
    op.reference(_taps.transposed_convolution)

    @op.partner(
        f"{name}_backward(Tensor input, Tensor {grad}, Tensor weight, int[] padding,"
        f" int[] output_padding, int[] stride, int[] dilation, int groups, bool[3] {mask})"
        " -> (Tensor, Tensor, Tensor)"
    )
    def backward(input, grad, weight, padding, output_padding, stride, dilation, groups, mask):
        """Return the gradients of input, weight and bias, None where the mask is false."""
        how = stride, padding, dilation, groups, mask, output_padding
        return gradients(f"{name}_backward", ranks, input, grad, weight, *how)

    start = rf"\[{name}\] expected "
    zeros, ones, twos = [0, 0], [1, 1], [2, 2]
    op.errors(
        lambda make: Sample(make(2, 3), make(2, 3), None, zeros, zeros, ones, ones, 1),
        match=start + rf"input and weight of rank {_or(ranks)}, got \[2, 3\] and \[2, 3\]",
        id="rank",
    )
    op.errors(
        lambda make: Sample(make(1, 2, 4, 4), make(2, 3, 2, 2), None, zeros, [2, 0], twos, ones, 1),
        match=start + r"a result with elements and output_padding below "
        r"stride or dilation, got sizes \[10, 8\] and output_padding \[2, 0\]",
        id="output_padding",
    )
    op.errors(
        lambda make: Sample(
            make(1, 2, 4, 4), make(2, 3, 2, 2), make(2), zeros, zeros, twos, ones, 1
        ),
        match=start + r"bias of shape \[3\], got \[2\]",
        id="bias",
    )
    return op


def _or(ranks):
    return " or ".join(str(rank) for rank in ranks)


def samples_of_two_axes(make):
    """Yield convolutions of images."""
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


def samples_of_three_axes(make, known="catalogue"):
    """Yield convolutions of volumes; the first, ``known``, has published values."""
    ones, one = make.tensor([[[[[1, 1], [1, 1]], [[1, 1], [1, 1]]]]]), [1] * 3
    yield Sample(ones, ones, None, one, [0] * 3, one, 1, id=known, expect=[[[[[[8]]]]]])
    weight = make(4, 1, 2, 3, 2, scale=0.3)
    yield Sample(
        make(2, 2, 4, 5, 4), weight, make(4), [1, 2, 1], [1, 0, 1], [1, 2, 1], 2, id="three_axes"
    )


def transposed_samples_of_two_axes(make):
    """Yield transposed convolutions of images."""
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
