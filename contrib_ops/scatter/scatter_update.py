"""Overwrites a slice along one axis in every batch row, with an in-place twin.

Source: torch_npu.scatter_update, torch_npu.scatter_update_.
"""

from onnxruntime_npu.opdef import FLOATS, INDICES, Sample, check, check_indices, npu_op, torch

_ELEMENTS = [*FLOATS, "int8", "int32"]

op = npu_op(
    "scatter_update(Tensor self, Tensor indices, Tensor updates, int axis) -> Tensor",
    onnx="NPUScatterUpdate",
    dtypes={"self": _ELEMENTS, "indices": INDICES, "updates": _ELEMENTS, "y": _ELEMENTS},
    inplace="scatter_update_(Tensor(a!) self, Tensor indices, Tensor updates, int axis)"
    " -> Tensor(a!)",
    may_alias=[("self", "y")],
)


def _check(self, indices, updates, axis):
    rank = self.dim()
    check(
        updates.dtype == self.dtype,
        f"[scatter_update] expected updates of self's dtype {self.dtype}, got {updates.dtype}",
    )
    check(
        rank >= 2 and updates.dim() == rank,
        f"[scatter_update] expected self and updates of one rank >= 2, "
        f"got shapes {list(self.shape)} and {list(updates.shape)}",
    )
    check(
        -rank < axis < rank and axis != 0,
        f"[scatter_update] expected axis in [{1 - rank}, -1] or [1, {rank - 1}], got {axis}",
    )
    check(
        indices.dim() <= 1 or (indices.dim() == 2 and indices.shape[1] == 2),
        f"[scatter_update] expected indices of shape [], [K] or [K, 2], got {list(indices.shape)}",
    )
    count = indices.shape[0] if indices.dim() else 1
    check(
        updates.shape[0] == count,
        f"[scatter_update] expected updates with {count} rows, one for each index, "
        f"got shape {list(updates.shape)}",
    )
    check(
        indices.dim() == 2 or count <= self.shape[0],
        f"[scatter_update] expected at most {self.shape[0]} indices, one for each batch row of "
        f"self, got {count}",
    )
    for i in range(1, rank):
        s, u = self.shape[i], updates.shape[i]
        check(
            u <= s if i == axis % rank else u == s,
            f"[scatter_update] expected updates that fit self {list(self.shape)} outside axis "
            f"{axis}, got {list(updates.shape)}",
        )


@op.reference
def reference(self, indices, updates, axis):
    """y = self with y[i, .., indices[i] : indices[i] + L, ..] = updates[i] along axis.

    self: [B, ..]; axis: any but the first; updates: [K, ..], L = its size of axis, else like self;
    indices: [K] with K <= B, or a scalar for K = 1, or [K, 2] with the batch row in the first
    column. Each index is in [0, size of axis - L]. Overlapping updates: unspecified.
    """
    _check(self, indices, updates, axis)
    axis = axis % self.dim()
    places = indices.to(torch.int64)
    if indices.dim() == 2:
        rows, starts = places.unbind(-1)
    else:
        rows, starts = torch.arange(updates.shape[0], device=self.device), places.reshape(-1)

    room = self.shape[axis] - updates.shape[axis]
    check_indices(rows, 0, self.shape[0], "[scatter_update] expected batch rows")
    note = ", so that the updates fit the axis"
    check_indices(starts, 0, room, "[scatter_update] expected indices", closed=True, note=note)
    # Move axis to position 1: then every update is a range y[row, start : start + L].
    along = self.movedim(axis, 1)
    positions = starts[:, None] + torch.arange(updates.shape[axis], device=self.device)
    y = along.index_put((rows[:, None], positions), updates.movedim(axis, 1))
    return y.movedim(1, axis)


@op.function
def body(b, call, self, indices, updates):
    rank = call.rank("updates")
    axis = call.attrs["axis"] % rank
    shape = b.Shape(updates)
    grid = b.Slice(shape, [0], [axis + 1])

    def along(dim, values):
        """Broadcast int64 values of one axis to the whole grid [K, .., L]."""
        spread = b.Reshape(values, [-1 if i == dim else 1 for i in range(axis + 1)])
        return b.Expand(spread, grid)

    def count(dim):
        size = b.Squeeze(b.Slice(shape, [dim], [dim + 1]))
        return b.Range(b.const(0, "int64"), size, b.const(1, "int64"))

    places = b.Cast(indices, to="int64")
    if call.rank("indices") == 2:
        rows, starts = b.Split(places, axis=1, num_outputs=2, _outputs=2)
    else:
        rows, starts = count(0), places
    coordinates = [along(0, rows), *[along(i, count(i)) for i in range(1, axis)]]
    coordinates.append(b.Add(along(0, starts), along(axis, count(axis))))
    tuples = b.Concat(*[b.Unsqueeze(c, [-1]) for c in coordinates], axis=-1)
    return b.ScatterND(self, tuples, updates)


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
