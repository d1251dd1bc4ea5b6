"""A permutation and another shape, in either order.

Source: torch_npu.npu_confusion_transpose, npu_confusion_transpose_backward.
"""

from onnxruntime_npu.opdef import Sample, composition, torch

from ._shapes import OF_EACH_SIZE, check_permutation, check_shape, copied

_NAME = "npu_confusion_transpose"

op = composition(
    f"{_NAME}(Tensor self, int[] perm, int[] shape, bool transpose_first) -> Tensor",
    dtypes=OF_EACH_SIZE,
    differentiable=True,
)


@op.function
def npu_confusion_transpose(self, perm, shape, transpose_first):
    """Return self permuted, then in the given shape, or with transpose_first False reversed.

    The result is contiguous, in memory of its own.
    """
    check_permutation(_NAME, perm, self.dim() if transpose_first else len(shape))
    check_shape(_NAME, shape, self)
    if transpose_first:
        return copied(self.permute(perm).reshape(shape))
    return copied(self.reshape(shape).permute(perm))


@op.partner(
    f"{_NAME}_backward(Tensor grad, int[] perm, SymInt[] shape, bool transpose_first) -> Tensor"
)
def npu_confusion_transpose_backward(grad, perm, shape, transpose_first):
    """Return the gradient of npu_confusion_transpose's argument, whose shape is ``shape``."""
    back = [0] * len(perm)
    for place, axis in enumerate(perm):
        back[axis] = place
    if transpose_first:
        return copied(grad.reshape([shape[axis] for axis in perm]).permute(back))
    return copied(grad.permute(back).reshape(shape))


@op.samples
def samples(make):
    if make.dtype != "bool":
        rows = make.tensor([[1, 2, 3], [4, 5, 6]])
        yield Sample(rows, [1, 0], [6], True, id="catalogue", expect=[[1, 4, 2, 5, 3, 6]])
        yield Sample(
            rows.reshape(6),
            [1, 0],
            [2, 3],
            False,
            id="catalogue_shape_first",
            expect=[[[1, 4], [2, 5], [3, 6]]],
        )
    yield Sample(make(2, 3, 8), [1, 2, 0], [3, 16], True, id="heads")
    yield Sample(make(0, 3), [1, 0], [3, 0], False, id="empty")


@op.reference
def reference(self, perm, shape, transpose_first):
    values = self.double().numpy()
    if transpose_first:
        return torch.from_numpy(values.transpose(perm).reshape(shape).copy())
    return torch.from_numpy(values.reshape(shape).transpose(perm).copy())


op.errors(
    lambda make: Sample(make(2, 3), [0, 2], [3, 2], False),
    match=r"\[npu_confusion_transpose\] expected perm to name each of 2 axes once, got \[0, 2\]",
    id="perm",
)
op.errors(
    lambda make: Sample(make(2, 3), [0, 1], [5], True),
    match=r"\[npu_confusion_transpose\] expected a shape of 6 elements, got \[5\]",
    id="shape",
)
