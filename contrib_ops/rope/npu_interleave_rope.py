"""Rotary embedding of interleaved pairs that leaves them de-interleaved.

Source: torch_npu.npu_interleave_rope.
"""

from onnxruntime_npu.opdef import FLOATS, Sample, check, npu_op, torch

from ._rotation import rotation_tolerances

op = npu_op(
    "npu_interleave_rope(Tensor x, Tensor cos, Tensor sin) -> Tensor",
    onnx="NPUInterleaveRope",
    dtypes={"x": FLOATS, "cos": FLOATS, "sin": FLOATS, "y": FLOATS},
    may_alias=[("x", "y")],
)


def _broadcasts(table, x):
    missing = len(x) - len(table)
    return missing >= 0 and all(t in (1, s) for t, s in zip(table, x[missing:], strict=True))


@op.reference
def reference(x, cos, sin):
    """y = q * cos + [-q2, q1] * sin with q = [x[0::2], x[1::2]] = [q1, q2] along the last axis.

    x: [.., D] with D even, on Ascend [B, N, S, 64]; cos, sin: of x's dtype, broadcast to x; y: like
    x, computed in float32 and rounded once. The result has the order of q.
    """
    check(
        x.dim() >= 1 and x.shape[-1] % 2 == 0,
        f"[npu_interleave_rope] expected an even last dimension of x, got {list(x.shape)}",
    )
    for name, table in (("cos", cos), ("sin", sin)):
        check(
            _broadcasts(table.shape, x.shape),
            f"[npu_interleave_rope] expected {name} that broadcasts to x {list(x.shape)}, "
            f"got {list(table.shape)}",
        )
        check(
            table.dtype == x.dtype,
            f"[npu_interleave_rope] expected {name} of x's dtype {x.dtype}, got {table.dtype}",
        )
    compute = torch.promote_types(x.dtype, torch.float32)
    wide = x.to(compute)
    first, second = wide[..., ::2], wide[..., 1::2]
    q, turned = torch.cat((first, second), -1), torch.cat((-second, first), -1)
    return (q * cos.to(compute) + turned * sin.to(compute)).to(x.dtype)


@op.function
def body(b, call, x, cos, sin):
    wide = b.Cast(x, to="float32")
    first = b.Slice(wide, [0], [2**62], [-1], [2])
    second = b.Slice(wide, [1], [2**62], [-1], [2])
    q, turned = b.Concat(first, second, axis=-1), b.Concat(b.Neg(second), first, axis=-1)
    products = b.Mul(q, b.Cast(cos, to="float32")), b.Mul(turned, b.Cast(sin, to="float32"))
    return b.Cast(b.Add(*products), to=call.dtype("x"))


@op.samples
def samples(make):
    x, cos, sin = [1.0, 2.0, 3.0, 4.0], [0.5, 0.6, 0.7, 0.8], [0.1, 0.2, 0.3, 0.4]
    vector = [make.tensor([[[v]]]) for v in (x, cos, sin)]
    yield Sample(*vector, id="catalogue", expect=[[[[[0.3, 1.0, 1.7, 4.4]]]]])
    yield Sample(make(2, 3, 5, 64), make(2, 1, 5, 64), make(2, 1, 5, 64), id="bnsd")
    yield Sample(make(2, 3, 5, 64), make(2, 1, 1, 64), make(2, 1, 1, 64), id="one_position")
    yield Sample(make(1, 4, 2, 16), make(1, 4, 1, 16), make(1, 4, 1, 16), id="table_per_head")
    yield Sample(make(1, 128, 3, 64), make(1, 1, 3, 64), make(1, 1, 3, 64), id="threads")
    yield Sample(make(2, 700), make(700), make(2, 1), id="long_row")
    yield Sample(make(0, 3, 5, 8), make(1, 1, 5, 8), make(1, 1, 5, 8), id="empty_batch")
    yield Sample(
        make(2, 3, 5, 8).transpose(1, 2), make(5, 1, 8), make(5, 1, 8), id="not_contiguous"
    )


rotation_tolerances(op)

op.errors(
    lambda make: Sample(make(1, 2, 7), make(7), make(7)),
    match=r"\[npu_interleave_rope\] expected an even last dimension of x, got \[1, 2, 7\]",
    id="odd",
)
op.errors(
    lambda make: Sample(make(1, 2, 8), make(3, 8), make(2, 8)),
    match=r"\[npu_interleave_rope\] expected cos that broadcasts to x \[1, 2, 8\], got \[3, 8\]",
    id="cos_shape",
)
op.errors(
    lambda make: Sample(make(2, 8), make(8), make(1, 2, 8)),
    match=r"\[npu_interleave_rope\] expected sin that broadcasts to x \[2, 8\], got \[1, 2, 8\]",
    id="sin_rank",
)
op.errors(
    lambda make: Sample(
        make(2, 8, dtype="float16"), make(8, dtype="float16"), make(8, dtype="float32")
    ),
    match=r"\[npu_interleave_rope\] expected sin of x's dtype .*float16, got .*float32",
    id="sin_dtype",
)
