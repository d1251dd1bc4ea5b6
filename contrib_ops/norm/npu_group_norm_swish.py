"""Group normalisation followed by scaled Swish. Source: torch_npu.npu_group_norm_swish."""

import math

from onnxruntime_npu.opdef import FLOATS, Sample, check, npu_op, torch

from ._group_norm import swish_gradients

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
    check(
        input.dim() >= 2,
        f"[npu_group_norm_swish] expected input of rank >= 2, got {list(input.shape)}",
    )
    n, c, *spatial = input.shape
    check(
        0 < num_groups <= max(c, 1) and c % num_groups == 0,
        f"[npu_group_norm_swish] expected num_groups to be a positive divisor of the {c} channels, "
        f"got {num_groups}",
    )
    for name, t in (("weight", weight), ("bias", bias)):
        check(
            list(t.shape) == [c],
            f"[npu_group_norm_swish] expected {name} of shape {[c]}, got {list(t.shape)}",
        )
    compute = torch.promote_types(input.dtype, torch.float32)
    x = input.to(compute).reshape(n, num_groups, c // num_groups * math.prod(spatial))
    mean = x.mean(-1, keepdim=True)
    centered = x - mean
    rstd = torch.rsqrt(centered.square().mean(-1, keepdim=True) + eps)
    per_channel = [c, *[1 for _ in spatial]]
    g = (centered * rstd).reshape(input.shape) * weight.to(compute).reshape(per_channel)
    g = g + bias.to(compute).reshape(per_channel)
    y = g * torch.sigmoid(swish_scale * g)
    return tuple(t.to(input.dtype) for t in (y, mean.squeeze(-1), rstd.squeeze(-1)))


@op.function
def body(b, call, input, weight, bias):
    groups, eps, scale = (call.attrs[name] for name in ("num_groups", "eps", "swish_scale"))
    x = b.Cast(input, to="float32")
    shape = b.Shape(x)
    channels = b.Slice(shape, [1], [2])
    spatial = b.ReduceProd(b.Slice(shape, [2], [2**62]), keepdims=1)
    per_group = b.Div(b.Mul(channels, spatial), groups)
    # Abs: of a plain slice, onnxruntime makes Reshape to [0, groups, -1], which fails where N is
    # 0.
    n = b.Abs(b.Slice(shape, [0], [1]))
    flat = b.Reshape(x, b.Concat(n, [groups], per_group, axis=0), allowzero=1)
    mean = b.ReduceMean(flat, [-1], keepdims=1)
    centered = b.Sub(flat, mean)
    variance = b.ReduceMean(b.Mul(centered, centered), [-1], keepdims=1)
    rstd = b.Reciprocal(b.Sqrt(b.Add(variance, 1e-5 if eps is None else eps)))
    # [N, C, rest] serves any rank.
    rank_3 = b.Concat(n, channels, spatial, axis=0)
    g = b.Reshape(b.Mul(centered, rstd), rank_3, allowzero=1)
    g = b.Mul(g, b.Unsqueeze(b.Cast(weight, to="float32"), [-1]))
    g = b.Add(g, b.Unsqueeze(b.Cast(bias, to="float32"), [-1]))
    y = b.Mul(g, b.Sigmoid(b.Mul(g, 1.0 if scale is None else scale)))
    dtype = call.dtype("input")
    statistics = [b.Cast(b.Reshape(s, [0, groups]), to=dtype) for s in (mean, rstd)]
    return b.Cast(b.Reshape(y, shape), to=dtype), *statistics


@op.backward("input", "weight", "bias")
def backward(grad_y, input, num_groups, weight, bias, eps, swish_scale, needs):
    c = 1.0 if swish_scale is None else swish_scale
    epsilon = 1e-5 if eps is None else eps
    return swish_gradients(grad_y, input, num_groups, weight, bias, epsilon, c, needs)


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
