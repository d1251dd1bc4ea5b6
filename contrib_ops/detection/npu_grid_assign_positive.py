"""The positive samples of YOLO's grid assigner. Source: torch_npu.npu_grid_assign_positive."""

from onnxruntime_npu.opdef import Sample, check, npu_op, torch

from ._boxes import BOX_FLOATS

op = npu_op(
    "npu_grid_assign_positive(Tensor self, Tensor overlaps, Tensor box_responsible_flags,"
    " Tensor max_overlaps, Tensor argmax_overlaps, Tensor gt_max_overlaps,"
    " Tensor gt_argmax_overlaps, int num_gts, float pos_iou_thr, float min_pos_iou,"
    " bool gt_max_assign_all) -> Tensor",
    onnx="NPUGridAssignPositive",
    dtypes={
        "self": BOX_FLOATS,
        "overlaps": BOX_FLOATS,
        "box_responsible_flags": ["uint8"],
        "max_overlaps": BOX_FLOATS,
        "argmax_overlaps": ["int32"],
        "gt_max_overlaps": BOX_FLOATS,
        "gt_argmax_overlaps": ["int32"],
        "y": BOX_FLOATS,
    },
    may_alias=[("self", "y")],
)


@op.reference
def reference(
    self,
    overlaps,
    box_responsible_flags,
    max_overlaps,
    argmax_overlaps,
    gt_max_overlaps,
    gt_argmax_overlaps,
    num_gts,
    pos_iou_thr,
    min_pos_iou,
    gt_max_assign_all,
):
    """y = the number of the ground truth box that each box is assigned to, counted from 1.

    self: [n], the assignment so far; overlaps: [k, n]; box_responsible_flags, max_overlaps,
    argmax_overlaps: [n]; gt_max_overlaps, gt_argmax_overlaps: [k]; all floats of one dtype, the
    results like self. Only boxes with a flag change. A box of max_overlaps > pos_iou_thr gets
    argmax_overlaps + 1; then of the first num_gts ground truth boxes each with gt_max_overlaps >
    min_pos_iou takes, in order, the box gt_argmax_overlaps, or with gt_max_assign_all every box
    that overlaps it by gt_max_overlaps. A number outside [0, n) means no box.
    """
    name = "[npu_grid_assign_positive]"
    check(self.dim() == 1, f"{name} expected self of shape [n], got {list(self.shape)}")
    check(
        gt_max_overlaps.dim() == 1,
        f"{name} expected gt_max_overlaps of shape [k], got {list(gt_max_overlaps.shape)}",
    )
    n, k = self.shape[0], gt_max_overlaps.shape[0]
    for what, tensor, shape in (
        ("overlaps", overlaps, [k, n]),
        ("box_responsible_flags", box_responsible_flags, [n]),
        ("max_overlaps", max_overlaps, [n]),
        ("argmax_overlaps", argmax_overlaps, [n]),
        ("gt_argmax_overlaps", gt_argmax_overlaps, [k]),
    ):
        check(
            list(tensor.shape) == shape,
            f"{name} expected {what} of shape {shape}, got {list(tensor.shape)}",
        )
    for what, tensor in (
        ("overlaps", overlaps),
        ("max_overlaps", max_overlaps),
        ("gt_max_overlaps", gt_max_overlaps),
    ):
        check(
            tensor.dtype == self.dtype,
            f"{name} expected {what} of the dtype of self, {self.dtype}, got {tensor.dtype}",
        )
    flagged = box_responsible_flags != 0
    first = argmax_overlaps.to(torch.int64) + 1
    y = torch.where(flagged & (max_overlaps > pos_iou_thr), first.to(self), self)
    numbers = torch.arange(k, device=self.device)
    takes = (numbers < num_gts) & (gt_max_overlaps > min_pos_iou)
    if gt_max_assign_all:
        taken = overlaps == gt_max_overlaps[:, None]
    else:
        taken = gt_argmax_overlaps[:, None] == torch.arange(n, device=self.device)
    by = torch.where(taken & takes[:, None], numbers[:, None] + 1, 0)
    last = torch.cat([by.new_zeros(1, n), by]).amax(0)
    return torch.where(flagged & (last > 0), last.to(self), y)


@op.function
def body(b, call, self, overlaps, flags, max_overlaps, argmax, gt_max, gt_argmax):
    attrs, dtype = call.attrs, call.dtype("self")
    flagged = b.Cast(flags, to="bool")

    def exceeds(values, least):
        return b.Greater(b.Cast(values, to="float32"), b.const(least, "float32"))

    def count(values):
        zero, one = b.const(0, "int32"), b.const(1, "int32")
        size = b.Cast(b.Squeeze(b.Shape(values)), to="int32")
        return b.Range(zero, size, one)

    first = b.Cast(b.Add(b.Cast(argmax, to="int64"), 1), to=dtype)
    above = b.And(flagged, exceeds(max_overlaps, attrs["pos_iou_thr"]))
    y = b.Where(above, first, self)
    numbers = count(gt_max)
    most = b.const(min(max(attrs["num_gts"], 0), 2**31 - 1), "int32")
    takes = b.And(b.Less(numbers, most), exceeds(gt_max, attrs["min_pos_iou"]))
    if attrs["gt_max_assign_all"]:
        wide = b.Cast(overlaps, to="float32"), b.Cast(b.Unsqueeze(gt_max, [1]), to="float32")
        taken = b.Equal(*wide)
    else:
        taken = b.Equal(b.Unsqueeze(gt_argmax, [1]), b.Unsqueeze(count(self), [0]))
    taken = b.And(taken, b.Unsqueeze(takes, [1]))
    by = b.Where(taken, b.Add(b.Unsqueeze(numbers, [1]), 1), b.const(0, "int32"))
    none = b.Unsqueeze(b.Mul(count(self), 0), [0])
    last = b.ReduceMax(b.Concat(none, by, axis=0), [0], keepdims=0)
    changed = b.And(flagged, b.Greater(last, 0))
    return b.Where(changed, b.Cast(last, to=dtype), y)


@op.samples
def samples(make):
    def ints(values):
        return make.tensor(values, "int32")

    yield Sample(
        make.tensor([0.0, 0.0, 0.0]),
        make.tensor([[0.6, 0.2, 0.4]]),
        make.tensor([1, 1, 0], "uint8"),
        make.tensor([0.6, 0.2, 0.4]),
        ints([0, 0, 0]),
        make.tensor([0.6]),
        ints([0]),
        1,
        0.5,
        0.0,
        True,
        id="catalogue",
        expect=[[1, 0, 0]],
    )
    if make.dtype == "float32":
        # The public test: torch.manual_seed(1234), then torch.rand in this order.
        generator = torch.Generator().manual_seed(1234)
        assigned, overlaps, most, of_truth = (
            torch.rand(shape, generator=generator) for shape in ((4,), (2, 4), (4,), (2,))
        )
        yield Sample(
            assigned,
            overlaps,
            make.tensor([1, 1, 1, 0], "uint8"),
            most,
            ints([1, 0, 1, 0]),
            of_truth,
            ints([1, 0]),
            128,
            0.5,
            0.0,
            True,
            id="public",
            expect=[[2.0, 1.0, 0.25984418, 0.36664134]],
        )
    overlaps = make.uniform(5, 9)
    of_box, of_truth = overlaps.max(0), overlaps.max(1)
    arguments = (
        make.ints(9, high=3).to(overlaps),
        overlaps,
        make.ints(9, high=2, dtype="uint8"),
        of_box.values,
        of_box.indices.to(torch.int32),
        of_truth.values,
    )
    yield Sample(*arguments, of_truth.indices.to(torch.int32), 5, 0.6, 0.2, True, id="all")
    twice = ints([3, 3, -1, 9, 0])
    yield Sample(*arguments, twice, 4, 0.9, 0.2, False, id="one_box_taken_twice")
    yield Sample(
        *(t[..., :0] if i != 5 else t for i, t in enumerate(arguments)),
        twice,
        *(5, 0.6, 0.2, True),
        id="no_boxes",
    )
    yield Sample(
        *(t[:0] if i in (1, 5) else t for i, t in enumerate(arguments)),
        twice[:0],
        *(0, 0.6, 0.2, True),
        id="no_truths",
    )


def _call(make, **changes):
    given = {
        "self": make(4),
        "overlaps": make(2, 4),
        "box_responsible_flags": make.ints(4, dtype="uint8"),
        "max_overlaps": make(4),
        "argmax_overlaps": make.ints(4, dtype="int32"),
        "gt_max_overlaps": make(2),
        "gt_argmax_overlaps": make.ints(2, dtype="int32"),
        **changes,
    }
    return Sample(*given.values(), 2, 0.5, 0.1, True)


op.errors(
    lambda make: _call(make, overlaps=make(4, 2)),
    match=r"\[npu_grid_assign_positive\] expected overlaps of shape \[2, 4\], got \[4, 2\]",
    id="overlaps",
)
op.errors(
    lambda make: _call(
        make,
        **{"self": make(4, dtype="float32"), "overlaps": make(2, 4, dtype="float16")},
    ),
    match=r"\[npu_grid_assign_positive\] expected overlaps of the dtype of self, .*float32, "
    r"got .*float16",
    id="dtype",
)
