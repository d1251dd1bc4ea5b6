"""Convolutions as torch_npu spells them: checks, the standard operator, and its gradient."""

from onnxruntime_npu.opdef import FLOATS, check, check_dtype, torch


def _check_tensors(op, input, weight, bias, groups, channels_out, transposed):
    for name, tensor in (("input", input), ("weight", weight), ("bias", bias)):
        if tensor is not None:
            check_dtype(op, name, tensor, [*FLOATS, "float64"])
            check(
                tensor.dtype == input.dtype,
                f"[{op}] expected {name} of the dtype of input, {input.dtype}, got {tensor.dtype}",
            )
    expected = weight.shape[0] if transposed else weight.shape[1] * groups
    check(
        input.shape[1] == expected and weight.shape[0] % groups == 0,
        f"[{op}] expected channels of input that weight {list(weight.shape)} takes in {groups} "
        f"groups, {expected}, got input {list(input.shape)}",
    )
    check(
        all(size > 0 for size in weight.shape[2:]),
        f"[{op}] expected a kernel of positive sizes, got weight {list(weight.shape)}",
    )
    check(
        bias is None or list(bias.shape) == [channels_out],
        f"[{op}] expected bias of shape [{channels_out}], "
        f"got {None if bias is None else list(bias.shape)}",
    )


def check_arguments(op, ranks, input, weight, groups, transposed, **lists):
    """Refuse ranks, groups and lists of numbers that no convolution takes; return its axes."""
    check(
        input.dim() in ranks and weight.dim() == input.dim(),
        f"[{op}] expected input and weight of rank {' or '.join(str(rank) for rank in ranks)}, "
        f"got {list(input.shape)} and {list(weight.shape)}",
    )
    check(groups > 0, f"[{op}] expected groups > 0, got {groups}")
    axes = input.dim() - 2
    for name, numbers in lists.items():
        least = 0 if "padding" in name else 1
        lengths = (
            (axes, 2 * axes) if name == "padding" and axes == 2 and not transposed else (axes,)
        )
        check(
            len(numbers) in lengths and all(n >= least for n in numbers),
            f"[{op}] expected {name} of {' or '.join(str(n) for n in lengths)} numbers >= {least}, "
            f"got {list(numbers)}",
        )
    return axes


def _symmetric(input, padding, axes):
    """Return input and the padding of both ends; top, bottom, left, right is applied at once."""
    if len(padding) == axes:
        return input, list(padding)
    top, bottom, left, right = padding
    return torch.nn.functional.pad(input, [left, right, top, bottom]), [0] * axes


def convolve(op, ranks, input, weight, bias, stride, padding, dilation, groups):
    """Return the convolution, with float32 sums, of input's dtype."""
    lists = {"stride": stride, "padding": padding, "dilation": dilation}
    axes = check_arguments(op, ranks, input, weight, groups, False, **lists)
    _check_tensors(op, input, weight, bias, groups, weight.shape[0], False)
    padded, both = _symmetric(input, padding, axes)
    sizes = [
        (n + 2 * p - d * (k - 1) - 1) // s + 1
        for n, k, s, p, d in zip(
            padded.shape[2:], weight.shape[2:], stride, both, dilation, strict=True
        )
    ]
    check(
        all(size > 0 for size in sizes),
        f"[{op}] expected a kernel that fits the padded input, got input {list(input.shape)} and "
        f"weight {list(weight.shape)}",
    )
    no = [0] * axes
    return torch.ops.aten.convolution(
        padded, weight, bias, stride, both, dilation, False, no, groups
    )


def convolve_transposed(
    op, ranks, input, weight, bias, padding, output_padding, stride, dilation, groups
):
    """Return the transposed convolution, with float32 sums, of input's dtype."""
    lists = {
        "padding": padding,
        "output_padding": output_padding,
        "stride": stride,
        "dilation": dilation,
    }
    check_arguments(op, ranks, input, weight, groups, True, **lists)
    _check_tensors(op, input, weight, bias, groups, weight.shape[1] * groups, True)
    sizes = [
        (n - 1) * s - 2 * p + d * (k - 1) + more + 1
        for n, k, s, p, d, more in zip(
            input.shape[2:],
            weight.shape[2:],
            stride,
            padding,
            dilation,
            output_padding,
            strict=True,
        )
    ]
    check(
        all(size > 0 for size in sizes)
        and all(m < max(s, d) for m, s, d in zip(output_padding, stride, dilation, strict=True)),
        f"[{op}] expected a result with elements and output_padding below stride or dilation, "
        f"got sizes {sizes} and output_padding {list(output_padding)}",
    )
    return torch.ops.aten.convolution(
        input, weight, bias, stride, padding, dilation, True, output_padding, groups
    )


def gradients(
    op, ranks, input, grad, weight, stride, padding, dilation, groups, mask, output_padding=None
):
    """Return the gradients of input, weight and bias, None where mask is false.

    With output_padding, of the transposed convolution.
    """
    transposed = output_padding is not None
    lists = {"stride": stride, "padding": padding, "dilation": dilation}
    axes = check_arguments(op, ranks, input, weight, groups, transposed, **lists)
    padded, both = _symmetric(input, padding, axes)
    channels = weight.shape[1] * groups if transposed else weight.shape[0]
    of_input, of_weight, of_bias = torch.ops.aten.convolution_backward(
        grad,
        padded,
        weight,
        [channels],
        stride,
        both,
        dilation,
        transposed,
        output_padding or [0] * axes,
        groups,
        mask,
    )
    if of_input is not None and padded is not input:
        top, _, left, _ = padding
        of_input = of_input[..., top : top + input.shape[2], left : left + input.shape[3]]
    return of_input, of_weight, of_bias
