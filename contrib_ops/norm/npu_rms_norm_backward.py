"""The gradients of npu_rms_norm. Source: torch_npu.npu_rms_norm_backward."""

from onnxruntime_npu.opdef import FLOATS, Sample, check, npu_op, torch

from ._rms_norm import gradients

op = npu_op(
    "npu_rms_norm_backward(Tensor dy, Tensor self, Tensor gamma, Tensor rstd) -> (Tensor, Tensor)",
    onnx="NPURmsNormBackward",
    outputs=["dx", "dgamma"],
    dtypes={
        "dy": FLOATS,
        "self": FLOATS,
        "gamma": FLOATS,
        "rstd": ["float32"],
        "dx": FLOATS,
        "dgamma": ["float32"],
    },
    may_alias=[("dy", "dx"), ("self", "dx")],
)


@op.reference
def reference(dy, self, gamma, rstd):
    """dx = rstd (g - n mean(g n)), dgamma = sum(dy n) over rows; n = x rstd, g = dy gamma.

    dy, self: [A.., G..] of one dtype; gamma: [G..], of that dtype or float32; rstd: [A.., 1..]
    float32, the second result of npu_rms_norm. In float32; dx, like self, rounds once; dgamma:
    [G..] float32.
    """
    name = "[npu_rms_norm_backward]"
    check(
        1 <= gamma.dim() <= self.dim() and self.shape[self.dim() - gamma.dim() :] == gamma.shape,
        f"{name} expected gamma to have the trailing dimensions of self "
        f"{list(self.shape)}, got {list(gamma.shape)}",
    )
    check(
        dy.shape == self.shape and dy.dtype == self.dtype,
        f"{name} expected dy like self, {self.dtype} {list(self.shape)}, "
        f"got {dy.dtype} {list(dy.shape)}",
    )
    check(
        gamma.dtype in (self.dtype, torch.float32),
        f"{name} expected gamma of self's dtype {self.dtype} or float32, got {gamma.dtype}",
    )
    rows = [*self.shape[: self.dim() - gamma.dim()], *[1 for _ in gamma.shape]]
    check(
        list(rstd.shape) == rows,
        f"{name} expected rstd of shape {rows}, got {list(rstd.shape)}",
    )
    return gradients(dy, self, gamma, rstd)


@op.function
def body(b, call, dy, self, gamma, rstd):
    axes = list(range(-call.rank("gamma"), 0))
    dy = b.Cast(dy, to="float32")
    normalized = b.Mul(b.Cast(self, to="float32"), rstd)
    g = b.Mul(dy, b.Cast(gamma, to="float32"))
    mean = b.ReduceMean(b.Mul(g, normalized), axes, keepdims=1)
    dx = b.Mul(b.Sub(g, b.Mul(normalized, mean)), rstd)
    rows = b.Reshape(b.Mul(dy, normalized), b.Concat([-1], b.Shape(gamma), axis=0))
    return b.Cast(dx, to=call.dtype("self")), b.ReduceSum(rows, [0], keepdims=0)


@op.samples
def samples(make):
    def call(shape, width, dtype=None):
        x, gamma = make(*shape), make(*width, dtype=dtype)
        rows = [*shape[: len(shape) - len(width)], *[1 for _ in width]]
        return make(*shape), x, gamma, make.uniform(*rows, low=0.5, high=2.0, dtype="float32")

    # g = [1, 1], n = [1, -1]: mean(g n) = 0.
    yield Sample(
        make.tensor([[1.0, 2.0]]),
        make.tensor([[2.0, -2.0]]),
        make.tensor([1.0, 0.5]),
        make.tensor([[0.5]], "float32"),
        id="by_hand",
        expect=[[[0.5, 0.5]], [1.0, -2.0]],
    )
    yield Sample(*call([2, 3, 64], [64]))
    yield Sample(*call([5, 576], [576], "float32"), id="float32_gamma")
    yield Sample(*call([2, 3, 4, 8], [4, 8]), id="two_axes")
    yield Sample(*call([37], [37]), id="whole_tensor")
    yield Sample(*call([150, 300], [300]), id="several_threads")
    yield Sample(*call([3, 1], [1]), id="one_element")
    yield Sample(*call([0, 64], [64]), id="no_rows")
    _, x, gamma, rstd = call([8, 6], [6])
    yield Sample(make(6, 8).t(), x, gamma, rstd, id="not_contiguous")


_NAME = r"\[npu_rms_norm_backward\] "
op.errors(
    lambda make: Sample(make(2, 8), make(2, 8), make(4), make(2, 1, dtype="float32")),
    match=_NAME + r"expected gamma to have the trailing dimensions .* \[2, 8\], got \[4\]",
    id="gamma_shape",
)
op.errors(
    lambda make: Sample(make(8, 2), make(2, 8), make(8), make(2, 1, dtype="float32")),
    match=_NAME + r"expected dy like self, .*\[2, 8\], got .*\[8, 2\]",
    id="dy_shape",
)
op.errors(
    lambda make: Sample(make(2, 8), make(2, 8), make(8), make(2, dtype="float32")),
    match=_NAME + r"expected rstd of shape \[2, 1\], got \[2\]",
    id="rstd_shape",
)
op.errors(
    lambda make: Sample(
        make(2, 8, dtype="float32"),
        make(2, 8, dtype="float32"),
        make(8, dtype="float16"),
        make(2, 1, dtype="float32"),
    ),
    match=_NAME + r"expected gamma of self's dtype .*float32, got .*float16",
    id="gamma_dtype",
)
op.errors(
    lambda make: Sample(make(2, 4), make(2, 4), make(1, 2, 4), make(1, dtype="float32")),
    match=r"\[npu_rms_norm_backward\] expected gamma to have the trailing dimensions of self "
    r"\[2, 4\], got \[1, 2, 4\]",
    id="gamma_rank",
)
