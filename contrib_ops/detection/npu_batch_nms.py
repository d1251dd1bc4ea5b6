"""Non-maximum suppression per image and class, and the best boxes of each image.

Source: torch_npu.npu_batch_nms.
"""

from onnxruntime_npu.opdef import Sample, check, is_traced, npu_op, torch, wide

from ._boxes import BOX_FLOATS
from ._suppression import check_count, check_overlap, keep_greedily, overlaps

op = npu_op(
    "npu_batch_nms(Tensor self, Tensor scores, float score_threshold, float iou_threshold,"
    " int max_size_per_class, int max_total_size, bool change_coordinate_frame=False,"
    " bool transpose_box=False) -> (Tensor, Tensor, Tensor, Tensor)",
    onnx="NPUBatchNms",
    outputs=["nmsed_boxes", "nmsed_scores", "nmsed_classes", "nmsed_num"],
    dtypes={
        "self": BOX_FLOATS,
        "scores": BOX_FLOATS,
        "nmsed_boxes": BOX_FLOATS,
        "nmsed_scores": BOX_FLOATS,
        "nmsed_classes": BOX_FLOATS,
        "nmsed_num": ["int32"],
    },
    not_portable="the images of a batch have different numbers of boxes between the two selections",
)

_SMALLEST_UNION = 1e-12


def _best_of_class(boxes, scores, least, overlap, most):
    """Return the numbers of the boxes [N, 4] that remain of one class, by descending score."""
    y1, x1, y2, x2 = boxes.unbind(1)
    order = scores.sort(descending=True, stable=True).indices
    order = order[((scores > least) & (y2 > y1) & (x2 > x1))[order]]
    corners = boxes[order].unbind(1)
    everyone = torch.ones_like(order, dtype=torch.bool)
    return order[keep_greedily(overlaps(corners, overlap, _SMALLEST_UNION), everyone)][:most]


@op.reference
def reference(
    self,
    scores,
    score_threshold,
    iou_threshold,
    max_size_per_class,
    max_total_size,
    change_coordinate_frame=False,
    transpose_box=False,
):
    """Return boxes [B, T, 4], scores [B, T], classes [B, T] and how many count, [B] int32.

    T = max_total_size; the rest is 0, all but the last result of self's dtype. self: [B, N, q, 4]
    y1, x1, y2, x2 (with transpose_box [B, q, 4, N]), q = 1 for boxes of all classes or C; scores:
    [B, N, C]. Of each image and class, the boxes of positive sides with a score above
    score_threshold, by descending score, remain if their IoU with each that remains before is at
    most iou_threshold, at most max_size_per_class; then the best of the image remain, equal scores
    by class. Without boxes none count, where torch_npu raises. change_coordinate_frame needs a
    window that torch_npu does not pass: no effect.
    """
    name = "npu_batch_nms"
    check(
        self.dim() == 4 and scores.dim() == 3,
        f"[{name}] expected self of rank 4 and scores of rank 3, "
        f"got {list(self.shape)} and {list(scores.shape)}",
    )
    boxes = self.permute(0, 3, 1, 2) if transpose_box else self
    batch, count, classes = scores.shape
    check(
        boxes.shape[0] == batch
        and boxes.shape[1] == count
        and boxes.shape[2] in (1, classes)
        and boxes.shape[3] == 4,
        f"[{name}] expected self [B, N, q, 4], or transposed [B, q, 4, N], for scores [B, N, C] "
        f"with q 1 or C, got {list(self.shape)} and {list(scores.shape)}",
    )
    check(
        self.dtype == scores.dtype,
        f"[{name}] expected scores of the dtype of self, {self.dtype}, got {scores.dtype}",
    )
    check_overlap(name, "iou_threshold", iou_threshold)
    check_count(name, "max_size_per_class", max_size_per_class)
    check_count(name, "max_total_size", max_total_size)
    total = max_total_size
    results = (
        self.new_zeros(batch, total, 4),
        self.new_zeros(batch, total),
        self.new_zeros(batch, total),
        torch.zeros(batch, dtype=torch.int32, device=self.device),
    )
    if is_traced(self):
        return results
    for i in range(batch):
        numbers, of_class = [], []
        for c in range(classes):
            of = boxes[i, :, min(c, boxes.shape[2] - 1)]
            arguments = score_threshold, iou_threshold, max_size_per_class
            best = _best_of_class(wide(of), wide(scores[i, :, c]), *arguments)
            numbers.append(best)
            of_class.append(torch.full_like(best, c))
        if not classes:
            continue
        numbers, of_class = torch.cat(numbers), torch.cat(of_class)
        best = scores[i][numbers, of_class].sort(descending=True, stable=True).indices[:total]
        numbers, of_class = numbers[best], of_class[best]
        found = len(best)
        results[0][i, :found] = boxes[i][numbers, of_class.clamp(max=boxes.shape[2] - 1)]
        results[1][i, :found] = scores[i][numbers, of_class]
        results[2][i, :found] = of_class.to(self.dtype)
        results[3][i] = found
    return results


@op.samples
def samples(make):
    yield Sample(
        make.tensor([[[[0, 0, 4, 4]], [[0, 0, 4, 3]], [[8, 8, 9, 9]]]]),
        make.tensor([[[0.75], [0.625], [0.5]]]),
        0.3,
        0.5,
        4,
        4,
        id="catalogue",
        expect=[
            [[[0, 0, 4, 4], [8, 8, 9, 9], [0, 0, 0, 0], [0, 0, 0, 0]]],
            [[0.75, 0.5, 0, 0]],
            [[0, 0, 0, 0]],
            [2],
        ],
    )
    corners, sides = make.uniform(2, 30, 3, 2, high=24), make.uniform(2, 30, 3, 2, low=-1, high=6)
    boxes, scores = torch.cat([corners, corners + sides], 3), make(2, 30, 3)
    scores[0, 3:9], scores[1, 4] = scores[0, 3], float("nan")
    yield Sample(boxes, scores, -1.0, 0.2, 8, 20, id="boxes_of_classes")
    across = boxes[:, :, :1].permute(0, 2, 3, 1)
    yield Sample(across, scores, 0.5, 0.4, 2, 5, transpose_box=True, id="transposed")
    yield Sample(boxes[:, :0], scores[:, :0], 0.0, 0.5, 4, 4, id="no_boxes")


op.errors(
    lambda make: Sample(make(2, 5, 2, 4), make(2, 5, 3), 0.0, 0.5, 4, 4),
    match=r"\[npu_batch_nms\] expected self \[B, N, q, 4\], or transposed \[B, q, 4, N\], for "
    r"scores \[B, N, C\] with q 1 or C, got \[2, 5, 2, 4\] and \[2, 5, 3\]",
    id="classes",
)
op.errors(
    lambda make: Sample(make(2, 5, 1, 4), make(2, 5, 3), 0.0, 0.5, 4, -1),
    match=r"\[npu_batch_nms\] expected max_total_size to be a whole number from 0 to 2147483647, "
    r"got -1",
    id="total",
)
op.errors(
    lambda make: Sample(make(2, 5, 1, 4), make(2, 5, 3), 0.0, 1.1, 4, 4),
    match=r"\[npu_batch_nms\] expected iou_threshold from 0 to 1, got 1.1",
    id="threshold",
)
op.errors(
    lambda make: Sample(
        make(2, 5, 1, 4, dtype="float32"), make(2, 5, 3, dtype="float16"), 0.0, 0.5, 4, 4
    ),
    match=r"\[npu_batch_nms\] expected scores of the dtype of self, .*float32, got .*float16",
    id="dtype",
)
