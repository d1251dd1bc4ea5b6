"""Overwrites a slice along one axis in every batch row, with an in-place twin.

Source: torch_npu.scatter_update, torch_npu.scatter_update_.
"""

from onnxruntime_npu.opdef import FLOATS, INDICES, Sample, check, npu_op, torch

from ._slices import body_write_slices, check_slices, write_slices

_ELEMENTS = [*FLOATS, "int8", "int32"]

op = npu_op(
    "scatter_update(Tensor self, Tensor indices, Tensor updates, int axis) -> Tensor",
    onnx="NPUScatterUpdate",
    dtypes={"self": _ELEMENTS, "indices": INDICES, "updates": _ELEMENTS, "y": _ELEMENTS},
    inplace="scatter_update_(Tensor(a!) self, Tensor indices, Tensor updates, int axis)"
    " -> Tensor(a!)",
    may_alias=[("self", "y")],
)


@op.reference
def reference(self, indices, updates, axis):
    """y = self with y[i, .., indices[i] : indices[i] + L, ..] = updates[i] along axis.

    self: [B, ..]; axis: any but the first; updates: [K, ..], L = its size of axis, else like self;
    indices: [K] with K <= B, or a scalar for K = 1, or [K, 2] with the batch row in the first
    column. Each index is in [0, size of axis - L]. Overlapping updates: unspecified.
    """
    check(
        updates.dtype == self.dtype,
        f"[scatter_update] expected updates of self's dtype {self.dtype}, got {updates.dtype}",
    )
    check_slices("scatter_update", self, indices, updates, axis)
    return write_slices("scatter_update", self, indices, updates, axis)


@op.function
def body(b, call, self, indices, updates):
    return body_write_slices(b, call, self, indices, updates)


@op.samples
def samples(make):
    yield Sample(
        make.tensor([[[[1] * 8, [2] * 8]]]),
        make.tensor([1], "int64"),
        make.tensor([[[[3] * 8]]]),
        -2,
        id="catalogue",
        expect=[[[[[1] * 8, [3] * 8]]]],
    )
    starts = make.tensor([4, 0, 6], "int64")
    yield Sample(make(3, 2, 9, 8), starts, make(3, 2, 3, 8), -2, id="cache_rows")
    yield Sample(make(3, 9, 2, 8), starts.to(torch.int32), make(3, 1, 2, 8), 1, id="int32_indices")
    yield Sample(make(3, 4, 9), starts, make(3, 4, 2), 2, id="last_axis")
    yield Sample(make(5, 2, 9, 8), starts, make(3, 2, 1, 8), 2, id="fewer_updates_than_rows")
    pairs = make.tensor([[4, 2], [0, 5], [4, 0]], "int64")
    yield Sample(make(5, 2, 9, 8), pairs, make(3, 2, 2, 8), 2, id="batch_rows_given")
    yield Sample(make(4, 9, 8), make.tensor(3, "int64"), make(1, 2, 8), 1, id="scalar_index")
    yield Sample(make(2, 4, 900, 32), starts[:2], make(2, 4, 700, 32), 2, id="threads")
    yield Sample(make(3, 9, 8), starts, make(3, 0, 8), 1, id="empty_updates")
    yield Sample(make(3, 9, 8), make.ints(0), make(0, 2, 8), 1, id="no_updates")
    yield Sample(make(9, 3, 8).transpose(0, 1), starts, make(3, 2, 8), 1, id="not_contiguous")


for _dtype in _ELEMENTS:
    op.tolerance(_dtype, rtol=0, atol=0, reason="values are only moved")

op.errors(
    lambda make: Sample(make(2, 9, 8), make.tensor([0, 8], "int64"), make(2, 2, 8), 1),
    match=r"\[scatter_update\] expected indices in \[0, 7\], .* got 8",
    needs_values=True,
    id="index_too_large",
)
op.errors(
    lambda make: Sample(make(2, 9, 8), make.tensor([0, -1], "int64"), make(2, 2, 8), 1),
    match=r"\[scatter_update\] expected indices in \[0, 7\], .* got -1",
    needs_values=True,
    id="negative_index",
)
op.errors(
    lambda make: Sample(make(2, 9, 8), make.tensor([[2, 0]], "int64"), make(1, 2, 8), 1),
    match=r"\[scatter_update\] expected batch rows in \[0, 2\), got 2",
    needs_values=True,
    id="batch_row",
)
op.errors(
    lambda make: Sample(make(2, 9, 8), make.ints(2), make(2, 2, 8), 0),
    match=r"\[scatter_update\] expected axis in \[-2, -1\] or \[1, 2\], got 0",
    id="axis",
)
op.errors(
    lambda make: Sample(make(2, 9, 8), make.ints(2), make(2, 2, 7), 1),
    match=r"\[scatter_update\] expected updates that fit self \[2, 9, 8\] outside axis 1, "
    r"got \[2, 2, 7\]",
    id="updates_shape",
)
op.errors(
    lambda make: Sample(make(2, 9, 8), make.ints(2), make(2, 10, 8), 1),
    match=r"\[scatter_update\] expected updates that fit self \[2, 9, 8\] outside axis 1, "
    r"got \[2, 10, 8\]",
    id="updates_too_long",
)
op.errors(
    lambda make: Sample(make(2, 9, 8), make.ints(3), make(3, 2, 8), 1),
    match=r"\[scatter_update\] expected at most 2 indices, one for each batch row of self, got 3",
    id="too_many",
)
op.errors(
    lambda make: Sample(make(2, 9, 8), make.ints(2, 3), make(2, 2, 8), 1),
    match=r"\[scatter_update\] expected indices of shape \[\], \[K\] or \[K, 2\], got \[2, 3\]",
    id="indices_shape",
)
