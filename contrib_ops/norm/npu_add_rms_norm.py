"""Residual add followed by RMS normalisation; the sum is the third result.

Source: torch_npu.npu_add_rms_norm.
"""

from onnxruntime_npu.opdef import FLOATS, Sample, TypeAlias, check, npu_op, torch

op = npu_op(
    "npu_add_rms_norm(Tensor x1, Tensor x2, Tensor gamma, float epsilon=1e-06)"
    " -> (Tensor, Tensor, Tensor)",
    onnx="NPUAddRmsNorm",
    # torch_npu's own export gives this operator the op type of npu_rms_norm.
    aliases=[TypeAlias("NPURmsNorm", inputs=3)],
    outputs=["y", "rstd", "x"],
    dtypes={
        "x1": FLOATS,
        "x2": FLOATS,
        "gamma": FLOATS,
        "y": FLOATS,
        "rstd": ["float32"],
        "x": FLOATS,
    },
    may_alias=[("x1", "x"), ("x2", "x"), ("x1", "y"), ("x2", "y")],
)


@op.reference
def reference(x1, x2, gamma, epsilon=1e-06):
    """x = x1 + x2, rounded; y = x * rstd * gamma with rstd = 1/sqrt(mean(x^2) + epsilon), rounded.

    x1, x2: [A.., G..] of one dtype; gamma: [G..] of that dtype; y, x like x1; rstd: [A.., 1..]
    float32. Normalising the rounded sum makes y the norm of the x that the caller sees.
    """
    check(
        x1.shape == x2.shape,
        f"[npu_add_rms_norm] expected x1 and x2 of one shape, "
        f"got {list(x1.shape)} and {list(x2.shape)}",
    )
    check(
        x1.dtype == x2.dtype == gamma.dtype,
        f"[npu_add_rms_norm] expected x1, x2 and gamma of one dtype, "
        f"got {x1.dtype}, {x2.dtype} and {gamma.dtype}",
    )
    check(
        1 <= gamma.dim() <= x1.dim() and x1.shape[x1.dim() - gamma.dim() :] == gamma.shape,
        f"[npu_add_rms_norm] expected gamma to have the trailing dimensions of x1 "
        f"{list(x1.shape)}, got {list(gamma.shape)}",
    )
    axes = list(range(x1.dim() - gamma.dim(), x1.dim()))
    compute = torch.promote_types(x1.dtype, torch.float32)
    x = x1 + x2
    wide = x.to(compute)
    rstd = torch.rsqrt(wide.square().mean(axes, keepdim=True) + epsilon)
    return (wide * rstd * gamma.to(compute)).to(x1.dtype), rstd, x


@op.function
def body(b, call, x1, x2, gamma):
    axes = list(range(-call.rank("gamma"), 0))
    dtype = call.dtype("x1")
    # float32 inside: the CPU provider has no Add for bfloat16.
    x = b.Cast(b.Add(b.Cast(x1, to="float32"), b.Cast(x2, to="float32")), to=dtype)
    wide = b.Cast(x, to="float32")
    mean_of_squares = b.ReduceMean(b.Mul(wide, wide), axes, keepdims=1)
    rstd = b.Reciprocal(b.Sqrt(b.Add(mean_of_squares, call.attrs["epsilon"])))
    y = b.Mul(b.Mul(wide, rstd), b.Cast(gamma, to="float32"))
    return b.Cast(y, to=dtype), rstd, x


@op.samples
def samples(make):
    yield Sample(
        make.tensor([[1.0, 2.0, 3.0, 4.0], [-1.0, 0.0, 1.0, 2.0]]),
        make.tensor([[1.0, 1.0, 1.0, 1.0], [0.0, 1.0, 0.0, -1.0]]),
        make.tensor([1.0, 0.5, 2.0, 1.0]),
        id="catalogue",
        expect=[
            [[0.544331, 0.408248, 2.17732, 1.36083], [-1.0, 0.5, 2.0, 1.0]],
            [[0.272166], [1.0]],
            [[2.0, 3.0, 4.0, 5.0], [-1.0, 1.0, 1.0, 1.0]],
        ],
    )
    yield Sample(make(2, 3, 64), make(2, 3, 64), make(64))
    yield Sample(make(5, 576), make(5, 576), make(576), 1e-5, id="hidden_576")
    yield Sample(make(2, 3, 4, 8), make(2, 3, 4, 8), make(4, 8), id="two_axes")
    yield Sample(make(3, 1), make(3, 1), make(1), id="one_element")
    yield Sample(make(37), make(37), make(37), epsilon=0.5, id="whole_tensor")
    yield Sample(make(0, 64), make(0, 64), make(64), id="empty_batch")
    yield Sample(make(8, 64).t(), make(64, 8), make(8), id="not_contiguous")
    yield Sample(make(4, 32, scale=200.0), make(4, 32), make(32), id="squares_beyond_float16")


_TWO_ROUNDINGS = "the sum and the result are rounded to the dtype: two roundings of {} relative"
op.tolerance("float16", rtol=1e-3, atol=1e-3, reason=_TWO_ROUNDINGS.format("2^-11"))
op.tolerance("bfloat16", rtol=8e-3, atol=8e-3, reason=_TWO_ROUNDINGS.format("2^-8"))

op.errors(
    lambda make: Sample(make(2, 8), make(1, 8), make(8)),
    match=r"\[npu_add_rms_norm\] expected x1 and x2 of one shape, got \[2, 8\] and \[1, 8\]",
    id="no_broadcast",
)
op.errors(
    lambda make: Sample(make(2, 8), make(2, 8), make(4)),
    match=r"\[npu_add_rms_norm\] expected gamma to have the trailing dimensions of x1 \[2, 8\], "
    r"got \[4\]",
    id="gamma_shape",
)
op.errors(
    lambda make: Sample(
        make(2, 8, dtype="float16"), make(2, 8, dtype="float16"), make(8, dtype="float32")
    ),
    match=r"\[npu_add_rms_norm\] expected x1, x2 and gamma of one dtype, "
    r"got .*float16, .*float16 and .*float32",
    id="gamma_dtype",
)
op.errors(
    lambda make: Sample(make(2, 4), make(2, 4), make(2, 2, 4)),
    match=r"\[npu_add_rms_norm\] expected gamma to have the trailing dimensions of x1 \[2, 4\], "
    r"got \[2, 2, 4\]",
    id="gamma_rank",
)
op.errors(
    lambda make: Sample(make(2, 4), make(1, 2, 4), make(4)),
    match=r"\[npu_add_rms_norm\] expected x1 and x2 of one shape, got \[2, 4\] and \[1, 2, 4\]",
    id="x2_rank",
)
op.errors(
    lambda make: Sample(make(2, 4, dtype="float32"), make(2, 4, dtype="float16"), make(4)),
    match=r"\[npu_add_rms_norm\] expected x1, x2 and gamma of one dtype, got .*float32, .*float16",
    id="x2_dtype",
)
