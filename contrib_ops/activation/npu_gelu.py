"""GELU with a choice of the error-function or the tanh form. Source: torch_npu.npu_gelu."""

import math

from onnxruntime_npu.opdef import FLOATS, Sample, check, npu_op, torch, wide
from onnxruntime_npu.opdef.gradients import check_gradient

op = npu_op(
    "npu_gelu(Tensor self, *, str approximate='none') -> Tensor",
    onnx="NPUGeluV2",
    dtypes={"self": FLOATS, "y": FLOATS},
    may_alias=[("self", "y")],
)


@op.reference
def reference(self, approximate="none"):
    """GELU of x in float32, rounded once; y has the shape and dtype of self.

    none: x/2 * (1 + erf(x / sqrt 2)); tanh: x/2 * (1 + tanh(sqrt(2/pi) * (x + 0.044715 x^3))).
    """
    check(
        approximate in ("none", "tanh"),
        f"[npu_gelu] expected approximate 'none' or 'tanh', got '{approximate}'",
    )
    x = wide(self)
    if approximate == "none":
        inner = torch.erf(x / math.sqrt(2))
    else:
        inner = torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x))
    return (0.5 * x * (1 + inner)).to(self.dtype)


@op.function
def body(b, call, self):
    x = b.Cast(self, to="float32")
    if call.attrs["approximate"] == "none":
        inner = b.Erf(b.Mul(x, 1 / math.sqrt(2)))
    else:
        cubed = b.Mul(b.Mul(b.Mul(x, x), x), 0.044715)
        inner = b.Tanh(b.Mul(b.Add(x, cubed), math.sqrt(2 / math.pi)))
    return b.Cast(b.Mul(b.Mul(x, 0.5), b.Add(inner, 1.0)), to=call.dtype("self"))


@op.backward("self")
def backward(grad_y, self, approximate):
    """dx = dy GELU'(x) of the form that was computed."""
    return torch.ops.aten.gelu_backward(grad_y, self, approximate=approximate)


@op.partner(
    "npu_gelu_backward(Tensor grad_output, Tensor self, *, str approximate='none') -> Tensor"
)
def npu_gelu_backward(grad_output, self, *, approximate="none"):
    """Return the gradient of npu_gelu's argument."""
    check_gradient("npu_gelu_backward", grad_output, self)
    return backward(grad_output, self, approximate)


@op.samples
def samples(make):
    x = [-2.0, -1.0, 0.0, 0.5, 1.0, 3.0]
    yield Sample(
        make.tensor(x),
        id="catalogue_none",
        expect=[[-0.0455003, -0.158655, 0.0, 0.345731, 0.841345, 2.99595]],
    )
    yield Sample(
        make.tensor(x),
        approximate="tanh",
        id="catalogue_tanh",
        expect=[[-0.0454023, -0.158808, 0.0, 0.345714, 0.841192, 2.99636]],
    )
    for approximate in ("none", "tanh"):
        yield Sample(make(3, 5, 37), approximate=approximate, id=approximate)
        yield Sample(
            make(2, 20000, scale=3.0), approximate=approximate, id=f"threads_{approximate}"
        )
        yield Sample(
            make.tensor([-1e4, -100.0, -10.0, 10.0, 1e4]),
            approximate=approximate,
            id=f"saturated_{approximate}",
        )
    yield Sample(make(), id="scalar")
    yield Sample(make(0, 4), id="empty")
    yield Sample(make(8, 6).t(), id="not_contiguous")


op.errors(
    lambda make: Sample(make(2, 8), approximate="erf"),
    match=r"\[npu_gelu\] expected approximate 'none' or 'tanh', got 'erf'",
    id="approximate",
)
