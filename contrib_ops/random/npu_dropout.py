"""Dropout that returns the bits of what it keeps.

Source: torch_npu._npu_dropout, npu_dropout_backward, torch_npu._npu_dropout_gen_mask.
"""

import math
import struct

from onnxruntime_npu.opdef import FLOATS, Sample, check, npu_op, torch, wide
from onnxruntime_npu.opdef.philox import philox

from .._bits import bits_of, bytes_of

op = npu_op(
    "_npu_dropout(Tensor self, float p) -> (Tensor, Tensor)",
    onnx="NPUDropout",
    outputs=["y", "mask"],
    dtypes={"self": FLOATS, "y": FLOATS, "mask": ["uint8"]},
    may_alias=[("self", "y")],
    seeded=True,
)

_UNIT = 128  # the mask covers the elements rounded up to this


def _probability(p):
    check(0 <= p <= 1, f"[_npu_dropout] expected p in [0, 1], got {p:g}")
    return struct.unpack("f", struct.pack("f", p))[0]  # as stored in a node


def _kept(values, keep, p):
    return torch.where(keep, values * (1 / (1 - p) if p < 1 else 0.0), 0.0)


def _mask(elements, p, seed, offset, device):
    """Return what is kept of the elements, rounded up to 128 of them, as bools and as bits."""
    count = (elements + _UNIT - 1) // _UNIT * _UNIT
    keep = philox(seed, offset, torch.arange(count, device=device)) < int((1 - p) * 2**32)
    return keep, bytes_of(keep)


@op.reference
def reference(self, p, seed=0):
    """Return self / (1 - p) where it is kept and 0 elsewhere, and the bits of what is kept.

    self: any shape; y: like self, rounded once; mask: uint8, one bit per element rounded up to 128
    of them: bit n % 8 of byte n // 8 keeps element n, where word n of Philox 4x32-10 with key seed
    is below (1 - p) * 2^32. The seed is drawn from torch's generator.
    """
    p = _probability(p)
    keep, mask = _mask(self.numel(), p, seed, 0, self.device)
    x = wide(self)
    return _kept(x, keep[: self.numel()].reshape(self.shape), p).to(self.dtype), mask


@op.function
def body(b, call, self):
    p = call.attrs["p"]
    x = b.Cast(self, to="float32")
    size = b.Reshape(b.Size(x), [1])
    count = b.Mul(b.Div(b.Add(size, _UNIT - 1), _UNIT), _UNIT)
    if p == 0:
        keep = b.Expand(b.const(1.0, "float32"), count)
    else:
        # The CPU provider draws other random numbers: only the distribution is the same.
        seed = {"seed": float(call.attrs["seed"] % 2**24)} if call.attrs.get("seed") else {}
        uniform = b.RandomUniformLike(b.Expand(b.const(0.0, "float32"), count), **seed)
        keep = b.Cast(b.Less(uniform, 1 - p), to="float32")
    bits = b.Mul(b.Reshape(keep, [-1, 8]), [float(2**i) for i in range(8)])
    mask = b.Cast(b.ReduceSum(bits, [1], keepdims=0), to="uint8")
    kept = b.Reshape(b.Slice(keep, [0], size), b.Shape(x))
    y = b.Where(b.Greater(kept, 0.0), b.Mul(x, 1 / (1 - p) if p < 1 else 0.0), b.Mul(kept, 0.0))
    return b.Cast(y, to=call.dtype("self")), mask


def _gradient(grad, mask, p):
    keep = bits_of(mask, grad.numel()).reshape(grad.shape)
    x = wide(grad)
    return _kept(x, keep, _probability(p)).to(grad.dtype)


@op.backward("self")
def backward(grad_y, p, mask):
    return _gradient(grad_y, mask, p)


@op.partner("npu_dropout_backward(Tensor grad_output, Tensor mask, float p) -> Tensor")
def npu_dropout_backward(grad_output, mask, p):
    """Return grad_output / (1 - p) where the mask keeps an element, and 0 elsewhere."""
    check(
        mask.dtype == torch.uint8 and mask.dim() == 1 and mask.numel() * 8 >= grad_output.numel(),
        "[npu_dropout_backward] expected mask of uint8 with a bit for each of "
        f"{grad_output.numel()} elements, got {mask.dtype} {list(mask.shape)}",
    )
    return _gradient(grad_output, mask, p)


@op.partner(
    "_npu_dropout_gen_mask.Tensor(Tensor self, int[] size, float p, int seed, int offset, *,"
    " bool? parallel=True, bool? sync=None) -> Tensor"
)
def npu_dropout_gen_mask(self, size, p, seed, offset, *, parallel=True, sync=None):
    """Return the mask of a dropout of ``size`` elements on self's device, by seed and offset.

    Those of the sizes of its weights are what npu_fusion_attention keeps with that seed and offset.
    parallel and sync, which say where Ascend draws, change nothing.
    """
    check(
        all(n >= 0 for n in size),
        f"[_npu_dropout_gen_mask] expected sizes of at least 0, got {list(size)}",
    )
    check(0 <= p <= 1, f"[_npu_dropout_gen_mask] expected p in [0, 1], got {p:g}")
    return _mask(math.prod(size), _probability(p), seed, offset, self.device)[1]


@op.samples
def samples(make):
    # Derived tests compare values, so nothing or all is dropped; tests/ops/test_dropout.py drops.
    yield Sample(make.tensor([[2.0, -1.0]]), 0.0, id="kept", expect=[[[2.0, -1.0]], [255] * 16])
    yield Sample(make(2, 3, 45), 1.0, id="dropped")
    yield Sample(make(0, 8), 0.0, id="empty")


op.errors(
    lambda make: Sample(make(2, 8), 1.5),
    match=r"\[_npu_dropout\] expected p in \[0, 1\], got 1.5",
    id="p",
)
