"""Swish-gated linear unit: halves one axis, SiLU(first half) * second half.

Source: torch_npu.npu_swiglu.
"""

from onnxruntime_npu.opdef import FLOATS, Sample, check, npu_op, torch, wide

from ._swiglu import gradient

op = npu_op(
    "npu_swiglu(Tensor self, int dim=-1) -> Tensor",
    onnx="NPUSwiGlu",
    dtypes={"self": FLOATS, "y": FLOATS},
)


@op.reference
def reference(self, dim=-1):
    """y = a * sigmoid(a) * b in float32, rounded once; a, b are the halves of self along dim.

    y: the shape of self with axis dim halved. The first half is the activated one.
    """
    rank = self.dim()
    check(rank >= 1, "[npu_swiglu] expected self of rank >= 1, got a scalar")
    check(-rank <= dim < rank, f"[npu_swiglu] expected dim in [{-rank}, {rank - 1}], got {dim}")
    size = self.shape[dim]
    check(size % 2 == 0, f"[npu_swiglu] expected an even size of axis {dim}, got {size}")
    x = wide(self)
    a, b = x.split(size // 2, dim) if size else (x, x)
    return (a * torch.sigmoid(a) * b).to(self.dtype)


@op.function
def body(b, call, self):
    first, second = b.Split(
        b.Cast(self, to="float32"), axis=call.attrs["dim"], num_outputs=2, _outputs=2
    )
    return b.Cast(b.Mul(b.Mul(first, b.Sigmoid(first)), second), to=call.dtype("self"))


@op.backward("self")
def backward(grad_y, self, dim):
    """npu_swiglu_backward; in float64 and for second derivatives its formula."""
    if self.dtype == torch.float64 or torch.is_grad_enabled():
        return gradient(grad_y, self, dim)
    return torch.ops.npu.npu_swiglu_backward(grad_y, self, dim)


@op.samples
def samples(make):
    yield Sample(
        make.tensor([[1.0, -1.0, 2.0, 0.5]]), -1, id="catalogue", expect=[[[1.46212, -0.134471]]]
    )
    yield Sample(make(2, 3, 64))
    yield Sample(make(4, 6, 5), dim=1, id="middle_axis")
    yield Sample(make(6, 7), dim=0, id="first_axis")
    yield Sample(make(6, 7, 3), dim=-3, id="first_axis_from_the_end")
    yield Sample(make(2), id="one_pair")
    yield Sample(make(3, 20006, scale=3.0), id="several_threads")
    yield Sample(make(0, 64), id="empty_batch")
    yield Sample(make(64, 6).t(), id="not_contiguous")


op.errors(
    lambda make: Sample(make(2, 7)),
    match=r"\[npu_swiglu\] expected an even size of axis -1, got 7",
    id="odd",
)
op.errors(
    lambda make: Sample(make(2, 8), dim=2),
    match=r"\[npu_swiglu\] expected dim in \[-2, 1\], got 2",
    id="dim",
)
op.errors(
    lambda make: Sample(make()),
    match=r"\[npu_swiglu\] expected self of rank >= 1, got a scalar",
    id="scalar",
)
