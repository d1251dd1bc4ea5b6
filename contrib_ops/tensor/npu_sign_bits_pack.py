"""The signs of a vector, a bit each, for 1-bit optimizers. Source: torch_npu.npu_sign_bits_pack."""

from onnxruntime_npu.opdef import Sample, check, npu_op, torch

from .._bits import bytes_of

op = npu_op(
    "npu_sign_bits_pack(Tensor self, int size) -> Tensor",
    onnx="NPUSignBitsPack",
    dtypes={"self": ["float32", "float16"], "y": ["uint8"]},
)


@op.reference
def reference(self, size):
    """Return [size, ceil(n / 8) / size] uint8: bit k % 8 of byte k // 8 is 1 where self[k] >= 0.

    self: [n]; the bits behind the last element are 0, and so is NaN's.
    """
    name = "[npu_sign_bits_pack]"
    check(self.dim() == 1, f"{name} expected self of shape [n], got {list(self.shape)}")
    count = (self.shape[0] + 7) // 8
    check(
        size > 0 and count % size == 0,
        f"{name} expected size to divide the {count} bytes, got {size}",
    )
    signs = (self >= 0).to(torch.int32)
    signs = torch.cat([signs, signs.new_zeros(count * 8 - self.shape[0])])
    return bytes_of(signs).reshape(size, count // size)


@op.function
def body(b, call, self):
    signs = b.Cast(b.GreaterOrEqual(b.Cast(self, to="float32"), 0.0), to="float32")
    missing = b.Mod(b.Neg(b.Shape(signs)), b.const([8], "int64"))
    signs = b.Pad(signs, b.Concat(b.const([0], "int64"), missing, axis=0))
    bits = b.Mul(b.Reshape(signs, [-1, 8]), [float(2**i) for i in range(8)])
    packed = b.Cast(b.ReduceSum(bits, [1], keepdims=0), to="uint8")
    size = call.attrs["size"]
    rows = b.Div(b.Shape(packed), b.const([size], "int64"))
    return b.Reshape(packed, b.Concat(b.const([size], "int64"), rows, axis=0), allowzero=1)


@op.samples
def samples(make):
    yield Sample(
        make.tensor([5, 4, 3, 2, 0, -1, -2, 4, 3, 2, 1, 0, -1, -2]),
        2,
        id="public",
        expect=[[[159], [15]]],
    )
    yield Sample(
        make.tensor([float("nan"), -0.0, float("inf"), -1, -2, -3, -4, -5, 1]),
        1,
        id="special",
        expect=[[[6, 1]]],
    )
    yield Sample(make(88), 11, id="whole_bytes")
    yield Sample(make(0), 3, id="empty")


op.errors(
    lambda make: Sample(make(2, 8), 1),
    match=r"\[npu_sign_bits_pack\] expected self of shape \[n\], got \[2, 8\]",
    id="rank",
)
op.errors(
    lambda make: Sample(make(17), 2),
    match=r"\[npu_sign_bits_pack\] expected size to divide the 3 bytes, got 2",
    id="size",
)
