"""GELU-gated linear unit: halves one axis, GELU(one half) * other half; also returns the GELU.

Source: torch_npu.npu_geglu.
"""

import math

from onnxruntime_npu.opdef import FLOATS, Sample, check, npu_op, torch, wide

op = npu_op(
    "npu_geglu(Tensor self, int dim=-1, int approximate=1, bool activate_left=False)"
    " -> (Tensor, Tensor)",
    onnx="NPUGeGlu",
    outputs=["y", "gelu"],
    dtypes={"self": FLOATS, "y": FLOATS, "gelu": FLOATS},
)


@op.reference
def reference(self, dim=-1, approximate=1, activate_left=False):
    """gelu = GELU(activated half), y = other half * gelu, in float32, each rounded once.

    The activated half is the second one unless activate_left; approximate 0 is the erf form, 1 the
    tanh form. y, gelu: the shape of self with axis dim halved.
    """
    rank = self.dim()
    check(rank >= 1, "[npu_geglu] expected self of rank >= 1, got a scalar")
    check(-rank <= dim < rank, f"[npu_geglu] expected dim in [{-rank}, {rank - 1}], got {dim}")
    check(
        approximate in (0, 1),
        f"[npu_geglu] expected approximate 0 (erf) or 1 (tanh), got {approximate}",
    )
    size = self.shape[dim]
    check(size % 2 == 0, f"[npu_geglu] expected an even size of axis {dim}, got {size}")
    x = wide(self)
    left, right = x.split(size // 2, dim) if size else (x, x)
    a, other = (left, right) if activate_left else (right, left)
    if approximate == 0:
        inner = torch.erf(a / math.sqrt(2))
    else:
        inner = torch.tanh(math.sqrt(2 / math.pi) * (a + 0.044715 * a * a * a))
    gelu = 0.5 * a * (1 + inner)
    return (other * gelu).to(self.dtype), gelu.to(self.dtype)


@op.function
def body(b, call, self):
    left, right = b.Split(
        b.Cast(self, to="float32"), axis=call.attrs["dim"], num_outputs=2, _outputs=2
    )
    x, other = (left, right) if call.attrs["activate_left"] else (right, left)
    if call.attrs["approximate"] == 0:
        inner = b.Erf(b.Mul(x, 1 / math.sqrt(2)))
    else:
        cubed = b.Mul(b.Mul(b.Mul(x, x), x), 0.044715)
        inner = b.Tanh(b.Mul(b.Add(x, cubed), math.sqrt(2 / math.pi)))
    gelu = b.Mul(b.Mul(x, 0.5), b.Add(inner, 1.0))
    dtype = call.dtype("self")
    return b.Cast(b.Mul(other, gelu), to=dtype), b.Cast(gelu, to=dtype)


@op.backward("self")
def backward(grad_y, self, dim, approximate, activate_left):
    """Of the activated half a: dy other GELU'(a); of the other half: dy GELU(a)."""
    compute = torch.promote_types(self.dtype, torch.float32)
    form = "tanh" if approximate else "none"
    dy = grad_y.to(compute)
    size = self.shape[dim] // 2
    halves = [self.narrow(dim, start, size).to(compute) for start in (0, size)]
    a, other = halves if activate_left else reversed(halves)
    da = torch.ops.aten.gelu_backward(dy * other, a, approximate=form)
    dother = dy * torch.nn.functional.gelu(a, approximate=form)
    return torch.cat((da, dother) if activate_left else (dother, da), dim).to(self.dtype)


@op.samples
def samples(make):
    x = [[1.0, -1.0, 2.0, 0.5]]
    yield Sample(
        make.tensor(x),
        -1,
        1,
        False,
        id="catalogue_tanh_right",
        expect=[[[1.9546, -0.345714]], [[1.9546, 0.345714]]],
    )
    yield Sample(
        make.tensor(x),
        dim=-1,
        approximate=0,
        activate_left=True,
        id="catalogue_erf_left",
        expect=[[[1.68269, -0.0793276]], [[0.841345, -0.158655]]],
    )
    yield Sample(make(2, 3, 64))
    yield Sample(make(4, 6, 5), dim=1, approximate=0, id="middle_axis")
    yield Sample(make(6, 7), dim=0, activate_left=True, id="first_axis")
    yield Sample(make(3, 20006, scale=3.0), id="several_threads")
    yield Sample(make(0, 64), id="empty_batch")
    yield Sample(make(64, 6).t(), id="not_contiguous")


op.errors(
    lambda make: Sample(make(2, 7)),
    match=r"\[npu_geglu\] expected an even size of axis -1, got 7",
    id="odd",
)
op.errors(
    lambda make: Sample(make(2, 8), dim=-3),
    match=r"\[npu_geglu\] expected dim in \[-2, 1\], got -3",
    id="dim",
)
op.errors(
    lambda make: Sample(make(2, 8), approximate=2),
    match=r"\[npu_geglu\] expected approximate 0 \(erf\) or 1 \(tanh\), got 2",
    id="approximate",
)
op.errors(
    lambda make: Sample(make()),
    match=r"\[npu_geglu\] expected self of rank >= 1, got a scalar",
    id="scalar",
)
op.errors(
    lambda make: Sample(make(2, 8), dim=2),
    match=r"\[npu_geglu\] expected dim in \[-2, 1\], got 2",
    id="dim_too_large",
)
