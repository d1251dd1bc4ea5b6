"""Root-mean-square normalisation over the trailing axes that gamma covers.

Source: torch_npu.npu_rms_norm.
"""

from onnxruntime_npu.opdef import FLOATS, Sample, check, npu_op, torch

from ._rms_norm import gradients

op = npu_op(
    "npu_rms_norm(Tensor self, Tensor gamma, float epsilon=1e-06) -> (Tensor, Tensor)",
    onnx="NPURmsNorm",
    outputs=["y", "rstd"],
    dtypes={"self": FLOATS, "gamma": FLOATS, "y": FLOATS, "rstd": ["float32"]},
    may_alias=[("self", "y")],
)


@op.reference
def reference(self, gamma, epsilon=1e-06):
    """y = x * rstd * gamma with rstd = 1/sqrt(mean(x^2) + epsilon), in float32; y rounds once.

    self: [A.., G..]; gamma: [G..], of self's dtype or float32; y like self;
    rstd: [A.., 1..] float32.
    """
    check(
        1 <= gamma.dim() <= self.dim() and self.shape[self.dim() - gamma.dim() :] == gamma.shape,
        f"[npu_rms_norm] expected gamma to have the trailing dimensions of self "
        f"{list(self.shape)}, got {list(gamma.shape)}",
    )
    check(
        gamma.dtype in (self.dtype, torch.float32),
        f"[npu_rms_norm] expected gamma of self's dtype {self.dtype} or float32, got {gamma.dtype}",
    )
    axes = list(range(self.dim() - gamma.dim(), self.dim()))
    compute = torch.float64 if self.dtype == torch.float64 else torch.float32
    x = self.to(compute)
    rstd = torch.rsqrt(x.square().mean(axes, keepdim=True) + epsilon)
    return (x * rstd * gamma.to(compute)).to(self.dtype), rstd


@op.function
def body(b, call, self, gamma):
    axes = list(range(-call.rank("gamma"), 0))
    x = b.Cast(self, to="float32")
    mean_of_squares = b.ReduceMean(b.Mul(x, x), axes, keepdims=1)
    rstd = b.Reciprocal(b.Sqrt(b.Add(mean_of_squares, call.attrs["epsilon"])))
    y = b.Mul(b.Mul(x, rstd), b.Cast(gamma, to="float32"))
    return b.Cast(y, to=call.dtype("self")), rstd


@op.backward("self", "gamma")
def backward(grad_y, self, gamma, rstd):
    """npu_rms_norm_backward; in float64, which it does not take, its formula."""
    if self.dtype == torch.float64:
        return gradients(grad_y, self, gamma, rstd)
    return torch.ops.npu.npu_rms_norm_backward(grad_y, self, gamma, rstd)


@op.samples
def samples(make):
    yield Sample(
        make.tensor([[1.0, 2.0, 3.0, 4.0], [-1.0, 0.0, 1.0, 2.0]]),
        make.tensor([1.0, 0.5, 2.0, 1.0]),
        id="catalogue",
        expect=[
            [[0.365148, 0.365148, 2.19089, 1.46059], [-0.816496, 0.0, 1.63299, 1.63299]],
            [[0.365148], [0.816496]],
        ],
    )
    yield Sample(make(2, 3, 64), make(64))
    yield Sample(make(5, 576), make(576, dtype="float32"), 1e-5, id="float32_gamma")
    yield Sample(make(2, 3, 4, 8), make(4, 8), id="two_axes")
    yield Sample(make(37), make(37), epsilon=0.5, id="whole_tensor")
    yield Sample(make(3, 1), make(1), id="one_element")
    yield Sample(make(0, 64), make(64), id="empty_batch")
    yield Sample(make(8, 64).t(), make(8), id="not_contiguous")
    yield Sample(make(4, 32, scale=200.0), make(32), id="squares_beyond_float16")


op.errors(
    lambda make: Sample(make(2, 8), make(4)),
    match=r"\[npu_rms_norm\] expected gamma to have the trailing dimensions .* \[2, 8\], got \[4\]",
    id="gamma_shape",
)
op.errors(
    lambda make: Sample(make(8), make(1, 8)),
    match=r"\[npu_rms_norm\] expected gamma to have the trailing dimensions .* \[8\], got \[1, 8\]",
    id="gamma_rank",
)
op.errors(
    lambda make: Sample(make(2, 8, dtype="float32"), make(8, dtype="float16")),
    match=r"\[npu_rms_norm\] expected gamma of self's dtype .*float32, got .*float16",
    id="gamma_dtype",
)
op.errors(
    lambda make: Sample(make(), make(4)),
    match=r"\[npu_rms_norm\] expected gamma to have the trailing dimensions of self \[\], got",
    id="self_rank",
)
op.errors(
    lambda make: Sample(make(2, 4), make()),
    match=r"\[npu_rms_norm\] expected gamma to have the trailing .* \[2, 4\], got \[\]",
    id="gamma_scalar",
)
