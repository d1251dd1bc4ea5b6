"""Group normalisation followed by scaled Swish. Source: torch_npu.npu_group_norm_swish."""

from onnxruntime_npu.opdef import FLOATS, Sample, check, npu_op, torch
from onnxruntime_npu.opdef.gradients import check_gradient

from ._group_norm import body_normalised, normalised, swish_gradients

op = npu_op(
    "npu_group_norm_swish(Tensor input, int num_groups, Tensor weight, Tensor bias,"
    " float? eps=1e-05, float? swish_scale=1.0) -> (Tensor, Tensor, Tensor)",
    onnx="NPUGroupNormSwish",
    outputs=["y", "mean", "rstd"],
    dtypes={
        "input": FLOATS,
        "weight": FLOATS,
        "bias": FLOATS,
        "y": FLOATS,
        "mean": FLOATS,
        "rstd": FLOATS,
    },
    may_alias=[("input", "y")],
)


@op.reference
def reference(input, num_groups, weight, bias, eps=1e-05, swish_scale=1.0):
    """y = g * sigmoid(swish_scale * g) with g = (x - mean) * rstd * weight + bias, in float32.

    input: [N, C, ..]; weight, bias: [C], all of one dtype; y: like input; mean, rstd =
    1/sqrt(variance + eps) per group: [N, num_groups] of input's dtype. Each result is rounded once.
    """
    eps = 1e-5 if eps is None else eps
    swish_scale = 1.0 if swish_scale is None else swish_scale
    check(
        input.dtype == weight.dtype == bias.dtype,
        f"[npu_group_norm_swish] expected input, weight and bias of one dtype, "
        f"got {input.dtype}, {weight.dtype} and {bias.dtype}",
    )
    g, mean, rstd = normalised(
        "npu_group_norm_swish", "num_groups", input, num_groups, weight, bias, eps
    )
    y = g * torch.sigmoid(swish_scale * g)
    return tuple(t.to(input.dtype) for t in (y, mean, rstd))


@op.function
def body(b, call, input, weight, bias):
    groups, eps, scale = (call.attrs[name] for name in ("num_groups", "eps", "swish_scale"))
    eps = 1e-5 if eps is None else eps
    g, *statistics = body_normalised(b, input, groups, weight, bias, eps)
    y = b.Mul(g, b.Sigmoid(b.Mul(g, 1.0 if scale is None else scale)))
    results = b.Reshape(y, b.Shape(input)), *statistics
    return [b.Cast(t, to=call.dtype("input")) for t in results]


_GRADIENTS = ("input", "weight", "bias")


@op.backward(*_GRADIENTS)
def backward(grad_y, input, num_groups, weight, bias, eps, swish_scale, needs):
    c = 1.0 if swish_scale is None else swish_scale
    epsilon = 1e-5 if eps is None else eps
    return swish_gradients(grad_y, input, num_groups, weight, bias, epsilon, c, needs)


@op.partner(
    "npu_group_norm_swish_grad(Tensor grad, Tensor input, int num_groups, Tensor weight,"
    " Tensor bias, Tensor mean, Tensor rstd, bool[3] grad_input_mask, float? swish_scale=1.0)"
    " -> (Tensor, Tensor, Tensor)"
)
def npu_group_norm_swish_grad(
    grad, input, num_groups, weight, bias, mean, rstd, grad_input_mask, swish_scale=1.0
):
    """Return the gradients of input, weight and bias, None where grad_input_mask is false.

    mean and rstd: the statistics [N, num_groups] that npu_group_norm_swish returned.
    """
    name = "npu_group_norm_swish_grad"
    check_gradient(name, grad, input)
    check(
        input.dim() >= 2 and num_groups >= 1 and input.shape[1] % num_groups == 0,
        f"[{name}] expected input [N, C, ..] with C in {num_groups} groups, "
        f"got {list(input.shape)}",
    )
    for what, tensor, shape in (
        ("weight", weight, [input.shape[1]]),
        ("bias", bias, [input.shape[1]]),
        ("mean", mean, [input.shape[0], num_groups]),
        ("rstd", rstd, [input.shape[0], num_groups]),
    ):
        check(
            list(tensor.shape) == shape,
            f"[{name}] expected {what} of shape {shape}, got {list(tensor.shape)}",
        )
    needs = [n for n, wanted in zip(_GRADIENTS, grad_input_mask, strict=True) if wanted]
    c = 1.0 if swish_scale is None else swish_scale
    return swish_gradients(
        grad, input, num_groups, weight, bias, None, c, needs, statistics=(mean, rstd)
    )


@op.samples
def samples(make):
    yield Sample(
        make.tensor([[[1.0, 2.0], [3.0, 4.0], [0.0, 0.0], [2.0, -2.0]]]),
        2,
        make.tensor([1.0, 2.0, 1.0, 1.0]),
        make.tensor([0.0, 0.0, 0.5, 0.0]),
        1e-5,
        2.0,
        id="catalogue",
        expect=[
            [
                [
                    [-0.0858214, -0.12978],
                    [0.76633, 2.6708],
                    [0.365529, 0.365529],
                    [1.33529, -0.0789237],
                ]
            ],
            [[2.5, 0.0]],
            [[0.894424, 0.707105]],
        ],
    )
    yield Sample(make(2, 6, 5, 7), 3, make(6), make(6), id="image")
    yield Sample(make(2, 6, 5), 3, make(6), make(6), None, None, id="none_is_the_default")
    yield Sample(make(3, 8), 2, make(8), make(8), swish_scale=-0.5, id="no_spatial_axes")
    yield Sample(make(1, 4, 2, 2, 2, 2), 4, make(4), make(4), eps=0.1, id="rank_6")
    yield Sample(make(2, 32, 37, 19), 4, make(32), make(32), id="threads")
    yield Sample(make(2, 5, 6).transpose(1, 2), 1, make(6), make(6), id="not_contiguous")
    yield Sample(make(0, 6, 5), 3, make(6), make(6), id="empty_batch")


op.errors(
    lambda make: Sample(make(2, 6, 5), 4, make(6), make(6)),
    match=r"\[npu_group_norm_swish\] expected num_groups to be a positive divisor of the 6 "
    r"channels, got 4",
    id="num_groups",
)
op.errors(
    lambda make: Sample(make(2, 6, 5), 2, make(6), make(1)),
    match=r"\[npu_group_norm_swish\] expected bias of shape \[6\], got \[1\]",
    id="bias_shape",
)
op.errors(
    lambda make: Sample(
        make(2, 6, 5, dtype="float16"), 2, make(6, dtype="float32"), make(6, dtype="float32")
    ),
    match=r"\[npu_group_norm_swish\] expected input, weight and bias of one dtype, "
    r"got .*float16, .*float32 and .*float32",
    id="weight_dtype",
)
op.errors(
    lambda make: Sample(make(2, 6, 5), 0, make(6), make(6)),
    match=r"\[npu_group_norm_swish\] expected num_groups to be a positive divisor of the 6 "
    r"channels, got 0",
    id="no_group",
)
op.errors(
    lambda make: Sample(make(6), 1, make(6), make(6)),
    match=r"\[npu_group_norm_swish\] expected input of rank >= 2, got \[6\]",
    id="rank",
)
op.errors(
    lambda make: Sample(make(2, 6, 5), 2, make(6, 1), make(6)),
    match=r"\[npu_group_norm_swish\] expected weight of shape \[6\], got \[6, 1\]",
    id="weight_rank",
)
