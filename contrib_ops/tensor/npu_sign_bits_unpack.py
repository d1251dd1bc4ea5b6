"""Signs as 1 and -1 from bits, the inverse of npu_sign_bits_pack.

Source: torch_npu.npu_sign_bits_unpack.
"""

from onnxruntime_npu.opdef import Sample, TypeCodes, TypedBy, check, npu_op, torch

from .._bits import bits_of

op = npu_op(
    "npu_sign_bits_unpack(Tensor input, int size, ScalarType dtype) -> Tensor",
    onnx="NPUSignBitsUnpack",
    dtypes={"input": ["uint8"], "y": ["float32", "float16"]},
    type_codes={"dtype": TypeCodes({"float32": 0, "float16": 1})},
    typed_by={"y": TypedBy("dtype", {"float32": "float32", "float16": "float16"})},
)


@op.reference
def reference(input, size, dtype):
    """Return [size, 8 n / size] of dtype: 1 where bit k % 8 of byte k // 8 is set, else -1.

    input: [n] uint8; size divides 8 n; dtype: float32 or float16.
    """
    name = "[npu_sign_bits_unpack]"
    check(input.dim() == 1, f"{name} expected input of shape [n], got {list(input.shape)}")
    count = input.shape[0] * 8
    check(
        size > 0 and count % size == 0,
        f"{name} expected size to divide the {count} bits, got {size}",
    )
    bits = bits_of(input, count).to(torch.int64)
    return (bits * 2 - 1).reshape(size, count // size).to(getattr(torch, dtype))


@op.function
def body(b, call, input):
    powers = b.const([[2**i for i in range(8)]], "int32")
    bits = b.Mod(b.Div(b.Cast(b.Unsqueeze(input, [1]), to="int32"), powers), b.const(2, "int32"))
    signs = b.Sub(b.Mul(bits, b.const(2, "int32")), b.const(1, "int32"))
    size = call.attrs["size"]
    columns = b.Div(b.Reshape(b.Size(bits), [1]), b.const([size], "int64"))
    shape = b.Concat(b.const([size], "int64"), columns, axis=0)
    signs = b.Reshape(signs, shape, allowzero=1)
    return b.Cast(signs, to="float16" if call.attrs["dtype"] == 1 else "float32")


@op.samples
def samples(make):
    yield Sample(
        make.tensor([159, 15]),
        2,
        torch.float32,
        id="catalogue",
        expect=[[[1, 1, 1, 1, 1, -1, -1, 1], [1, 1, 1, 1, -1, -1, -1, -1]]],
    )
    yield Sample(make.ints(9, high=256, dtype="uint8"), 8, torch.float16, id="float16")
    yield Sample(make.ints(0, dtype="uint8"), 3, torch.float32, id="empty")


op.errors(
    lambda make: Sample(make.ints(3, dtype="uint8"), 5, torch.float32),
    match=r"\[npu_sign_bits_unpack\] expected size to divide the 24 bits, got 5",
    id="size",
)
op.errors(
    lambda make: Sample(make.ints(3, dtype="uint8"), 3, torch.float64),
    match=r"\[npu_sign_bits_unpack\] expected dtype to name float32 or float16, got torch.float64|"
    r"\[npu_sign_bits_unpack\] expected dtype to name float32 or float16, got",
    id="dtype",
)
