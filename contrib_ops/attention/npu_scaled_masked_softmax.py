"""Softmax over the last axis of scaled, masked logits.

Source: torch_npu.npu_scaled_masked_softmax.
"""

from onnxruntime_npu.opdef import FLOATS, Sample, check, npu_op, torch
from onnxruntime_npu.opdef.gradients import check_gradient

op = npu_op(
    "npu_scaled_masked_softmax(Tensor x, Tensor mask, Scalar scale=1, "
    "bool fixed_triu_mask=False) -> Tensor",
    onnx="NPUScaledMaskedSoftmax",
    outputs=["y"],
    dtypes={"x": FLOATS, "mask": ["bool"], "y": FLOATS},
    may_alias=[("x", "y")],
)

# A finite fill, as on the device: a fully masked row gives the uniform distribution.
MASKED = -10000.0


@op.reference
def reference(x, mask, scale=1, fixed_triu_mask=False):
    """y = softmax(where(mask, -10000, x * scale)) over the last axis, in float32; y rounds once.

    x: [.., W], rank >= 1; mask: bool, broadcastable to x, true = masked; y like x.
    fixed_triu_mask: only False; torch_npu documents no other value as supported.
    """
    name = "[npu_scaled_masked_softmax]"
    check(not fixed_triu_mask, f"{name} expected fixed_triu_mask False, got True")
    check(x.dim() >= 1, f"{name} expected x of rank >= 1, got a scalar")
    missing = x.dim() - mask.dim()
    check(
        missing >= 0
        and all(m in (1, n) for m, n in zip(mask.shape, x.shape[missing:], strict=True)),
        f"{name} expected a mask that broadcasts to x of shape {list(x.shape)}, "
        f"got {list(mask.shape)}",
    )
    compute = torch.float64 if x.dtype == torch.float64 else torch.float32
    logits = (x.to(compute) * scale).masked_fill(mask, MASKED)
    return logits.softmax(-1).to(x.dtype)


@op.function
def body(b, call, x, mask):
    logits = b.Mul(b.Cast(x, to="float32"), call.attrs["scale"])
    return b.Cast(b.Softmax(b.Where(mask, MASKED, logits), axis=-1), to=call.dtype("x"))


@op.backward("x")
def backward(grad_y, mask, scale, y):
    """dx = scale y (dy - sum(dy y)), 0 where masked."""
    dlogits = torch.ops.aten._softmax_backward_data(grad_y, y, -1, y.dtype)
    return dlogits.masked_fill(mask, 0) * scale


@op.partner(
    "npu_scaled_masked_softmax_backward(Tensor y_grad, Tensor y, Tensor mask, Scalar scale,"
    " bool fixed_triu_mask) -> Tensor"
)
def npu_scaled_masked_softmax_backward(y_grad, y, mask, scale, fixed_triu_mask):
    """Return the gradient of npu_scaled_masked_softmax's x; y is its result."""
    name = "npu_scaled_masked_softmax_backward"
    check_gradient(name, y_grad, y, "y")
    check(mask.dtype == torch.bool, f"[{name}] expected mask of dtype bool, got {mask.dtype}")
    check(not fixed_triu_mask, f"[{name}] expected fixed_triu_mask False, got True")
    return backward(y_grad, mask, scale, y)


@op.samples
def samples(make):
    yield Sample(
        make.tensor([[[[1.0, 2.0], [3.0, 4.0]]]]),
        make.tensor([[[[False, True], [False, False]]]], dtype="bool"),
        0.5,
        False,
        id="catalogue",
        expect=[[[[[1.0, 0.0], [0.377541, 0.622459]]]]],
    )
    yield Sample(make(2, 3, 32, 64), make.bools(2, 1, 32, 64), 0.125, id="heads_share_mask")
    yield Sample(make(2, 3, 5, 37), make.bools(5, 37), 2, id="mask_of_lower_rank")
    yield Sample(make(2, 2, 4, 33), make.bools(2, 1, 1, 33), id="padding_mask")
    yield Sample(make(3, 17), make.bools(3, 1), scale=-1.5, id="whole_rows_masked")
    yield Sample(make(2, 4, 130, scale=50.0), make.bools(1, 1, 1), id="large_logits")
    yield Sample(make(2, 3, 1), make.bools(2, 3, 1), id="one_column")
    yield Sample(make(0, 3, 8), make.bools(1, 3, 8), id="no_rows")
    yield Sample(make(2, 3, 0), make.bools(2, 3, 0), id="no_columns")
    yield Sample(make(6, 40).t(), make.bools(40, 6), id="not_contiguous")


op.errors(
    lambda make: Sample(make(2, 3, 8, 8), make.bools(2, 3, 8, 4)),
    match=r"\[npu_scaled_masked_softmax\] expected a mask that broadcasts .* got \[2, 3, 8, 4\]",
    id="mask_shape",
)
op.errors(
    lambda make: Sample(make(), make.bools()),
    match=r"\[npu_scaled_masked_softmax\] expected x of rank >= 1, got a scalar",
    id="scalar",
)
op.errors(
    lambda make: Sample(make(8, 8), make.bools(1, 8, 8)),
    match=r"\[npu_scaled_masked_softmax\] expected a mask that broadcasts .* got \[1, 8, 8\]",
    id="mask_rank",
)
op.errors(
    lambda make: Sample(make(8, 8), make.bools(8, 8), 1, True),
    match=r"\[npu_scaled_masked_softmax\] expected fixed_triu_mask False",
    id="fixed_triu_mask",
)
