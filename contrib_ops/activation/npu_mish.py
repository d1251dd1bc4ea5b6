"""Mish, x * tanh(softplus(x)). Source: torch_npu.npu_mish."""

from onnxruntime_npu.opdef import FLOATS, Sample, npu_op, torch, wide
from onnxruntime_npu.opdef.gradients import check_gradient

op = npu_op(
    "npu_mish(Tensor self) -> Tensor",
    onnx="NPUMish",
    dtypes={"self": FLOATS, "y": FLOATS},
    may_alias=[("self", "y")],
)


@op.reference
def reference(self):
    """y = x * tanh(ln(1 + e^x)) in float32, rounded once; y has the shape and dtype of self."""
    x = wide(self)
    softplus = x.clamp(min=0) + torch.log1p(torch.exp(-x.abs()))
    return (x * torch.tanh(softplus)).to(self.dtype)


@op.function
def body(b, call, self):
    x = b.Cast(self, to="float32")
    softplus = b.Add(b.Relu(x), b.Log(b.Add(b.Exp(b.Neg(b.Abs(x))), 1.0)))
    return b.Cast(b.Mul(x, b.Tanh(softplus)), to=call.dtype("self"))


@op.backward("self")
def backward(grad_y, self):
    """dx = dy (t + x sigmoid(x) (1 - t^2)) with t = tanh(softplus(x))."""
    x = wide(self)
    t = torch.tanh(torch.nn.functional.softplus(x))
    return (grad_y * (t + x * torch.sigmoid(x) * (1 - t * t))).to(self.dtype)


@op.partner("npu_mish_backward(Tensor grad, Tensor input) -> Tensor")
def npu_mish_backward(grad, input):
    """Return the gradient of npu_mish's argument."""
    check_gradient("npu_mish_backward", grad, input)
    return backward(grad, input)


@op.samples
def samples(make):
    yield Sample(
        make.tensor([-2.0, -1.0, 0.0, 0.5, 1.0, 3.0]),
        id="catalogue",
        expect=[[-0.252501, -0.303401, 0.0, 0.375245, 0.865098, 2.98654]],
    )
    yield Sample(make(3, 5, 37))
    yield Sample(make(2, 20000, scale=3.0), id="several_threads")
    yield Sample(make.tensor([-1e4, -100.0, -50.0, 19.9, 20.1, 50.0, 1e4]), id="saturated")
    yield Sample(make(), id="scalar")
    yield Sample(make(0, 4), id="empty")
    yield Sample(make(8, 6).t(), id="not_contiguous")
