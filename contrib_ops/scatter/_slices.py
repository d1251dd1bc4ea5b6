"""Updates that are written into slices along one axis, one batch row each: torch and ONNX forms."""

from onnxruntime_npu.opdef import check, check_indices, torch


def check_slices(op, self, indices, updates, axis):
    """Refuse shapes of which the updates do not fit slices of self along axis."""
    rank = self.dim()
    check(
        rank >= 2 and updates.dim() == rank,
        f"[{op}] expected self and updates of one rank >= 2, "
        f"got shapes {list(self.shape)} and {list(updates.shape)}",
    )
    check(
        -rank < axis < rank and axis != 0,
        f"[{op}] expected axis in [{1 - rank}, -1] or [1, {rank - 1}], got {axis}",
    )
    check(
        indices.dim() <= 1 or (indices.dim() == 2 and indices.shape[1] == 2),
        f"[{op}] expected indices of shape [], [K] or [K, 2], got {list(indices.shape)}",
    )
    count = indices.shape[0] if indices.dim() else 1
    check(
        updates.shape[0] == count,
        f"[{op}] expected updates with {count} rows, one for each index, "
        f"got shape {list(updates.shape)}",
    )
    check(
        indices.dim() == 2 or count <= self.shape[0],
        f"[{op}] expected at most {self.shape[0]} indices, one for each batch row of "
        f"self, got {count}",
    )
    for i in range(1, rank):
        s, u = self.shape[i], updates.shape[i]
        check(
            u <= s if i == axis % rank else u == s,
            f"[{op}] expected updates that fit self {list(self.shape)} outside axis "
            f"{axis}, got {list(updates.shape)}",
        )


def write_slices(op, self, indices, updates, axis):
    """Return self with updates[i] at indices[i] on axis, for shapes that check_slices takes."""
    axis = axis % self.dim()
    places = indices.to(torch.int64)
    if indices.dim() == 2:
        rows, starts = places.unbind(-1)
    else:
        rows, starts = torch.arange(updates.shape[0], device=self.device), places.reshape(-1)

    room = self.shape[axis] - updates.shape[axis]
    check_indices(rows, 0, self.shape[0], f"[{op}] expected batch rows")
    note = ", so that the updates fit the axis"
    check_indices(starts, 0, room, f"[{op}] expected indices", closed=True, note=note)
    # Bring axis to the second place: then every update is a run of y[row, start : start + L].
    along = self.movedim(axis, 1)
    positions = starts[:, None] + torch.arange(updates.shape[axis], device=self.device)
    y = along.index_put((rows[:, None], positions), updates.movedim(axis, 1))
    return y.movedim(1, axis)


def body_write_slices(b, call, self, indices, updates):
    """Build the same; the call's axis and the ranks of its updates and indices are used."""
    rank = call.rank("updates")
    axis = call.attrs["axis"] % rank
    shape = b.Shape(updates)
    grid = b.Slice(shape, [0], [axis + 1])

    def along(dim, values):
        """Give int64 values of one axis to the whole grid [K, .., L]."""
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
