"""Overwrites the slices at index tuples, with an in-place twin.

Source: torch_npu.npu_scatter_nd_update, torch_npu.npu_scatter_nd_update_.
"""

from onnxruntime_npu.opdef import FLOATS, INDICES, Sample, check, check_indices, npu_op, torch

_ELEMENTS = [*FLOATS, "bool", "int64", "int32", "int8", "uint8"]

op = npu_op(
    "npu_scatter_nd_update(Tensor self, Tensor indices, Tensor updates) -> Tensor",
    onnx="NPUScatterNdUpdate",
    dtypes={"self": _ELEMENTS, "indices": INDICES, "updates": _ELEMENTS, "y": _ELEMENTS},
    inplace="npu_scatter_nd_update_(Tensor(a!) self, Tensor indices, Tensor updates) -> Tensor(a!)",
    may_alias=[("self", "y")],
)


@op.reference
def reference(self, indices, updates):
    """y = self with y[indices[t]] = updates[t] for every leading index t.

    indices: [.., q] with 1 <= q <= rank of self, each in [0, size of its axis); updates:
    indices.shape[:-1] + self.shape[q:], of self's dtype. Which of several equal tuples wins is
    unspecified.
    """
    rank = self.dim()
    check(
        indices.dim() >= 1 and 1 <= indices.shape[-1] <= rank,
        f"[npu_scatter_nd_update] expected indices whose last dimension is in [1, {rank}], "
        f"the rank of self, got {list(indices.shape)}",
    )
    check(
        updates.dtype == self.dtype,
        f"[npu_scatter_nd_update] expected updates of self's dtype {self.dtype}, "
        f"got {updates.dtype}",
    )
    depth = indices.shape[-1]
    expected = [*indices.shape[:-1], *self.shape[depth:]]
    check(
        list(updates.shape) == expected,
        f"[npu_scatter_nd_update] expected updates of shape {expected}, got {list(updates.shape)}",
    )
    places = indices.to(torch.int64).unbind(-1)
    for axis, (place, size) in enumerate(zip(places, self.shape, strict=False)):
        what = "[npu_scatter_nd_update] expected indices"
        check_indices(place, 0, size, what, note=f" for axis {axis}")
    return self.index_put(places, updates)


@op.function
def body(b, call, self, indices, updates):
    return b.ScatterND(self, b.Cast(indices, to="int64"), updates)


@op.samples
def samples(make):
    yield Sample(
        make.tensor([[0, 0], [0, 0], [0, 0]]),
        make.tensor([[0, 0], [1, 1]], "int64"),
        make.tensor([10, 20]),
        id="catalogue",
        expect=None if make.dtype == "bool" else [[[10, 0], [0, 20], [0, 0]]],
    )
    places = make.tensor([[0, 4], [3, 0], [2, 2]], "int64")
    yield Sample(make(4, 5, 6), places, make(3, 6), id="catalogue_shape")
    rows = make.permutation(7)[:3].reshape(3, 1)
    yield Sample(make(7, 6), rows, make(3, 6), id="rows")
    yield Sample(make(7, 6), rows.to(torch.int32), make(3, 6), id="int32_indices")
    yield Sample(make(7), rows.reshape(3, 1, 1), make(3, 1), id="nested_tuples")
    yield Sample(make(7, 6), make.tensor([2], "int64"), make(6), id="one_tuple")
    cache = make.tensor([[[[1, s]] for s in range(3, 6)]], "int64")
    yield Sample(make(2, 9, 3, 8), cache, make(1, 3, 1, 3, 8), id="cache_rows_in_order")
    yield Sample(
        make(600, 640), torch.arange(20, 620 - 40).reshape(-1, 1), make(560, 640), id="threads"
    )
    yield Sample(make(4, 6), make.ints(0, 1), make(0, 6), id="no_tuples")
    yield Sample(make(4, 0), make.tensor([[1]], "int64"), make(1, 0), id="empty_slices")
    yield Sample(make(6, 7).t(), rows, make(6, 3).t(), id="not_contiguous")


for _dtype in _ELEMENTS:
    op.tolerance(_dtype, rtol=0, atol=0, reason="values are only moved")

op.errors(
    lambda make: Sample(make(4, 6), make.tensor([[4]], "int64"), make(1, 6)),
    match=r"\[npu_scatter_nd_update\] expected indices in \[0, 4\) for axis 0, got 4",
    needs_values=True,
    id="index_too_large",
)
op.errors(
    lambda make: Sample(make(4, 6), make.tensor([[0], [-1]], "int64"), make(2, 6)),
    match=r"\[npu_scatter_nd_update\] expected indices in \[0, 4\) for axis 0, got -1",
    needs_values=True,
    id="negative_index",
)
op.errors(
    lambda make: Sample(make(4, 6), make.ints(2, 3), make(2)),
    match=r"\[npu_scatter_nd_update\] expected indices whose last dimension is in \[1, 2\], "
    r"the rank of self, got \[2, 3\]",
    id="depth",
)
op.errors(
    lambda make: Sample(make(4, 6), make.ints(2, 1, high=4), make(2, 5)),
    match=r"\[npu_scatter_nd_update\] expected updates of shape \[2, 6\], got \[2, 5\]",
    id="updates_shape",
)
op.errors(
    lambda make: Sample(
        make(4, 6, dtype="float32"), make.ints(2, 1, high=4), make(2, 6, dtype="float16")
    ),
    match=r"\[npu_scatter_nd_update\] expected updates of self's dtype .*float32, "
    r"got .*float16",
    id="updates_dtype",
)
