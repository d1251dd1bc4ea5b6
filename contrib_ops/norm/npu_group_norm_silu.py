"""Group normalisation followed by SiLU. Source: torch_npu.npu_group_norm_silu."""

from onnxruntime_npu.opdef import ABSENT, FLOATS, Sample, check, npu_op, torch

from ._group_norm import body_normalised, normalised, swish_gradients


def _typings():
    """Return the result types: mean and rstd have that of the weights, otherwise of input."""
    for t in FLOATS:
        for w in (t, *(x for x in FLOATS if x != t)):
            for given in ({"weight": ABSENT, "bias": w}, {"weight": w}):
                yield {"input": t, **given, "out": t, "mean": w, "rstd": w}


op = npu_op(
    "npu_group_norm_silu(Tensor input, Tensor? weight, Tensor? bias, int group, float eps=1e-05)"
    " -> (Tensor, Tensor, Tensor)",
    onnx="NPUGroupNormSilu",
    outputs=["out", "mean", "rstd"],
    dtypes={
        "input": FLOATS,
        "weight": FLOATS,
        "bias": FLOATS,
        "out": FLOATS,
        "mean": FLOATS,
        "rstd": FLOATS,
    },
    may_alias=[("input", "out")],
    typings=_typings(),
)


@op.reference
def reference(input, weight, bias, group, eps=1e-05):
    """out = g * sigmoid(g) with g = (x - mean) * rstd * weight + bias per group, in float32.

    input: [N, C, ..]; weight, bias: [C] of one dtype, input's or float32, 1 and 0 when absent;
    out: like input; mean, rstd = 1/sqrt(variance + eps): [N, group], of weight's dtype when it is
    given, else of input's. Each result is rounded once.
    """
    check(
        weight is None or bias is None or weight.dtype == bias.dtype,
        f"[npu_group_norm_silu] expected weight and bias of one dtype, "
        f"got {weight is not None and weight.dtype} and {bias is not None and bias.dtype}",
    )
    given = bias if weight is None else weight
    check(
        given is None or given.dtype in (input.dtype, torch.float32),
        f"[npu_group_norm_silu] expected weight and bias of input's dtype {input.dtype} or "
        f"float32, got {given is not None and given.dtype}",
    )
    g, mean, rstd = normalised("npu_group_norm_silu", "group", input, group, weight, bias, eps)
    dtype = input.dtype if weight is None else weight.dtype
    out = (g * torch.sigmoid(g)).to(input.dtype)
    return out, mean.to(dtype), rstd.to(dtype)


@op.backward("input", "weight", "bias")
def backward(grad_out, input, weight, bias, group, eps, needs):
    return swish_gradients(grad_out, input, group, weight, bias, eps, 1.0, needs)


@op.function
def body(b, call, input, weight, bias):
    a = call.attrs
    g, *statistics = body_normalised(b, input, a["group"], weight, bias, a["eps"])
    out = b.Reshape(b.Mul(g, b.Sigmoid(g)), b.Shape(input))
    dtype = call.dtype("weight") if weight is not None else call.dtype("input")
    return b.Cast(out, to=call.dtype("input")), *[b.Cast(s, to=dtype) for s in statistics]


@op.samples
def samples(make):
    yield Sample(
        make.tensor([[[1.0, 2.0], [3.0, 4.0], [0.0, 0.0], [2.0, -2.0]]]),
        make.tensor([1.0, 2.0, 1.0, 1.0]),
        make.tensor([0.0, 0.0, 0.5, 0.0]),
        2,
        1e-5,
        id="catalogue",
        expect=[
            [
                [
                    [-0.278042, -0.174423],
                    [0.634864, 2.51163],
                    [0.31123, 0.31123],
                    [1.13763, -0.276578],
                ]
            ],
            [[2.5, 0.0]],
            [[0.894424, 0.707105]],
        ],
    )
    yield Sample(make(2, 6, 5, 7), make(6), make(6), 3, id="image")
    yield Sample(make(2, 6, 5, 7), None, None, 2, id="no_weights")
    yield Sample(make(2, 6, 5, 7), make(6), None, 2, id="weight_only")
    yield Sample(make(2, 6, 5, 7), None, make(6), 2, id="bias_only")
    float32 = [make(6, dtype="float32"), make(6, dtype="float32")]
    yield Sample(make(2, 6, 35), *float32, 2, id="float32_weights")
    yield Sample(make(3, 8), make(8), make(8), 2, id="no_spatial_axes")
    yield Sample(make(1, 4, 2, 2, 2, 2), make(4), make(4), 4, eps=0.1, id="rank_6")
    yield Sample(make(2, 32, 37, 19), make(32), make(32), 4, id="threads")
    yield Sample(make(2, 5, 6).transpose(1, 2), make(6), make(6), 1, id="not_contiguous")
    yield Sample(make(0, 6, 5), make(6), make(6), 3, id="empty_batch")


op.errors(
    lambda make: Sample(make(2, 6, 5), make(6), make(6), 4),
    match=r"\[npu_group_norm_silu\] expected group to be a positive divisor of the 6 channels, "
    r"got 4",
    id="group",
)
op.errors(
    lambda make: Sample(make(2, 0, 5), None, None, 2**31),
    match=r"\[npu_group_norm_silu\] expected group to be a positive divisor of the 0 channels, "
    r"got 2147483648",
    id="groups_of_nothing",
)
op.errors(
    lambda make: Sample(make(2, 6, 5), make(6), make(6), 0),
    match=r"\[npu_group_norm_silu\] expected group to be a positive divisor of the 6 channels, "
    r"got 0",
    id="no_group",
)
op.errors(
    lambda make: Sample(make(6), make(6), make(6), 1),
    match=r"\[npu_group_norm_silu\] expected input of rank >= 2, got \[6\]",
    id="rank",
)
op.errors(
    lambda make: Sample(make(2, 6, 5), make(5), make(6), 2),
    match=r"\[npu_group_norm_silu\] expected weight of shape \[6\], got \[5\]",
    id="weight_shape",
)
op.errors(
    lambda make: Sample(
        make(2, 6, 5, dtype="float32"), make(6, dtype="float16"), make(6, dtype="float16"), 2
    ),
    match=r"\[npu_group_norm_silu\] expected weight and bias of input's dtype .*float32 or "
    r"float32, got .*float16",
    id="weight_dtype",
)
op.errors(
    lambda make: Sample(make(2, 6, 5), make(6), make(1, 6), 2),
    match=r"\[npu_group_norm_silu\] expected bias of shape \[6\], got \[1, 6\]",
    id="bias_rank",
)
op.errors(
    lambda make: Sample(make(2, 6, 5), make(6, dtype="float32"), make(6, dtype="float16"), 2),
    match=r"\[npu_group_norm_silu\] expected weight and bias of one dtype, got .*float32 and ",
    id="bias_dtype",
)
