"""Non-maximum suppression of the boxes of one image, as in TensorFlow's NonMaxSuppressionV4.

Source: torch_npu.npu_nms_v4.
"""

from onnxruntime_npu.opdef import Sample, check, is_traced, npu_op, torch, wide

from ._boxes import BOX_FLOATS
from ._suppression import check_count, check_overlap, keep_greedily, overlaps

op = npu_op(
    "npu_nms_v4(Tensor self, Tensor scores, Scalar max_output_size, Tensor iou_threshold,"
    " Tensor scores_threshold, bool pad_to_max_output_size=False) -> (Tensor, Tensor)",
    onnx="NPUNmsV4",
    outputs=["selected_indices", "valid_outputs"],
    dtypes={
        "self": BOX_FLOATS,
        "scores": BOX_FLOATS,
        "iou_threshold": ["float32"],
        "scores_threshold": ["float32"],
        "selected_indices": ["int32"],
        "valid_outputs": ["int32"],
    },
)


@op.reference
def reference(
    self, scores, max_output_size, iou_threshold, scores_threshold, pad_to_max_output_size=False
):
    """Return the numbers of the chosen boxes, [max_output_size] int32, and how many they are, [].

    self: [N, 4], any two opposite corners y, x; scores: [N]; iou_threshold in [0, 1],
    scores_threshold: one float32 each. Of the boxes with a score above scores_threshold, in order
    of descending score, equal ones as given, each is chosen whose IoU with all chosen before is at
    most iou_threshold; a box without area overlaps none. The numbers behind the chosen are 0, as
    torch_npu says of pad_to_max_output_size only, which therefore has no effect.
    """
    name = "npu_nms_v4"
    check(
        self.dim() == 2 and self.shape[1] == 4 and scores.shape == self.shape[:1],
        f"[{name}] expected self [N, 4] and scores [N], "
        f"got {list(self.shape)} and {list(scores.shape)}",
    )
    check_count(name, "max_output_size", max_output_size)
    for what, threshold in (
        ("iou_threshold", iou_threshold),
        ("scores_threshold", scores_threshold),
    ):
        check(
            threshold.numel() == 1,
            f"[{name}] expected {what} of one value, got shape {list(threshold.shape)}",
        )
    if not is_traced(iou_threshold):
        check_overlap(name, "iou_threshold", iou_threshold.item())
    most = int(max_output_size)
    ranked, order = wide(scores).sort(descending=True, stable=True)
    y1, x1, y2, x2 = wide(self)[order].unbind(1)
    corners = [torch.minimum(y1, y2), torch.minimum(x1, x2)]
    corners += [torch.maximum(y1, y2), torch.maximum(x1, x2)]
    keep = keep_greedily(
        overlaps(corners, iou_threshold.reshape(())), ranked > scores_threshold.reshape(())
    )
    place = keep.cumsum(0) - 1
    keep = keep & (place < most)
    indices = torch.zeros(most + 1, dtype=torch.int32, device=self.device)
    indices = indices.scatter(0, torch.where(keep, place, most), order.to(torch.int32))
    return indices[:most], keep.sum().to(torch.int32)


@op.function
def body(b, call, self, scores, iou_threshold, scores_threshold):
    most = int(call.attrs["max_output_size"])
    one = b.const([1], "int64")
    chosen = b.NonMaxSuppression(
        b.Unsqueeze(b.Cast(self, to="float32"), [0]),
        b.Unsqueeze(b.Cast(scores, to="float32"), [0, 1]),
        b.const([most], "int64"),
        b.Reshape(iou_threshold, one),
        b.Reshape(scores_threshold, one),
    )
    indices = b.Cast(b.Reshape(b.Slice(chosen, [2], [3], [1]), b.const([-1], "int64")), to="int32")
    count = b.Shape(indices)
    missing = b.Concat(b.const([0], "int64"), b.Sub(b.const([most], "int64"), count), axis=0)
    return b.Pad(indices, missing), b.Squeeze(b.Cast(count, to="int32"))


@op.samples
def samples(make):
    def threshold(value):
        return torch.tensor(value)

    boxes = make.tensor([[0, 0, 4, 4], [0, 0, 4, 3], [8, 8, 9, 9]])
    scores = make.tensor([0.9, 0.8, 0.7])
    yield Sample(
        boxes,
        scores,
        3,
        threshold(0.5),
        threshold(0.3),
        id="catalogue",
        expect=[[0, 2, 0], 2],
    )
    corners = make.uniform(40, 2, high=24)
    sides = make.uniform(40, 2, low=-6, high=6)
    random, ranks = torch.cat([corners, corners + sides], 1), make(40)
    ranks[3:6], ranks[7] = ranks[2], float("nan")
    yield Sample(random, ranks, 9, threshold([0.3]), threshold(-0.4), True, id="random")
    yield Sample(random, ranks, 60, threshold(0.1), threshold(-9.0), id="all")
    yield Sample(boxes[:0], scores[:0], 2, threshold(0.5), threshold(0.3), id="no_boxes")


op.errors(
    lambda make: Sample(make(3, 4), make(2), 3, torch.tensor(0.5), torch.tensor(0.5)),
    match=r"\[npu_nms_v4\] expected self \[N, 4\] and scores \[N\], got \[3, 4\] and \[2\]",
    id="scores",
)
op.errors(
    lambda make: Sample(make(3, 4), make(3), 2.5, torch.tensor(0.5), torch.tensor(0.5)),
    match=r"\[npu_nms_v4\] expected max_output_size to be a whole number from 0 to 2147483647, "
    r"got 2.5",
    id="most",
)
op.errors(
    lambda make: Sample(make(3, 4), make(3), 2, torch.tensor(1.5), torch.tensor(0.5)),
    match=r"\[npu_nms_v4\] expected iou_threshold from 0 to 1, got 1.5",
    needs_values=True,
    id="iou_threshold",
)
op.errors(
    lambda make: Sample(make(3, 4), make(3), 2, torch.zeros(2), torch.tensor(0.5)),
    match=r"\[npu_nms_v4\] expected iou_threshold of one value, got shape \[2\]",
    id="two_thresholds",
)
