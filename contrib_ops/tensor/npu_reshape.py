"""Another shape, copied. Source: torch_npu.npu_reshape."""

from onnxruntime_npu.opdef import Sample, composition

from ._shapes import OF_EACH_SIZE, check_shape, copied

_ARGUMENTS = "Tensor self, int[] shape, bool can_refresh=False"

op = composition(
    f"npu_reshape({_ARGUMENTS}) -> Tensor",
    out=f"npu_reshape.out({_ARGUMENTS}, *, Tensor(a!) out) -> Tensor(a!)",
    dtypes=OF_EACH_SIZE,
    differentiable=True,
)


@op.function
def npu_reshape(self, shape, can_refresh=False):
    """Return self's elements in the given shape, contiguous, in memory of their own.

    shape: sizes whose product is the number of elements; none is -1. can_refresh, with which a
    device may leave the data undefined, has no effect.
    """
    check_shape("npu_reshape", shape, self)
    return copied(self.reshape(shape))


@op.samples
def samples(make):
    if make.dtype != "bool":
        yield Sample(make.tensor([[1, 2], [3, 4]]), [4], id="catalogue", expect=[[1, 2, 3, 4]])
    yield Sample(make(4, 3).t(), [2, 6], True, id="not_contiguous")
    yield Sample(make(0, 4), [2, 0], id="empty")


op.errors(
    lambda make: Sample(make(2, 3), [4, -1]),
    match=r"\[npu_reshape\] expected a shape of 6 elements, got \[4, -1\]",
    id="shape",
)
