"""Layer normalisation for inference. Source: torch_npu.npu_layer_norm_eval."""

from onnxruntime_npu.opdef import FLOATS, Sample, check, npu_op, torch

op = npu_op(
    "npu_layer_norm_eval(Tensor input, int[] normalized_shape, Tensor? weight=None,"
    " Tensor? bias=None, float eps=1e-05) -> Tensor",
    onnx="NPULayerNormEval",
    dtypes={"input": FLOATS, "weight": FLOATS, "bias": FLOATS, "y": FLOATS},
    may_alias=[("input", "y")],
)


@op.reference
def reference(input, normalized_shape, weight=None, bias=None, eps=1e-05):
    """y = (x - mean) / sqrt(variance + eps) * weight + bias in float32, rounded once.

    input: [A.., G..] with G.. = normalized_shape; weight, bias: [G..] of input's dtype, 1 and 0
    when absent; mean and variance (divided by the count) are those of the trailing axes; y: like
    input.
    """
    trailing = list(normalized_shape)
    leading = input.dim() - len(trailing)
    check(
        len(trailing) >= 1 and leading >= 0 and list(input.shape[leading:]) == trailing,
        f"[npu_layer_norm_eval] expected normalized_shape to have the trailing dimensions of input "
        f"{list(input.shape)}, got {trailing}",
    )
    for name, t in (("weight", weight), ("bias", bias)):
        if t is None:
            continue
        check(
            list(t.shape) == trailing,
            f"[npu_layer_norm_eval] expected {name} of shape {trailing}, got {list(t.shape)}",
        )
        check(
            t.dtype == input.dtype,
            f"[npu_layer_norm_eval] expected {name} of input's dtype {input.dtype}, got {t.dtype}",
        )
    axes = list(range(leading, input.dim()))
    compute = torch.promote_types(input.dtype, torch.float32)
    x = input.to(compute)
    centered = x - x.mean(axes, keepdim=True)
    y = centered * torch.rsqrt(centered.square().mean(axes, keepdim=True) + eps)
    if weight is not None:
        y = y * weight.to(compute)
    if bias is not None:
        y = y + bias.to(compute)
    return y.to(input.dtype)


@op.backward("input", "weight", "bias")
def backward(grad_y, input, normalized_shape, weight, eps, needs):
    """With n = (x - mean) rstd and h = dy weight: dx = rstd (h - mean(h) - n mean(h n))."""
    leading = list(range(input.dim() - len(normalized_shape)))
    axes = list(range(len(leading), input.dim()))
    compute = torch.promote_types(input.dtype, torch.float32)
    x, dy = input.to(compute), grad_y.to(compute)
    centered = x - x.mean(axes, keepdim=True)
    rstd = torch.rsqrt(centered.square().mean(axes, keepdim=True) + eps)
    n = centered * rstd
    h = dy if weight is None else dy * weight.to(compute)
    dx = rstd * (h - h.mean(axes, keepdim=True) - n * (h * n).mean(axes, keepdim=True))

    def summed(t):
        return t.sum(leading) if leading else t

    return (
        dx,
        summed(dy * n) if "weight" in needs else None,
        summed(dy) if "bias" in needs else None,
    )


@op.function
def body(b, call, input, weight, bias):
    axes = list(range(-len(call.attrs["normalized_shape"]), 0))
    x = b.Cast(input, to="float32")
    centered = b.Sub(x, b.ReduceMean(x, axes, keepdims=1))
    variance = b.ReduceMean(b.Mul(centered, centered), axes, keepdims=1)
    y = b.Div(centered, b.Sqrt(b.Add(variance, call.attrs["eps"])))
    if weight is not None:
        y = b.Mul(y, b.Cast(weight, to="float32"))
    if bias is not None:
        y = b.Add(y, b.Cast(bias, to="float32"))
    return b.Cast(y, to=call.dtype("input"))


@op.samples
def samples(make):
    yield Sample(
        make.tensor([[1.0, 2.0, 3.0, 4.0], [-1.0, 0.0, 1.0, 2.0]]),
        [4],
        make.tensor([1.0, 0.5, 2.0, 1.0]),
        make.tensor([0.0, 0.0, 1.0, 0.0]),
        1e-5,
        id="catalogue",
        expect=[[[-1.34164, -0.223606, 1.89442, 1.34164], [-1.34164, -0.223606, 1.89442, 1.34164]]],
    )
    yield Sample(make(2, 3, 64), [64], id="plain")
    yield Sample(make(2, 3, 64), [64], make(64), id="weight")
    yield Sample(make(2, 3, 64), [64], None, make(64), id="bias")
    yield Sample(make(40, 1024), [1024], make(1024), make(1024), id="threads")
    yield Sample(make(2, 3, 4, 8), [4, 8], make(4, 8), make(4, 8), id="two_axes")
    yield Sample(make(37), [37], eps=0.5, id="whole_tensor")
    yield Sample(make(0, 64), [64], make(64), make(64), id="empty_batch")
    yield Sample(make(8, 64).t(), [8], make(8), make(8), id="not_contiguous")


op.errors(
    lambda make: Sample(make(2, 8), [4]),
    match=r"\[npu_layer_norm_eval\] expected normalized_shape to have the trailing dimensions of "
    r"input \[2, 8\], got \[4\]",
    id="normalized_shape",
)
op.errors(
    lambda make: Sample(make(2, 8), [8], make(1)),
    match=r"\[npu_layer_norm_eval\] expected weight of shape \[8\], got \[1\]",
    id="weight_shape",
)
op.errors(
    lambda make: Sample(make(2, 8), [8], make(8), make(2, 8)),
    match=r"\[npu_layer_norm_eval\] expected bias of shape \[8\], got \[2, 8\]",
    id="bias_shape",
)
op.errors(
    lambda make: Sample(make(2, 8, dtype="float16"), [8], make(8, dtype="float32")),
    match=r"\[npu_layer_norm_eval\] expected weight of input's dtype .*float16, got .*float32",
    id="weight_dtype",
)
op.errors(
    lambda make: Sample(make(4), [2, 4]),
    match=r"\[npu_layer_norm_eval\] expected normalized_shape to have the trailing dimensions of "
    r"input \[4\], got \[2, 4\]",
    id="rank",
)
op.errors(
    lambda make: Sample(make(2, 4), []),
    match=r"\[npu_layer_norm_eval\] expected normalized_shape to have the trailing dimensions of "
    r"input \[2, 4\], got \[\]",
    id="no_axes",
)
op.errors(
    lambda make: Sample(make(2, 4), [4], make(1, 4)),
    match=r"\[npu_layer_norm_eval\] expected weight of shape \[4\], got \[1, 4\]",
    id="weight_rank",
)
op.errors(
    lambda make: Sample(make(2, 4, dtype="float32"), [4], None, make(4, dtype="float16")),
    match=r"\[npu_layer_norm_eval\] expected bias of input's dtype .*float32, got .*float16",
    id="bias_dtype",
)
