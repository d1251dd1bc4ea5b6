"""SiLU (Swish), x * sigmoid(x), with an in-place twin. Source: torch_npu.npu_silu."""

from onnxruntime_npu.opdef import FLOATS, Sample, npu_op, torch, wide
from onnxruntime_npu.opdef.gradients import check_gradient, silu_gradient

op = npu_op(
    "npu_silu(Tensor self) -> Tensor",
    onnx="NPUSilu",
    dtypes={"self": FLOATS, "y": FLOATS},
    inplace="npu_silu_(Tensor(a!) self) -> Tensor(a!)",
    may_alias=[("self", "y")],
)


@op.reference
def reference(self):
    """y = x * sigmoid(x) in float32, rounded once; y has the shape and dtype of self."""
    x = wide(self)
    return (x * torch.sigmoid(x)).to(self.dtype)


@op.function
def body(b, call, self):
    x = b.Cast(self, to="float32")
    return b.Cast(b.Mul(x, b.Sigmoid(x)), to=call.dtype("self"))


@op.backward("self")
def backward(grad_y, self):
    """dx = dy (s + x s (1 - s)) with s = sigmoid(x)."""
    return silu_gradient(grad_y, self)


@op.partner("npu_silu_backward(Tensor grad_output, Tensor x0, Tensor x1) -> Tensor")
def npu_silu_backward(grad_output, x0, x1):
    """Return the gradient of npu_silu's argument x0; its result x1 is not needed."""
    check_gradient("npu_silu_backward", grad_output, x0)
    return backward(grad_output, x0)


@op.samples
def samples(make):
    yield Sample(
        make.tensor([-2.0, -1.0, 0.0, 0.5, 1.0, 3.0]),
        id="catalogue",
        expect=[[-0.238406, -0.268941, 0.0, 0.31123, 0.731059, 2.85772]],
    )
    yield Sample(make(3, 5, 37))
    yield Sample(make(2, 20000, scale=3.0), id="several_threads")
    yield Sample(make.tensor([-1e4, -100.0, -50.0, 50.0, 1e4]), id="saturated")
    yield Sample(make(), id="scalar")
    yield Sample(make(0, 4), id="empty")
    yield Sample(make(8, 6).t(), id="not_contiguous")
