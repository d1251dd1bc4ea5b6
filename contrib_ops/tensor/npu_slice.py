"""A block of a tensor by its first element and its sizes. Source: torch_npu.npu_slice."""

from onnxruntime_npu.opdef import Sample, check, npu_op, torch

from ._shapes import ELEMENTS, copied

_ARGUMENTS = "Tensor self, int[] offsets, int[] size"

op = npu_op(
    f"npu_slice({_ARGUMENTS}) -> Tensor",
    onnx="NPUSlice",
    dtypes={"self": ELEMENTS, "y": ELEMENTS},
    out=f"npu_slice.out({_ARGUMENTS}, *, Tensor(a!) out) -> Tensor(a!)",
    attribute_names={"offsets": "offsetss", "size": "sizes"},  # as torch_npu's exporter has them
    sample_dtypes=["float32", "float16", "int64", "bool"],
)


@op.reference
def reference(self, offsets, size):
    """y[i, ..] = self[offsets[0] + i, ..], contiguous, of shape size.

    offsets, size: a number >= 0 for each axis; the block lies inside self.
    """
    check(
        len(offsets) == len(size) == self.dim()
        and all(
            o >= 0 and n >= 0 and o + n <= most
            for o, n, most in zip(offsets, size, self.shape, strict=True)
        ),
        f"[npu_slice] expected offsets and size of a block inside {list(self.shape)}, "
        f"got {list(offsets)} and {list(size)}",
    )
    for axis, (start, length) in enumerate(zip(offsets, size, strict=True)):
        self = self.narrow(axis, start, length)
    return copied(self)


@op.function
def body(b, call, self):
    starts, sizes = call.attrs["offsetss"], call.attrs["sizes"]
    ends = [start + n for start, n in zip(starts, sizes, strict=True)]
    if not starts:
        return b.Identity(self)
    return b.Slice(self, b.const(starts, "int64"), b.const(ends, "int64"))


@op.backward("self")
def backward(grad_y, self, offsets, size):
    """The gradient at the block and 0 elsewhere."""
    pads = []
    for start, length, most in zip(offsets, size, self.shape, strict=True):
        pads[:0] = [start, most - start - length]
    return torch.nn.functional.pad(grad_y, pads)


@op.samples
def samples(make):
    yield Sample(make(4, 5, 6), [1, 0, 3], [2, 5, 2], id="block")
    if make.dtype != "bool":
        rows = make.tensor([[1, 2, 3, 4, 5], [6, 7, 8, 9, 10]])
        yield Sample(rows, [0, 0], [2, 2], id="catalogue", expect=[[[1, 2], [6, 7]]])
    yield Sample(make(), [], [], id="scalar")
    yield Sample(make(4, 0), [4, 0], [0, 0], id="empty")


op.static("self", reason="the block is fixed, and the check that it lies inside keeps the sizes")
for _dtype in ELEMENTS:
    op.tolerance(_dtype, rtol=0, atol=0, reason="values are only moved")

op.errors(
    lambda make: Sample(make(2, 3), [1, 1], [1, 3]),
    match=r"\[npu_slice\] expected offsets and size of a block inside \[2, 3\], "
    r"got \[1, 1\] and \[1, 3\]",
    id="outside",
)
op.errors(
    lambda make: Sample(make(2, 3), [1], [1]),
    match=r"\[npu_slice\] expected offsets and size of a block inside \[2, 3\], "
    r"got \[1\] and \[1\]",
    id="rank",
)
