"""Softmax of x1 + alpha * self over the last axis, followed by dropout.

Source: torch_npu.npu_dropout_with_add_softmax.
"""

import struct

from onnxruntime_npu.opdef import FLOATS, Sample, check, npu_op, torch
from onnxruntime_npu.opdef.gradients import check_gradient
from onnxruntime_npu.opdef.philox import philox

from .._bits import bits_of, bytes_of

op = npu_op(
    "npu_dropout_with_add_softmax(Tensor self, Tensor x1, Scalar alpha, float prob, int dim)"
    " -> (Tensor, Tensor, Tensor)",
    onnx="NPUDropoutWithAddSoftmax",
    outputs=["mask", "softmax", "dropout"],
    dtypes={
        "self": FLOATS,
        "x1": FLOATS,
        "mask": ["uint8"],
        "softmax": FLOATS,
        "dropout": FLOATS,
    },
    may_alias=[("self", "softmax"), ("self", "dropout")],
    seeded=True,
)

_UNIT = 128  # the mask covers the elements rounded up to this


def _probability(prob):
    return struct.unpack("f", struct.pack("f", prob))[0]  # as stored in a node


@op.reference
def reference(self, x1, alpha, prob, dim, seed=0):
    """Return mask, softmax(x1 + alpha * self) and its kept part divided by 1 - prob.

    self: [.., W], rank >= 1; x1: broadcastable to self, of its dtype; prob: probability to drop,
    in [0, 1); dim: the last axis. Computed in float32; softmax and dropout, like self,
    are rounded once.
    mask: uint8, one bit per element rounded up to 128 of them; bit n % 8 of byte n // 8 keeps
    element n where word n of Philox 4x32-10 with key seed is below (1 - prob) * 2^32.
    """
    name = "[npu_dropout_with_add_softmax]"
    check(0 <= prob < 1, f"{name} expected prob in [0, 1), got {prob:g}")
    check(self.dim() >= 1, f"{name} expected self of rank >= 1, got a scalar")
    check(
        dim in (-1, self.dim() - 1),
        f"{name} expected dim of the last axis, -1, got {dim}",
    )
    check(
        self.dtype == x1.dtype,
        f"{name} expected x1 of self's dtype {self.dtype}, got {x1.dtype}",
    )
    missing = self.dim() - x1.dim()
    check(
        missing >= 0
        and all(m in (1, n) for m, n in zip(x1.shape, self.shape[missing:], strict=True)),
        f"{name} expected x1 that broadcasts to self of shape {list(self.shape)}, "
        f"got {list(x1.shape)}",
    )
    compute = torch.promote_types(self.dtype, torch.float32)
    softmax = (x1.to(compute) + alpha * self.to(compute)).softmax(-1)
    keep_prob = 1 - _probability(prob)
    count = (self.numel() + _UNIT - 1) // _UNIT * _UNIT
    number = torch.arange(count, device=self.device)
    keep = philox(seed, 0, number) < int(keep_prob * 2**32)
    kept = keep[: self.numel()].reshape(self.shape)
    return bytes_of(keep), softmax.to(self.dtype), (softmax * kept / keep_prob).to(self.dtype)


@op.function
def body(b, call, self, x1):
    dtype, prob = call.dtype("self"), call.attrs["prob"]
    scaled = b.Mul(b.Cast(self, to="float32"), call.attrs["alpha"])
    softmax = b.Softmax(b.Add(b.Cast(x1, to="float32"), scaled), axis=-1)
    size = b.Reshape(b.Size(softmax), [1])
    units = b.Div(b.Add(size, _UNIT - 1), _UNIT)
    count = b.Mul(units, _UNIT)
    if prob == 0:
        keep = b.Expand(b.const(1.0, "float32"), count)
    else:
        # The CPU provider draws other random numbers: only the distribution is the same.
        seed = {"seed": float(call.attrs["seed"] % 2**24)} if call.attrs.get("seed") else {}
        uniform = b.RandomUniformLike(b.Expand(b.const(0.0, "float32"), count), **seed)
        keep = b.Cast(b.Less(uniform, 1 - prob), to="float32")
    powers = [float(2**i) for i in range(8)]
    bits = b.Mul(b.Reshape(keep, [-1, 8]), powers)
    mask = b.Cast(b.ReduceSum(bits, [1], keepdims=0), to="uint8")
    kept = b.Reshape(b.Slice(keep, [0], size), b.Shape(softmax))
    dropout = b.Mul(b.Mul(softmax, kept), 1 / (1 - prob))
    return mask, b.Cast(softmax, to=dtype), b.Cast(dropout, to=dtype)


@op.backward("self", "x1")
def backward(grad_dropout, x1, alpha, prob, mask, softmax):
    """dx1 = s (g - sum(g s)) with g = dy / (1 - prob) where kept, else 0; dself = alpha dx1."""
    compute = torch.promote_types(softmax.dtype, torch.float32)
    keep = bits_of(mask, softmax.numel()).reshape(softmax.shape)
    g = grad_dropout.to(compute) * keep / (1 - _probability(prob))
    s = softmax.to(compute)
    d = s * (g - (g * s).sum(-1, keepdim=True))
    return alpha * d, d.sum_to_size(x1.shape)


@op.partner(
    "npu_dropout_with_add_softmax_backward(Tensor grad, Tensor mask, Tensor softmax_out,"
    " Scalar alpha, float prob, int dim) -> (Tensor, Tensor)"
)
def npu_dropout_with_add_softmax_backward(grad, mask, softmax_out, alpha, prob, dim):
    """Return the gradients of self and x1, both in softmax_out's shape."""
    name = "npu_dropout_with_add_softmax_backward"
    check_gradient(name, grad, softmax_out, "softmax_out")
    check(0 <= prob < 1, f"[{name}] expected prob in [0, 1), got {prob:g}")
    check(dim in (-1, softmax_out.dim() - 1), f"[{name}] expected dim of the last axis, got {dim}")
    check(
        mask.dtype == torch.uint8 and mask.dim() == 1 and mask.numel() * 8 >= grad.numel(),
        f"[{name}] expected mask of uint8 with a bit for each of {grad.numel()} elements, "
        f"got {mask.dtype} {list(mask.shape)}",
    )
    gradients = backward(grad, softmax_out, alpha, prob, mask, softmax_out)
    return tuple(g.to(softmax_out.dtype) for g in gradients)


@op.samples
def samples(make):
    # Derived tests compare values, so nothing is dropped;
    # tests/ops/test_dropout_with_add_softmax.py drops.
    yield Sample(
        make.tensor([[2.0, 0.0]]),
        make.tensor([[0.0, 0.0]]),
        0.5,
        0.0,
        -1,
        id="catalogue",
        expect=[[255] * 16, [[0.731059, 0.268941]], [[0.731059, 0.268941]]],
    )
    yield Sample(make(2, 3, 5, 37), make(2, 3, 5, 37), 0.125, 0.0, 3, id="last_axis_by_number")
    yield Sample(make(2, 3, 5, 33), make(2, 1, 5, 33), -2.0, 0.0, -1, id="heads_share_x1")
    yield Sample(make(3, 4, 64, 128), make(3, 4, 64, 128), 1.5, 0.0, -1, id="several_threads")
    yield Sample(make(7), make(7), 1.0, 0.0, -1, id="one_row")
    yield Sample(make(0, 8), make(0, 8), 1.0, 0.0, -1, id="empty")
    yield Sample(make(40, 6).t(), make(6, 40), 1.0, 0.0, -1, id="not_contiguous")


_NAME = r"\[npu_dropout_with_add_softmax\] "
op.errors(
    lambda make: Sample(make(2, 8), make(2, 8), 1.0, 1.0, -1),
    match=_NAME + r"expected prob in \[0, 1\), got 1",
    id="prob",
)
op.errors(
    lambda make: Sample(make(2, 8), make(2, 8), 1.0, 0.5, 0),
    match=_NAME + r"expected dim of the last axis, -1, got 0",
    id="dim",
)
op.errors(
    lambda make: Sample(make(2, 8), make(2, 4), 1.0, 0.5, -1),
    match=_NAME + r"expected x1 that broadcasts to self of shape \[2, 8\], got \[2, 4\]",
    id="x1_shape",
)
op.errors(
    lambda make: Sample(make(2, 8, dtype="float32"), make(2, 8, dtype="float16"), 1.0, 0.5, -1),
    match=_NAME + r"expected x1 of self's dtype .*float32, got .*float16",
    id="x1_dtype",
)
op.errors(
    lambda make: Sample(make(), make(), 1.0, 0.5, -1),
    match=_NAME + r"expected self of rank >= 1, got a scalar",
    id="scalar",
)
