"""Sorted values without their places. Source: torch_npu.npu_sort_v2."""

from onnxruntime_npu.opdef import FLOATS, Sample, check_dtype, composition

from ._shapes import check_axis

_ARGUMENTS = "Tensor self, int dim=-1, bool descending=False"

op = composition(
    f"npu_sort_v2({_ARGUMENTS}) -> Tensor",
    out=f"npu_sort_v2.out({_ARGUMENTS}, *, Tensor(a!) out) -> Tensor(a!)",
    dtypes=FLOATS,
    differentiable=True,
)


@op.function
def npu_sort_v2(self, dim=-1, descending=False):
    """Return self sorted along dim, ascending unless told; NaN counts as the largest."""
    check_dtype("npu_sort_v2", "self", self, [*FLOATS, "float64"])
    check_axis("npu_sort_v2", dim, self.dim())
    return self.sort(dim=dim, descending=descending).values


@op.samples
def samples(make):
    row = make.tensor([[3, 1, 2]])
    yield Sample(row, id="catalogue", expect=[[[1, 2, 3]]])
    yield Sample(row, descending=True, id="descending", expect=[[[3, 2, 1]]])
    yield Sample(make(4, 5), 0, id="first_axis")
    yield Sample(make(0, 3), id="empty")


op.errors(
    lambda make: Sample(make(2, 3), 2),
    match=r"\[npu_sort_v2\] expected dim in \[-2, 1\], got 2",
    id="dim",
)
op.errors(
    lambda make: Sample(make.ints(2, 3)),
    match=r"\[npu_sort_v2\] expected self of dtype float32, float16, bfloat16, float64, got int64",
    id="dtype",
)
