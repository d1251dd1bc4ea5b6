"""The gradient of npu_swiglu. Source: torch_npu.npu_swiglu_backward."""

from onnxruntime_npu.opdef import FLOATS, Sample, check, npu_op

from ._swiglu import gradient

op = npu_op(
    "npu_swiglu_backward(Tensor grad_output, Tensor self, int dim=-1) -> Tensor",
    onnx="NPUSwiGluBackward",
    dtypes={"grad_output": FLOATS, "self": FLOATS, "y": FLOATS},
    may_alias=[("self", "y")],
)


@op.reference
def reference(grad_output, self, dim=-1):
    """y = [dy b silu'(a), dy silu(a)] in float32, rounded once; a, b are the halves of self.

    self: of even size along dim; grad_output: self's dtype, axis dim half as long; y: like self.
    """
    name, rank = "[npu_swiglu_backward]", self.dim()
    check(rank >= 1, f"{name} expected self of rank >= 1, got a scalar")
    check(-rank <= dim < rank, f"{name} expected dim in [{-rank}, {rank - 1}], got {dim}")
    size = self.shape[dim]
    check(size % 2 == 0, f"{name} expected an even size of axis {dim}, got {size}")
    half = list(self.shape)
    half[dim] = size // 2
    check(
        list(grad_output.shape) == half and grad_output.dtype == self.dtype,
        f"{name} expected grad_output {self.dtype} {half}, "
        f"got {grad_output.dtype} {list(grad_output.shape)}",
    )
    return gradient(grad_output, self, dim)


@op.function
def body(b, call, grad_output, self):
    dim = call.attrs["dim"]
    first, second = b.Split(b.Cast(self, to="float32"), axis=dim, num_outputs=2, _outputs=2)
    dy = b.Cast(grad_output, to="float32")
    s = b.Sigmoid(first)
    slope = b.Mul(s, b.Add(b.Mul(first, b.Sub(1.0, s)), 1.0))
    halves = b.Mul(b.Mul(dy, second), slope), b.Mul(dy, b.Mul(first, s))
    return b.Cast(b.Concat(*halves, axis=dim), to=call.dtype("self"))


@op.samples
def samples(make):
    # silu'(1) = 0.927671, silu(1) = 0.731059; silu'(0) = 0.5, silu(0) = 0.
    yield Sample(
        make.tensor([[2.0, 1.0]]),
        make.tensor([[1.0, 0.0, 3.0, -4.0]]),
        id="by_hand",
        expect=[[[5.56602, -2.0, 1.46212, 0.0]]],
    )
    yield Sample(make(2, 3, 32), make(2, 3, 64))
    yield Sample(make(4, 3, 5), make(4, 6, 5), dim=1, id="middle_axis")
    yield Sample(make(3, 7), make(6, 7), 0, id="first_axis")
    yield Sample(make(1), make(2), id="one_pair")
    yield Sample(make(3, 10003), make(3, 20006, scale=3.0), id="several_threads")
    yield Sample(make(0, 32), make(0, 64), id="empty_batch")
    yield Sample(make(3, 64).t(), make(6, 64).t(), id="not_contiguous")


_NAME = r"\[npu_swiglu_backward\] "
op.errors(
    lambda make: Sample(make(2, 3), make(2, 7)),
    match=_NAME + r"expected an even size of axis -1, got 7",
    id="odd",
)
op.errors(
    lambda make: Sample(make(2, 4), make(2, 8), dim=2),
    match=_NAME + r"expected dim in \[-2, 1\], got 2",
    id="dim",
)
op.errors(
    lambda make: Sample(make(), make()),
    match=_NAME + r"expected self of rank >= 1, got a scalar",
    id="scalar",
)
op.errors(
    lambda make: Sample(make(2, 8), make(2, 8)),
    match=_NAME + r"expected grad_output .*\[2, 4\], got .*\[2, 8\]",
    id="gradient_shape",
)
