"""DeepNorm: layer normalisation of alpha * x + gx. Source: torch_npu.npu_deep_norm."""

from onnxruntime_npu.opdef import FLOATS, Sample, check, npu_op, torch

op = npu_op(
    "npu_deep_norm(Tensor x, Tensor gx, Tensor beta, Tensor gamma, float alpha=0.3,"
    " float epsilon=1e-06) -> (Tensor, Tensor, Tensor)",
    onnx="NPUDeepNorm",
    outputs=["mean", "rstd", "y"],
    dtypes={
        "x": FLOATS,
        "gx": FLOATS,
        "beta": FLOATS,
        "gamma": FLOATS,
        "mean": ["float32"],
        "rstd": ["float32"],
        "y": FLOATS,
    },
    may_alias=[("x", "y"), ("gx", "y")],
)


@op.reference
def reference(x, gx, beta, gamma, alpha=0.3, epsilon=1e-06):
    """y = (s - mean) * rstd * gamma + beta with s = alpha * x + gx, in float32; y rounds once.

    x, gx: [A.., G..]; beta, gamma: [G..], all of one dtype; mean, rstd = 1/sqrt(variance +
    epsilon) of the trailing axes: [A.., 1..] float32; y: like x, the third result.
    """
    check(
        x.shape == gx.shape,
        f"[npu_deep_norm] expected x and gx of one shape, got {list(x.shape)} and {list(gx.shape)}",
    )
    check(
        beta.shape == gamma.shape,
        f"[npu_deep_norm] expected beta and gamma of one shape, "
        f"got {list(beta.shape)} and {list(gamma.shape)}",
    )
    check(
        x.dtype == gx.dtype == beta.dtype == gamma.dtype,
        f"[npu_deep_norm] expected x, gx, beta and gamma of one dtype, "
        f"got {x.dtype}, {gx.dtype}, {beta.dtype} and {gamma.dtype}",
    )
    check(
        1 <= gamma.dim() <= x.dim() and x.shape[x.dim() - gamma.dim() :] == gamma.shape,
        f"[npu_deep_norm] expected gamma to have the trailing dimensions of x {list(x.shape)}, "
        f"got {list(gamma.shape)}",
    )
    axes = list(range(x.dim() - gamma.dim(), x.dim()))
    compute = torch.promote_types(x.dtype, torch.float32)
    s = alpha * x.to(compute) + gx.to(compute)
    mean = s.mean(axes, keepdim=True)
    centered = s - mean
    rstd = torch.rsqrt(centered.square().mean(axes, keepdim=True) + epsilon)
    y = centered * rstd * gamma.to(compute) + beta.to(compute)
    return mean, rstd, y.to(x.dtype)


@op.function
def body(b, call, x, gx, beta, gamma):
    axes = list(range(-call.rank("gamma"), 0))
    scaled = b.Mul(b.Cast(x, to="float32"), call.attrs["alpha"])
    s = b.Add(scaled, b.Cast(gx, to="float32"))
    mean = b.ReduceMean(s, axes, keepdims=1)
    centered = b.Sub(s, mean)
    variance = b.ReduceMean(b.Mul(centered, centered), axes, keepdims=1)
    rstd = b.Reciprocal(b.Sqrt(b.Add(variance, call.attrs["epsilon"])))
    scale = b.Cast(gamma, to="float32")
    y = b.Add(b.Mul(b.Mul(centered, rstd), scale), b.Cast(beta, to="float32"))
    return mean, rstd, b.Cast(y, to=call.dtype("x"))


@op.backward("x", "gx", "beta", "gamma")
def backward(grad_y, x, gx, beta, gamma, alpha, mean, rstd, needs):
    """Those of layer normalisation of s = alpha x + gx; dx = alpha ds, dgx = ds."""
    s = alpha * x.to(rstd.dtype) + gx.to(rstd.dtype)
    ds, dgamma, dbeta = torch.ops.aten.native_layer_norm_backward(
        grad_y.to(rstd.dtype),
        s,
        list(gamma.shape),
        mean,
        rstd,
        gamma.to(rstd.dtype),
        beta.to(rstd.dtype),
        [bool(needs & {"x", "gx"}), "gamma" in needs, "beta" in needs],
    )
    dx = alpha * ds if "x" in needs else None
    return dx, ds, dbeta, dgamma


@op.samples
def samples(make):
    yield Sample(
        make.tensor([[1.0, 2.0, 3.0, 4.0], [-1.0, 0.0, 1.0, 2.0]]),
        make.tensor([[1.0, 1.0, 1.0, 1.0], [0.0, 1.0, 0.0, -1.0]]),
        make.tensor([0.0, 0.0, 1.0, 0.0]),
        make.tensor([1.0, 0.5, 2.0, 1.0]),
        0.3,
        1e-6,
        id="catalogue",
        expect=[
            [[1.75], [0.15]],
            [[2.98141], [1.78885]],
            [[-1.34163, -0.223606, 1.89442, 1.34163], [-0.804983, 0.760262, 1.53666, -0.983868]],
        ],
    )
    yield Sample(make(2, 3, 64), make(2, 3, 64), make(64), make(64))
    yield Sample(make(40, 1024), make(40, 1024), make(1024), make(1024), 0.81, id="threads")
    yield Sample(make(2, 3, 4, 8), make(2, 3, 4, 8), make(4, 8), make(4, 8), id="two_axes")
    yield Sample(make(37), make(37), make(37), make(37), epsilon=0.5, id="whole_tensor")
    yield Sample(make(0, 64), make(0, 64), make(64), make(64), id="empty_batch")
    yield Sample(make(8, 64).t(), make(64, 8), make(8), make(8), alpha=-2.0, id="not_contiguous")


op.errors(
    lambda make: Sample(make(2, 8), make(1, 8), make(8), make(8)),
    match=r"\[npu_deep_norm\] expected x and gx of one shape, got \[2, 8\] and \[1, 8\]",
    id="no_broadcast",
)
op.errors(
    lambda make: Sample(make(2, 8), make(2, 8), make(4), make(4)),
    match=r"\[npu_deep_norm\] expected gamma to have the trailing dimensions of x \[2, 8\], "
    r"got \[4\]",
    id="gamma_shape",
)
op.errors(
    lambda make: Sample(make(2, 8), make(2, 8), make(1), make(8)),
    match=r"\[npu_deep_norm\] expected beta and gamma of one shape, got \[1\] and \[8\]",
    id="beta_shape",
)
op.errors(
    lambda make: Sample(make(2, 4), make(2, 4), make(2, 2, 4), make(2, 2, 4)),
    match=r"\[npu_deep_norm\] expected gamma to have the trailing dimensions of x \[2, 4\], "
    r"got \[2, 2, 4\]",
    id="gamma_rank",
)
op.errors(
    lambda make: Sample(make(4), make(1, 4), make(4), make(4)),
    match=r"\[npu_deep_norm\] expected x and gx of one shape, got \[4\] and \[1, 4\]",
    id="gx_rank",
)
op.errors(
    lambda make: Sample(
        make(2, 4, dtype="float32"), make(2, 4, dtype="float16"), make(4, dtype="float32"),
        make(4, dtype="float32"),
    ),
    match=r"\[npu_deep_norm\] expected x, gx, beta and gamma of one dtype, got .*float32, ",
    id="dtypes",
)  # fmt: skip
