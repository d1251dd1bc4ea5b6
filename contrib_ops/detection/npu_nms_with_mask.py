"""Which of boxes that are sorted by score others suppress. Source: torch_npu.npu_nms_with_mask.

Sides count without one pixel more. Device generations differ in a box that overlaps by exactly the
threshold: it stays, as on the newest one, which is the rule of torchvision's nms as well. On the
ones before, and with ORT_NPU_GENERATION=older, it goes.
"""

import struct

from onnxruntime_npu.opdef import Sample, check, npu_op, torch, wide

from .._generation import is_older
from ._boxes import BOX_FLOATS
from ._suppression import check_overlap, keep_greedily, overlaps

op = npu_op(
    "npu_nms_with_mask(Tensor input, Scalar iou_threshold) -> (Tensor, Tensor, Tensor)",
    onnx="NPUNmsWithMask",
    outputs=["selected_boxes", "selected_idx", "selected_mask"],
    dtypes={
        "input": BOX_FLOATS,
        "selected_boxes": BOX_FLOATS,
        "selected_idx": ["int32"],
        "selected_mask": ["uint8"],
    },
)


@op.reference
def reference(input, iou_threshold):
    """Return the first five columns, the numbers 0 .. N - 1 as int32, and 1 for boxes that stay.

    input: [N, 5] or [N, 8]: two corners, the lower one first, and the score, which is not read:
    the order of the rows counts. A box stays if its IoU with no box before that stays exceeds
    iou_threshold, in [0, 1]; a box without area overlaps none.
    """
    check(
        input.dim() == 2 and input.shape[1] in (5, 8),
        f"[npu_nms_with_mask] expected input of shape [N, 5] or [N, 8], got {list(input.shape)}",
    )
    check_overlap("npu_nms_with_mask", "iou_threshold", iou_threshold)
    corners = wide(input)[:, :4].unbind(1)
    everyone = torch.ones_like(corners[0], dtype=torch.bool)
    keep = keep_greedily(overlaps(corners, iou_threshold, ties=is_older()), everyone)
    numbers = torch.arange(input.shape[0], dtype=torch.int32, device=input.device)
    return input[:, :5].clone(), numbers, keep.to(torch.uint8)


def _exceeded(threshold):
    """Return what an overlap must exceed: for ties to count, the number of float32 below."""
    if not is_older() or threshold == 0:
        return threshold
    (bits,) = struct.unpack("<I", struct.pack("<f", threshold))
    return struct.unpack("<f", struct.pack("<I", bits - 1))[0]


@op.function
def body(b, call, input):
    boxes = b.Slice(input, [0], [5], [1])
    corners = b.Cast(b.Slice(input, [0], [4], [1]), to="float32")
    x1, y1, x2, y2 = b.Split(corners, axis=1, num_outputs=4)
    # NonMaxSuppression takes any two corners: a box without area must not become one with area.
    empty = b.Or(b.LessOrEqual(x2, x1), b.LessOrEqual(y2, y1))
    corners = b.Where(empty, b.const(0.0, "float32"), corners)
    size = b.Squeeze(b.Slice(b.Shape(input), [0], [1]))
    numbers = b.Range(b.const(0, "int64"), size, b.const(1, "int64"))
    chosen = b.NonMaxSuppression(
        b.Unsqueeze(corners, [0]),
        b.Unsqueeze(b.Neg(b.Cast(numbers, to="float32")), [0, 1]),
        b.const([2**31 - 1], "int64"),
        b.const([_exceeded(call.attrs["iou_threshold"])], "float32"),
    )
    places = b.Slice(chosen, [2], [3], [1])
    none = b.Cast(b.Mul(numbers, 0), to="uint8")
    ones = b.Cast(b.GreaterOrEqual(b.Squeeze(places, [1]), 0), to="uint8")
    return boxes, b.Cast(numbers, to="int32"), b.ScatterND(none, places, ones)


@op.samples
def samples(make):
    boxes = [[0, 0, 4, 4, 0.75], [0, 0, 4, 3, 0.5], [8, 8, 9, 9, 0.25]]
    yield Sample(
        make.tensor(boxes),
        0.5,
        id="catalogue",
        expect=[boxes, [0, 1, 2], [1, 0, 1]],
    )
    corners, sides = make.uniform(70, 2, high=24), make.uniform(70, 2, low=-1, high=6)
    rows = torch.cat([corners, corners + sides, make(70, 4)], 1)
    rows[9, 1] = float("nan")
    yield Sample(rows, 0.2, id="random")
    yield Sample(rows[:, :5], 0, id="any_overlap")
    yield Sample(rows[:0, :5], 0.5, id="no_boxes")


op.errors(
    lambda make: Sample(make(3, 4), 0.5),
    match=r"\[npu_nms_with_mask\] expected input of shape \[N, 5\] or \[N, 8\], got \[3, 4\]",
    id="columns",
)
op.errors(
    lambda make: Sample(make(3, 5), 1.5),
    match=r"\[npu_nms_with_mask\] expected iou_threshold from 0 to 1, got 1.5",
    id="threshold",
)
