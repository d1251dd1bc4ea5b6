"""Modulated deformable convolution (DCNv2), whose offsets bring the mask along.

Source: torch_npu.npu_deformable_conv2d, npu_deformable_conv2dbk.
"""

import math

from onnxruntime_npu.opdef import Sample, check, npu_op, torch, wide

_NAME = "npu_deformable_conv2d"
_FLOATS = ["float32", "float16"]
_NUMBERS = (
    "int[2] kernel_size, int[] stride, int[] padding, int[4] dilation=[1,1,1,1], int groups=1,"
    " int deformable_groups=1, bool modulated=True"
)

op = npu_op(
    f"{_NAME}(Tensor input, Tensor weight, Tensor offset, Tensor? bias, {_NUMBERS})"
    " -> (Tensor, Tensor)",
    onnx="NPUDeformableConv2d",
    outputs=["y", "deformable_offsets"],
    dtypes={
        **{name: _FLOATS for name in ("input", "weight", "offset", "bias", "y")},
        "deformable_offsets": ["float32"],
    },
    attribute_names={
        "kernel_size": "kernel_sizes",
        "stride": "strides",
        "padding": "paddings",
        "dilation": "dilations",
    },  # as torch_npu's exporter has them
    not_portable="ONNX's DeformConv does not return the sampled input",
)


def _check(
    input,
    weight,
    offset,
    bias,
    kernel_size,
    stride,
    padding,
    dilation,
    groups,
    deformable_groups,
    modulated,
):
    """Refuse what no such convolution takes; return the size of the result."""
    tensors = {"input": input, "weight": weight, "offset": offset}
    for name, tensor in tensors.items():
        check(
            tensor.dim() == 4,
            f"[{_NAME}] expected {name} of rank 4, got {list(tensor.shape)}",
        )
    for name, numbers, length, least in (
        ("kernel_size", kernel_size, 2, 1),
        ("stride", stride, 4, 1),
        ("padding", padding, 4, 0),
        ("dilation", dilation, 4, 1),
    ):
        check(
            len(numbers) == length and all(least <= n < 2**31 for n in numbers),
            f"[{_NAME}] expected {name} of {length} int32 numbers >= {least}, got {list(numbers)}",
        )
    check(bool(modulated), f"[{_NAME}] expected modulated True, got False")
    channels, (kh, kw) = input.shape[1], kernel_size
    for name, count in (("groups", groups), ("deformable_groups", deformable_groups)):
        check(
            count > 0 and channels % count == 0,
            f"[{_NAME}] expected {name} to divide the {channels} channels, got {count}",
        )
    check(
        list(weight.shape[1:]) == [channels // groups, kh, kw] and weight.shape[0] % groups == 0,
        f"[{_NAME}] expected weight [Co, {channels // groups}, {kh}, {kw}] with Co a multiple of "
        f"groups {groups}, got {list(weight.shape)}",
    )
    top, bottom, left, right = padding
    height = (input.shape[2] + top + bottom - ((kh - 1) * dilation[2] + 1)) // stride[2] + 1
    width = (input.shape[3] + left + right - ((kw - 1) * dilation[3] + 1)) // stride[3] + 1
    check(
        height > 0 and width > 0,
        f"[{_NAME}] expected a kernel that fits the padded input, got a result of {height} by "
        f"{width}",
    )
    expected = [input.shape[0], 3 * deformable_groups * kh * kw, height, width]
    check(
        list(offset.shape) == expected,
        f"[{_NAME}] expected offset of shape {expected}, got {list(offset.shape)}",
    )
    check(
        bias is None or list(bias.shape) == [weight.shape[0]],
        f"[{_NAME}] expected bias of shape {[weight.shape[0]]}, "
        f"got {[] if bias is None else list(bias.shape)}",
    )
    for name, tensor in {**tensors, "bias": bias}.items():
        check(
            tensor is None or tensor.dtype == input.dtype,
            f"[{_NAME}] expected {name} of the dtype of input, {input.dtype}, "
            f"got {None if tensor is None else tensor.dtype}",
        )
    return height, width


def _sampled(input, offset, kernel_size, stride, padding, dilation, deformable_groups):
    """Return the masked samples [N, dg, C / dg, kh, kw, Ho, Wo]."""
    (kh, kw), (batch, channels, rows, columns) = kernel_size, input.shape
    height, width = offset.shape[2:]
    dx, dy, mask = offset.reshape(batch, 3, deformable_groups, kh, kw, height, width).unbind(1)

    def places(count, step, low, taps, gap, tap_axis, axis):
        base = torch.arange(count, device=input.device) * step - low
        tap = torch.arange(taps, device=input.device) * gap
        shape, tap_shape = [1] * 6, [1] * 6
        shape[axis], tap_shape[tap_axis] = count, taps
        return base.reshape(shape) + tap.reshape(tap_shape)

    y = places(height, stride[2], padding[0], kh, dilation[2], 2, 4) + dy
    x = places(width, stride[3], padding[2], kw, dilation[3], 3, 5) + dx
    flat = input.reshape(batch, deformable_groups, channels // deformable_groups, rows * columns)
    total = 0
    for above in (0, 1):
        for right in (0, 1):
            low_y, low_x = y.detach().floor(), x.detach().floor()
            part_y, part_x = y - low_y, x - low_x
            at_y, at_x = low_y + above, low_x + right
            inside = (at_y >= 0) & (at_y < rows) & (at_x >= 0) & (at_x < columns)
            index = torch.where(inside, at_y, 0) * columns + torch.where(inside, at_x, 0)
            index = index.to(torch.int64).flatten(2)[:, :, None].expand(-1, -1, flat.shape[2], -1)
            values = flat.gather(3, index).unflatten(3, y.shape[2:])
            weight = (part_y if above else 1 - part_y) * (part_x if right else 1 - part_x)
            here = inside[:, :, None]
            total = total + torch.where(here, values * weight[:, :, None], 0.0)
    nowhere = (y.isnan() | x.isnan())[:, :, None]
    return torch.where(nowhere, math.nan, total) * mask[:, :, None]


def _convolve(input, weight, offset, bias, kernel_size, stride, padding, dilation, groups, dg):
    """Return the result and the samples of checked float32 or float64 arguments."""
    kh, kw = kernel_size
    batch, channels = input.shape[:2]
    height, width = offset.shape[2:]
    if 0 in input.shape:  # nothing to gather from
        zero = input.sum() + weight.sum() * 0 + offset.sum() * 0
        samples = input.new_zeros(batch, channels, kh, kw, height, width) + zero
    else:
        samples = _sampled(input, offset, kernel_size, stride, padding, dilation, dg).flatten(1, 2)
    spread = samples.permute(0, 1, 4, 2, 5, 3).reshape(batch, channels, height * kh, width * kw)
    taps = samples.unflatten(1, (groups, channels // groups))
    filters = weight.unflatten(0, (groups, weight.shape[0] // groups))
    y = torch.einsum("ngcijhw,gmcij->ngmhw", taps, filters).flatten(1, 2)
    return (y if bias is None else y + bias[:, None, None]), spread


@op.reference
def reference(
    input,
    weight,
    offset,
    bias,
    kernel_size,
    stride,
    padding,
    dilation,
    groups=1,
    deformable_groups=1,
    modulated=True,
):
    """Return the convolution [N, Co, Ho, Wo] and the samples [N, C, Ho kh, Wo kw], as float32.

    input: [N, C, H, W]; weight: [Co, C / groups, kh, kw]; offset: [N, 3 dg kh kw, Ho, Wo], dg =
    deformable_groups: for each group and tap (i, j) dx, then likewise dy, then the mask; bias:
    [Co]; all of one dtype. stride, dilation: [1, 1, h, w]; padding: top, bottom, left, right. A
    sample at (oh, ow) is mask * the bilinear value at (oh stride - top + i dilation + dy, ..),
    where pixels outside count 0; what is read at a NaN is NaN. Computed in float32.
    """
    numbers = kernel_size, stride, padding, dilation, groups, deformable_groups
    _check(input, weight, offset, bias, *numbers, modulated)
    tensors = (None if t is None else wide(t) for t in (input, weight, offset, bias))
    y, spread = _convolve(*tensors, *numbers)
    return y.to(input.dtype), spread


def _gradients(grads, samples, input, weight, offset, kernel_size, *numbers):
    """Of input, weight and offset, from the samples [N, C, Ho kh, Wo kw] of the forward pass."""
    stride, padding, dilation, groups, dg = numbers
    grad_y, grad_samples = (None if g is None else wide(g) for g in grads)
    (kh, kw), (height, width) = kernel_size, offset.shape[2:]

    def taps(spread):  # [N, C, kh, kw, Ho, Wo]
        return spread.unflatten(3, (width, kw)).unflatten(2, (height, kh)).permute(0, 1, 3, 5, 2, 4)

    total = 0 if grad_samples is None else taps(grad_samples)
    of_weight = torch.zeros_like(weight)
    if grad_y is not None:
        by_group = grad_y.unflatten(1, (groups, weight.shape[0] // groups))
        filters = wide(weight).unflatten(0, (groups, weight.shape[0] // groups))
        total = total + torch.einsum("ngmhw,gmcij->ngcijhw", by_group, filters).flatten(1, 2)
        grouped = taps(samples).unflatten(1, (groups, input.shape[1] // groups))
        of_weight = torch.einsum("ngmhw,ngcijhw->gmcij", by_group, grouped).flatten(0, 1)
    if 0 in input.shape:  # nothing was gathered
        return torch.zeros_like(input), of_weight.to(weight.dtype), torch.zeros_like(offset)

    def sampled(x, moved):
        return _sampled(x, moved, kernel_size, stride, padding, dilation, dg).flatten(1, 2)

    _, pullback = torch.func.vjp(sampled, wide(input), wide(offset))
    of_input, of_offset = pullback(total)
    return of_input.to(input.dtype), of_weight.to(weight.dtype), of_offset.to(offset.dtype)


@op.backward("input", "weight", "offset", "bias")
def backward(
    grad_y,
    grad_deformable_offsets,
    deformable_offsets,
    input,
    weight,
    offset,
    bias,
    kernel_size,
    stride,
    padding,
    dilation,
    groups,
    deformable_groups,
):
    numbers = kernel_size, stride, padding, dilation, groups, deformable_groups
    grads = grad_y, grad_deformable_offsets
    of_bias = None
    if bias is not None:
        of_bias = torch.zeros_like(bias) if grad_y is None else grad_y.sum((0, 2, 3))
    return (*_gradients(grads, deformable_offsets, input, weight, offset, *numbers), of_bias)


@op.partner(
    "npu_deformable_conv2dbk(Tensor input, Tensor grad_output, Tensor offset_out, Tensor weight,"
    f" Tensor offset, {_NUMBERS}) -> (Tensor, Tensor, Tensor, Tensor)"
)
def npu_deformable_conv2dbk(
    input,
    grad_output,
    offset_out,
    weight,
    offset,
    kernel_size,
    stride,
    padding,
    dilation=(1, 1, 1, 1),
    groups=1,
    deformable_groups=1,
    modulated=True,
):
    """Return the gradients of input, weight, offset and bias; offset_out: the samples, float32."""
    numbers = kernel_size, stride, padding, dilation, groups, deformable_groups
    height, width = _check(input, weight, offset, None, *numbers, modulated)
    sizes = {
        "grad_output": (grad_output, [len(input), len(weight), height, width]),
        "offset_out": (
            offset_out,
            [*input.shape[:2], height * kernel_size[0], width * kernel_size[1]],
        ),
    }
    for name, (tensor, shape) in sizes.items():
        check(
            list(tensor.shape) == shape,
            f"[{_NAME}] expected {name} of shape {shape}, got {list(tensor.shape)}",
        )
    found = _gradients((grad_output, None), wide(offset_out), input, weight, offset, *numbers)
    return (*found, grad_output.sum((0, 2, 3)))


_ONES, _ZEROS = [1] * 4, [0] * 4


@op.samples
def samples(make):
    def moved(dx, dy):
        return make.tensor([[[[value] * 2] * 2 for value in (dx, dy, 1.0)]])

    image, weight = make.tensor([[[[1, 2], [3, 4]]]]), make.tensor([[[[1]]]])
    known = {"by_hand": ((0.5, 0.25), [[[[2.0, 1.25], [2.625, 1.5]]]])}
    if make.dtype == "float16":  # float32 is differentiated, which whole shifts cannot be
        known["catalogue"] = ((0.5, 0.0), [[[[1.5, 1.0], [3.5, 2.0]]]])
    for name, (shift, values) in known.items():
        given = image, weight, moved(*shift), None, [1, 1], _ONES, _ZEROS
        yield Sample(*given, id=name, expect=[values, values])
    yield Sample(
        make(2, 4, 5, 6),
        make(4, 2, 3, 2, scale=0.3),
        make(2, 3 * 2 * 6, 3, 3, scale=0.7),
        make(4),
        [3, 2],
        [1, 1, 2, 2],
        [1, 1, 1, 0],
        [1, 1, 1, 2],
        2,
        2,
        id="groups",
    )
    yield Sample(
        make(0, 2, 3, 3),
        make(2, 2, 1, 1),
        make(0, 3, 3, 3),
        None,
        [1, 1],
        _ONES,
        _ZEROS,
        id="empty",
    )


def _call(make, **changes):
    given = {
        "input": make(1, 4, 5, 5),
        "weight": make(2, 4, 3, 3),
        "offset": make(1, 27, 3, 3),
        "bias": None,
        "kernel_size": [3, 3],
        "stride": _ONES,
        "padding": _ZEROS,
        **changes,
    }
    return Sample(**given)


_START = r"\[npu_deformable_conv2d\] expected "
op.errors(
    lambda make: _call(make, stride=[1, 1]),
    match=_START + r"stride of 4 int32 numbers >= 1, got \[1, 1\]",
    id="stride",
)
op.errors(
    lambda make: _call(make, offset=make(1, 18, 3, 3)),
    match=_START + r"offset of shape \[1, 27, 3, 3\], got \[1, 18, 3, 3\]",
    id="offset",
)
op.errors(
    lambda make: _call(make, modulated=False),
    match=_START + r"modulated True, got False",
    id="modulated",
)
op.errors(
    lambda make: _call(make, groups=3),
    match=_START + r"groups to divide the 4 channels, got 3",
    id="groups",
)
op.errors(
    lambda make: _call(make, weight=make(2, 3, 3, 3)),
    match=_START + r"weight \[Co, 4, 3, 3\] with Co a multiple of groups 1, got \[2, 3, 3, 3\]",
    id="weight",
)
