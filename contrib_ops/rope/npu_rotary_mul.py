"""Rotary position embedding, x * r1 + rotate(x) * r2. Source: torch_npu.npu_rotary_mul."""

from onnxruntime_npu.opdef import FLOATS, Sample, check, npu_op, torch

from ._rotation import rotation_tolerances

op = npu_op(
    "npu_rotary_mul(Tensor self, Tensor r1, Tensor r2, str rotary_mode='half',"
    " Tensor? rotate=None) -> Tensor",
    onnx="NPURotaryMul",
    dtypes={"self": FLOATS, "r1": FLOATS, "r2": FLOATS, "rotate": FLOATS, "y": FLOATS},
    may_alias=[("self", "y")],
)


def _broadcasts(table, x):
    missing = len(x) - len(table)
    return missing >= 0 and all(t in (1, s) for t, s in zip(table, x[missing:], strict=True))


def _rotated(x, rotary_mode):
    if rotary_mode == "half":
        half = x.shape[-1] // 2
        return torch.cat((-x[..., half:], x[..., :half]), -1)
    return torch.stack((-x[..., 1::2], x[..., ::2]), -1).flatten(-2)


def _swapped(table, rotary_mode):
    """Return the table with its columns permuted as by rotation."""
    if table.shape[-1:].numel() == 1:
        return table
    if rotary_mode == "half":
        return table.roll(table.shape[-1] // 2, -1)
    return table.unflatten(-1, (-1, 2)).flip(-1).flatten(-2)


@op.reference
def reference(self, r1, r2, rotary_mode="half", rotate=None):
    """y = x * r1 + rot * r2 in float32, rounded once; r1, r2 broadcast to x and hold cos and sin.

    self: [.., D]; r1, r2: of one floating dtype, of full width D or 1. rot is x @ rotate if the
    [D, D] matrix is given; otherwise, with D even, [-x2, x1] of the halves x1, x2 of the last axis
    (half), or -x[2i + 1] at 2i and x[2i] at 2i + 1 (interleave). y: like self.
    """
    check(
        rotary_mode in ("half", "interleave"),
        "[npu_rotary_mul] The rotary_mode of npu_rotary_mul should be half or interleave, "
        f"but got {rotary_mode}",
    )
    check(self.dim() >= 1, "[npu_rotary_mul] expected self of rank >= 1, got a scalar")
    for name, table in (("r1", r1), ("r2", r2)):
        check(
            _broadcasts(table.shape, self.shape),
            f"[npu_rotary_mul] expected {name} that broadcasts to self {list(self.shape)}, "
            f"got {list(table.shape)}",
        )
    check(
        r1.dtype == r2.dtype,
        f"[npu_rotary_mul] expected r1 and r2 of one dtype, got {r1.dtype} and {r2.dtype}",
    )
    d = self.shape[-1]
    compute = torch.promote_types(self.dtype, torch.float32)
    x = self.to(compute)
    if rotate is not None:
        check(
            tuple(rotate.shape) == (d, d),
            f"[npu_rotary_mul] expected rotate of shape {[d, d]}, got {list(rotate.shape)}",
        )
        rotated = x @ rotate.to(compute)
    else:
        check(
            d % 2 == 0,
            f"[npu_rotary_mul] expected an even last dimension of self, got {list(self.shape)}",
        )
        rotated = _rotated(x, rotary_mode)
    return (x * r1.to(compute) + rotated * r2.to(compute)).to(self.dtype)


@op.function
def body(b, call, self, r1, r2, rotate):
    x = b.Cast(self, to="float32")
    if rotate is not None:
        rotated = b.MatMul(x, b.Cast(rotate, to="float32"))
    elif call.attrs["rotary_mode"] == "half":
        first, second = b.Split(x, axis=-1, num_outputs=2, _outputs=2)
        rotated = b.Concat(b.Neg(second), first, axis=-1)
    else:
        even = b.Slice(x, [0], [2**62], [-1], [2])
        odd = b.Slice(x, [1], [2**62], [-1], [2])
        pairs = b.Concat(b.Unsqueeze(b.Neg(odd), [-1]), b.Unsqueeze(even, [-1]), axis=-1)
        rotated = b.Reshape(pairs, b.Shape(x))
    cos, sin = b.Cast(r1, to="float32"), b.Cast(r2, to="float32")
    y = b.Add(b.Mul(x, cos), b.Mul(rotated, sin))
    return b.Cast(y, to=call.dtype("self"))


def _half_turn(make, d):
    """Return the matrix for which x @ rotate is the half mode's rotation."""
    matrix = torch.zeros(d, d)
    matrix[: d // 2, d // 2 :] = torch.eye(d // 2)
    matrix[d // 2 :, : d // 2] = -torch.eye(d // 2)
    return make.tensor(matrix.tolist())


@op.backward("self", "r1", "r2")
def backward(grad_y, self, r1, r2, rotary_mode, rotate, needs):
    """dx = dy r1 + rot^T(dy r2), dr1 = dy x, dr2 = dy rot(x), summed where r1, r2 broadcast.

    The transpose of rot, a quarter turn, is its negative, so dx is a rotary embedding of dy with
    r2 negated and its columns permuted as by rot.
    """
    compute = torch.promote_types(self.dtype, torch.float32)
    dy, x = grad_y.to(compute), self.to(compute)
    dx = dr1 = dr2 = None
    if "self" in needs and rotate is None and self.dtype != torch.float64:
        turned = _swapped(r2, rotary_mode).neg()
        dx = torch.ops.npu.npu_rotary_mul(grad_y.to(self.dtype), r1, turned, rotary_mode)
    elif "self" in needs:
        turned = dy * r2.to(compute)
        back = -_rotated(turned, rotary_mode) if rotate is None else turned @ rotate.to(compute).t()
        dx = dy * r1.to(compute) + back
    if "r1" in needs:
        dr1 = (dy * x).sum_to_size(r1.shape)
    if "r2" in needs:
        rotated = _rotated(x, rotary_mode) if rotate is None else x @ rotate.to(compute)
        dr2 = (dy * rotated).sum_to_size(r2.shape)
    return dx, dr1, dr2


@op.samples
def samples(make):
    x, r1, r2 = [1.0, 2.0, 3.0, 4.0], [0.5, 0.6, 0.7, 0.8], [0.1, 0.2, 0.3, 0.4]
    vector = [make.tensor([[[v]]]) for v in (x, r1, r2)]
    yield Sample(*vector, "half", id="catalogue_half", expect=[[[[[0.2, 0.4, 2.4, 4.0]]]]])
    yield Sample(
        *vector, "interleave", id="catalogue_interleave", expect=[[[[[0.3, 1.4, 0.9, 4.4]]]]]
    )
    yield Sample(
        *vector, rotate=_half_turn(make, 4), id="matrix", expect=[[[[[0.2, 0.4, 2.4, 4.0]]]]]
    )
    for mode in ("half", "interleave"):
        yield Sample(
            make(2, 5, 3, 64), make(1, 5, 1, 64), make(1, 5, 1, 64), mode, id=f"bsnd_{mode}"
        )
        yield Sample(
            make(2, 3, 5, 64), make(2, 1, 5, 64), make(2, 1, 5, 64), mode, id=f"bnsd_{mode}"
        )
        yield Sample(
            make(5, 2, 3, 32), make(5, 1, 1, 32), make(5, 1, 1, 32), mode, id=f"sbnd_{mode}"
        )
        yield Sample(make(7, 3, 128), make(1, 1, 128), make(1, 1, 128), mode, id=f"tnd_{mode}")
        yield Sample(make(2, 3, 6), make(2, 3, 6), make(2, 3, 6), mode, id=f"full_tables_{mode}")
        yield Sample(make(2, 3, 6), make(6), make(3, 1), mode, id=f"numpy_broadcast_{mode}")
        yield Sample(make(2, 700), make(1, 700), make(2, 1), mode, id=f"long_row_{mode}")
    yield Sample(make(1, 1, 9, 64), make(1, 1, 1, 64), make(1, 1, 1, 64), id="decode")
    yield Sample(make(1, 130, 3, 64), make(1, 130, 1, 64), make(1, 130, 1, 64), id="prefill")
    float32 = [make(1, 5, 1, 64, dtype="float32") for _ in range(2)]
    yield Sample(make(2, 5, 3, 64), *float32, id="float32_tables")
    yield Sample(make(2, 5, 3, 8), make(5, 1, 8), make(5, 1, 8), rotate=make(8, 8), id="any_matrix")
    yield Sample(make(3, 7), make(7), make(7), rotate=make(7, 7), id="matrix_of_odd_size")
    yield Sample(make(0, 5, 3, 8), make(1, 5, 1, 8), make(1, 5, 1, 8), id="empty_batch")
    yield Sample(
        make(2, 3, 5, 8).transpose(1, 2), make(5, 1, 8), make(5, 1, 8), id="not_contiguous"
    )


rotation_tolerances(op)

op.errors(
    lambda make: Sample(make(1, 2, 8), make(8), make(8), "quarter"),
    match="The rotary_mode of npu_rotary_mul should be half or interleave, but got quarter",
    id="mode",
)
op.errors(
    lambda make: Sample(make(1, 2, 7), make(7), make(7)),
    match=r"\[npu_rotary_mul\] expected an even last dimension of self, got \[1, 2, 7\]",
    id="odd",
)
op.errors(
    lambda make: Sample(make(1, 2, 8), make(3, 8), make(2, 8)),
    match=r"\[npu_rotary_mul\] expected r1 that broadcasts to self \[1, 2, 8\], got \[3, 8\]",
    id="r1_shape",
)
op.errors(
    lambda make: Sample(make(2, 8), make(2, 8), make(1, 2, 8)),
    match=r"\[npu_rotary_mul\] expected r2 that broadcasts to self \[2, 8\], got \[1, 2, 8\]",
    id="r2_rank",
)
op.errors(
    lambda make: Sample(make(2, 8), make(2, 8, dtype="float32"), make(2, 8, dtype="float16")),
    match=r"\[npu_rotary_mul\] expected r1 and r2 of one dtype, got .*float32 and .*float16",
    id="table_dtypes",
)
op.errors(
    lambda make: Sample(make(2, 8), make(2, 8), make(2, 8), rotate=make(8, 4)),
    match=r"\[npu_rotary_mul\] expected rotate of shape \[8, 8\], got \[8, 4\]",
    id="rotate_shape",
)
