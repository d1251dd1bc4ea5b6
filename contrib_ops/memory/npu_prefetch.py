"""Hints that a part of a tensor will be read soon. Source: torch_npu.npu_prefetch."""

from onnxruntime_npu.opdef import FIXED_WIDTH, Sample, check, npu_op

op = npu_op(
    "npu_prefetch(Tensor self, Tensor? dependency, int max_size, int offset=0) -> ()",
    onnx="NPUPrefetch",
    outputs=[],
    dtypes={"self": FIXED_WIDTH, "dependency": FIXED_WIDTH},
    sample_dtypes=["float32", "bfloat16", "int8"],
    not_portable="a hint has no result, and ONNX no node without one",
)


@op.reference
def reference(self, dependency, max_size, offset=0):
    """Prefetch up to max_size bytes of self, from byte offset, into the cache; no result.

    dependency: a tensor that must be ready first, or None.
    """
    check(
        max_size > 0,
        f"[npu_prefetch] The max_size should be greater than zero, but got {max_size}.",
    )
    check(
        offset >= 0,
        f"[npu_prefetch] The offset should be nonnegative, but got {offset}.",
    )
    size = self.numel() * self.element_size()
    check(
        offset <= size,
        f"[npu_prefetch] expected offset within the {size} bytes of self, got {offset}",
    )
    return ()


@op.samples
def samples(make):
    yield Sample(make(4, 8), None, 16)
    yield Sample(make(4, 8), make(2), 10**12, 8, id="more_than_there_is")
    yield Sample(make(0), None, 1, id="empty")


op.errors(
    lambda make: Sample(make(4), None, -1),
    match=r"The max_size should be greater than zero, but got -1\.",
    id="max_size",
)
op.errors(
    lambda make: Sample(make(4), None, 1, -1),
    match=r"The offset should be nonnegative, but got -1\.",
    id="negative_offset",
)
op.errors(
    lambda make: Sample(make(4, dtype="float32"), None, 1, 17),
    match=r"\[npu_prefetch\] expected offset within the 16 bytes of self, got 17",
    id="offset_beyond_the_end",
)
op.errors(
    lambda make: Sample(make(4), None, 0),
    match=r"The max_size should be greater than zero, but got 0\.",
    id="no_size",
)
