"""The greatest values along an axis, and their places as int32.

Source: torch_npu.npu_max, npu_max_backward.
"""

from onnxruntime_npu.opdef import FLOATS, Sample, check_dtype, composition

from ._extremes import check_reduction, spread

op = composition(
    "npu_max.dim(Tensor self, int dim, bool keepdim=False) -> (Tensor values, Tensor indices)",
    dtypes=["float32", "float16"],
    differentiable=True,
)


@op.function
def npu_max(self, dim, keepdim=False):
    """Return the greatest values along dim, NaN before all, and their first places as int32."""
    check_dtype("npu_max", "self", self, [*FLOATS, "float64"])
    check_reduction("npu_max", self, dim)
    values, indices = self.max(dim, keepdim)
    return values, indices.int()


@op.partner(
    "npu_max_backward(Tensor grad, int dim, Tensor indices, SymInt[] sizes, bool keepdim) -> Tensor"
)
def npu_max_backward(grad, dim, indices, sizes, keepdim):
    """Return the gradient of npu_max's argument, of shape ``sizes``."""
    return spread(grad, dim, indices, sizes, keepdim)


@op.samples
def samples(make):
    rows = make.tensor([[1, 5, 5], [7, 2, 0]])
    yield Sample(rows, 1, id="catalogue", expect=[[5, 7], [1, 0]])
    yield Sample(make(3, 4, 5), -2, True, id="kept_axis")
    yield Sample(make(0, 3), 1, id="empty")


op.errors(
    lambda make: Sample(make(2, 3), 2),
    match=r"\[npu_max\] expected dim in \[-2, 1\], got 2",
    id="dim",
)
op.errors(
    lambda make: Sample(make(2, 0), 1),
    match=r"\[npu_max\] expected an axis with elements, got shape \[2, 0\] and dim 1",
    id="nothing",
)
