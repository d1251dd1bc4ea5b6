"""Sigmoid approximation of GELU, also called fast_gelu.

Source: torch_npu.npu_fast_gelu, torch_npu.fast_gelu.
"""

from onnxruntime_npu.opdef import FLOATS, Sample, npu_op, torch, wide
from onnxruntime_npu.opdef.gradients import check_gradient, silu_gradient

op = npu_op(
    "npu_fast_gelu(Tensor self) -> Tensor",
    onnx="NPUFastGelu",
    dtypes={"self": FLOATS, "y": FLOATS},
    torch_aliases=["fast_gelu(Tensor self) -> Tensor"],
    may_alias=[("self", "y")],
)


@op.reference
def reference(self):
    """y = x * sigmoid(1.702 x) in float32, rounded once; y has the shape and dtype of self."""
    x = wide(self)
    return (x * torch.sigmoid(1.702 * x)).to(self.dtype)


@op.function
def body(b, call, self):
    x = b.Cast(self, to="float32")
    return b.Cast(b.Mul(x, b.Sigmoid(b.Mul(x, 1.702))), to=call.dtype("self"))


@op.backward("self")
def backward(grad_y, self):
    """dx = dy silu'(1.702 x), because y = silu(1.702 x) / 1.702."""
    compute = torch.promote_types(self.dtype, torch.float32)
    scaled = 1.702 * self.to(compute)
    return silu_gradient(grad_y.to(compute), scaled).to(self.dtype)


@op.partner("npu_fast_gelu_backward(Tensor grad, Tensor self) -> Tensor")
def npu_fast_gelu_backward(grad, self):
    """Return the gradient of npu_fast_gelu's argument."""
    check_gradient("npu_fast_gelu_backward", grad, self)
    return backward(grad, self)


@op.samples
def samples(make):
    yield Sample(
        make.tensor([-2.0, -1.0, 0.0, 0.5, 1.0, 3.0]),
        id="catalogue",
        expect=[[-0.0643414, -0.154204, 0.0, 0.350388, 0.845796, 2.98193]],
    )
    yield Sample(
        make.tensor([1.0, 2.0, 3.0, 4.0]),
        id="catalogue_fast_gelu",
        expect=[[0.845796, 1.93566, 2.98193, 3.99558]],
    )
    yield Sample(make(3, 5, 37))
    yield Sample(make(2, 20000, scale=3.0), id="several_threads")
    yield Sample(make.tensor([-1e4, -100.0, -50.0, 50.0, 1e4]), id="saturated")
    yield Sample(make(), id="scalar")
    yield Sample(make(0, 4), id="empty")
    yield Sample(make(8, 6).t(), id="not_contiguous")
