"""TensorFlow's StridedSlice, with its masks. Source: torch_npu.npu_indexing.

Device generations differ in the masks. The default is the newest's rule, TensorFlow's own, by which
models that came from there were trained. Older ones size the result without looking at the masks:
with ORT_NPU_GENERATION=older all are as if 0. What such a device puts into a result whose size the
masks contradict is not known. Without masks all generations agree.
"""

from onnxruntime_npu.opdef import Sample, check, npu_op, torch

from .._generation import is_older
from ._shapes import ELEMENTS, copied

_ARGUMENTS = (
    "Tensor self, int[] begin, int[] end, int[] strides, int begin_mask=0, int end_mask=0,"
    " int ellipsis_mask=0, int new_axis_mask=0, int shrink_axis_mask=0"
)
_NAME = "npu_indexing"

op = npu_op(
    f"{_NAME}({_ARGUMENTS}) -> Tensor",
    onnx="NPUIndexing",
    dtypes={"self": ELEMENTS, "y": ELEMENTS},
    out=f"{_NAME}.out({_ARGUMENTS}, *, Tensor(a!) out) -> Tensor(a!)",
    attribute_names={"begin": "begins", "end": "ends"},  # as torch_npu's exporter has them
    sample_dtypes=["float32", "float16", "int64", "bool"],
)

_FIRST, _LAST = -(2**63), 2**63 - 1


def _plan(rank, begin, end, strides, begin_mask, end_mask, ellipsis_mask, new_axis, shrink_axis):
    """Return (axis, start, end, stride, dropped) of slices, and the places of new axes."""
    if is_older():
        begin_mask = end_mask = ellipsis_mask = new_axis = shrink_axis = 0
    count = len(begin)
    check(
        len(end) == len(strides) == count,
        f"[{_NAME}] expected begin, end and strides of one length, "
        f"got {count}, {len(end)} and {len(strides)}",
    )

    def has(mask, i):
        return bool(mask >> i & 1)

    ellipses = [i for i in range(count) if has(ellipsis_mask, i)]
    check(
        len(ellipses) <= 1,
        f"[{_NAME}] expected at most one ellipsis, got {len(ellipses)}",
    )
    taking = [i for i in range(count) if i not in ellipses and not has(new_axis, i)]
    check(
        len(taking) <= rank,
        f"[{_NAME}] expected at most {rank} entries that take an axis, got {len(taking)}",
    )
    slices, added = [], []
    axis = place = 0  # of self, of the result
    for i in range(count):
        if i in ellipses:
            skipped = rank - len(taking)
            axis, place = axis + skipped, place + skipped
        elif has(new_axis, i):
            added.append(place)
            place += 1
        else:
            check(strides[i] != 0, f"[{_NAME}] expected strides that are not 0, got 0")
            forward = strides[i] > 0
            dropped = has(shrink_axis, i)
            check(
                forward or not dropped,
                f"[{_NAME}] expected a positive stride of an axis to drop, got {strides[i]}",
            )
            start, stop = begin[i], end[i]
            if has(begin_mask, i) and not dropped:
                start = _FIRST if forward else _LAST
            if has(end_mask, i):
                stop = _LAST if forward else _FIRST
            slices.append((axis, start, stop, strides[i], dropped))
            axis, place = axis + 1, place + (not dropped)
    return slices, added


@op.reference
def reference(
    self,
    begin,
    end,
    strides,
    begin_mask=0,
    end_mask=0,
    ellipsis_mask=0,
    new_axis_mask=0,
    shrink_axis_mask=0,
):
    """Return self[begin:end:strides] of Python's rules, contiguous.

    begin, end, strides: an entry for each axis from the first on; the axes without one are whole.
    Bit i of a mask speaks of entry i: ellipsis_mask: it stands for all axes that no other takes;
    new_axis_mask: for a new axis of size 1; shrink_axis_mask: for the index begin[i], whose axis
    goes; begin_mask, end_mask: the bound is the tensor's. An entry is the first of these that it
    has a bit for. An index lies in [-size, size), other bounds are cut.
    """
    masks = begin_mask, end_mask, ellipsis_mask, new_axis_mask, shrink_axis_mask
    slices, added = _plan(self.dim(), begin, end, strides, *masks)
    gone = []
    for axis, start, stop, stride, dropped in slices:
        size = self.shape[axis]
        if dropped:
            check(
                -size <= start < size,
                f"[{_NAME}] expected an index from {-size} to {size - 1} of axis {axis}, "
                f"got {start}",
            )
            self = self.narrow(axis, start % size, 1)
            gone.append(axis)
            continue
        start, stop, stride = slice(start, stop, stride).indices(size)
        if stride > 0:
            self = self[(slice(None),) * axis + (slice(start, max(stop, start), stride),)]
        else:
            places = torch.arange(start, min(stop, start), stride, device=self.device)
            self = self.index_select(axis, places)
    for axis in reversed(gone):
        self = self.squeeze(axis)
    for place in added:
        self = self.unsqueeze(place)
    return copied(self)


@op.function
def body(b, call, self):
    attrs = call.attrs
    masks = ("begin_mask", "end_mask", "ellipsis_mask", "new_axis_mask", "shrink_axis_mask")
    lists = (attrs["begins"], attrs["ends"], attrs["strides"])
    slices, added = _plan(call.rank("self"), *lists, *(attrs[name] for name in masks))
    if slices:
        stops = [(start + 1 or _LAST) if dropped else stop for _, start, stop, _, dropped in slices]
        columns = [s[1] for s in slices], stops, [s[0] for s in slices]
        steps = [1 if s[4] else s[3] for s in slices]
        self = b.Slice(self, *(b.const(c, "int64") for c in (*columns, steps)))
    gone = [s[0] for s in slices if s[4]]
    if gone:
        self = b.Squeeze(self, b.const(gone, "int64"))
    if added:
        self = b.Unsqueeze(self, b.const(added, "int64"))
    return self


@op.samples
def samples(make):
    yield Sample(make(4, 5, 6), [-1, 4, 1], [0, 0, 99], [-1, -2, 3], id="backwards")
    if make.dtype != "bool":
        rows = make.tensor([[1, 2, 3, 4], [5, 6, 7, 8]])
        yield Sample(rows, [0, 0], [2, 2], [1, 1], id="public", expect=[[[1, 2], [5, 6]]])
        yield Sample(
            rows,
            [0, 9, -1],
            [0, 0, 0],
            [1, 1, 1],
            ellipsis_mask=1,
            new_axis_mask=2,
            shrink_axis_mask=4,
            id="masks",
            expect=[[[4], [8]]],
        )
    yield Sample(make(3, 4, 5), [1, 3], [0, 1], [2, -1], begin_mask=1, end_mask=3, id="open_ends")
    yield Sample(make(3, 4), [2], [2], [1], id="empty_range")
    yield Sample(make(0, 4), [0, 1], [1, 3], [1, 1], id="empty")


op.static("self", reason="the bounds are fixed, and those of the tensor follow from its sizes")
for _dtype in ELEMENTS:
    op.tolerance(_dtype, rtol=0, atol=0, reason="values are only moved")

_START = r"\[npu_indexing\] expected "
op.errors(
    lambda make: Sample(make(2, 3), [0, 0], [1], [1, 1]),
    match=_START + r"begin, end and strides of one length, got 2, 1 and 2",
    id="lengths",
)
op.errors(
    lambda make: Sample(make(2, 3), [0], [1], [0]),
    match=_START + r"strides that are not 0, got 0",
    id="stride",
)
op.errors(
    lambda make: Sample(make(2), [0, 0], [1, 1], [1, 1]),
    match=_START + r"at most 1 entries that take an axis, got 2",
    id="entries",
)
op.errors(
    lambda make: Sample(make(2, 3), [2], [1], [1], shrink_axis_mask=1),
    match=_START + r"an index from -2 to 1 of axis 0, got 2",
    id="index",
)
op.errors(
    lambda make: Sample(make(2, 3), [1], [1], [-1], shrink_axis_mask=1),
    match=_START + r"a positive stride of an axis to drop, got -1",
    id="dropped_backwards",
)
op.errors(
    lambda make: Sample(make(2, 3), [1, 1], [1, 1], [1, 1], ellipsis_mask=3),
    match=_START + r"at most one ellipsis, got 2",
    id="ellipses",
)
