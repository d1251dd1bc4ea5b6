"""A permutation of the axes, copied. Source: torch_npu.npu_transpose."""

from onnxruntime_npu.opdef import Sample, composition

from ._shapes import OF_EACH_SIZE, check_permutation, copied

_ARGUMENTS = "Tensor self, int[] perm, bool require_contiguous=True"

op = composition(
    f"npu_transpose({_ARGUMENTS}) -> Tensor",
    out=f"npu_transpose.out({_ARGUMENTS}, *, Tensor(a!) out) -> Tensor(a!)",
    dtypes=OF_EACH_SIZE,
    differentiable=True,
    file_type="NPUTranspose",
)


@op.function
def npu_transpose(self, perm, require_contiguous=True):
    """Return self with axis perm[i] at place i, contiguous, in memory of its own.

    perm: every axis once, negative ones from the end. require_contiguous has no effect: strided
    tensors are read as they are.
    """
    check_permutation("npu_transpose", perm, self.dim())
    return copied(self.permute(perm))


@op.samples
def samples(make):
    rows = [[1, 2, 3], [4, 5, 6]]
    if make.dtype != "bool":
        yield Sample(make.tensor(rows), [1, 0], id="catalogue", expect=[[[1, 4], [2, 5], [3, 6]]])
    yield Sample(make(2, 3, 4), [-1, 0, 1], False, id="from_the_end")
    yield Sample(make(2, 0), [1, 0], id="empty")


op.errors(
    lambda make: Sample(make(2, 3), [0, 0]),
    match=r"\[npu_transpose\] expected perm to name each of 2 axes once, got \[0, 0\]",
    id="perm",
)
