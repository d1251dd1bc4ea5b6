"""Non-maximum suppression of the rotated boxes of one image. Source: torch_npu.npu_nms_rotated.

How many boxes remain depends on the values: the call waits for the device, a trace gets a size of
its own for the result, and a captured graph refuses it.
"""

from onnxruntime_npu.opdef import Sample, check, is_traced, npu_op, torch, wide

from ._boxes import BOX_FLOATS
from ._rotated import centred, common_area, has_area
from ._suppression import check_overlap, keep_greedily

_NAME = "npu_nms_rotated"
_SMALLEST_AREA = 1e-14

op = npu_op(
    f"{_NAME}(Tensor self, Tensor scores, float iou_threshold, float scores_threshold=0,"
    " int max_output_size=-1, int mode=0) -> (Tensor, Tensor)",
    onnx="NPUNmsRotated",
    outputs=["selected_index", "selected_num"],
    dtypes={
        "self": BOX_FLOATS,
        "scores": BOX_FLOATS,
        "selected_index": ["int32"],
        "selected_num": ["int32"],
    },
    not_portable="standard operators do not cut polygons",
)


def _overlaps(boxes, corners, threshold):
    """Return [n, n]: which boxes overlap which by more than the threshold."""
    x, y, width, height, degrees = centred(boxes, corners)
    both_negative = (width < 0) & (height < 0)
    width, height = (torch.where(both_negative, -v, v) for v in (width, height))
    box = x, y, width, height, -degrees if corners else degrees
    counts = has_area(box) & (width * height >= _SMALLEST_AREA)
    area = torch.where(counts, width * height, 1.0)
    both = common_area([v[:, None] for v in box], [v[None] for v in box])
    overlap = both / (area[:, None] + area[None] - both)
    return counts[:, None] & counts[None] & (overlap > threshold)


@op.reference
def reference(self, scores, iou_threshold, scores_threshold=0.0, max_output_size=-1, mode=0):
    """Return the numbers of the M boxes that remain, [M] int32, and M, [1] int32.

    self: [N, 5]: centre x, y, width, height and the angle in degrees, or with mode 1 x1, y1, x2, y2
    and the opposite angle; scores: [N]. Of the boxes with a score above scores_threshold, in order
    of descending score, equal ones as given, each remains whose IoU with all that remain before is
    at most iou_threshold, in [0, 1]; at most max_output_size, -1 for no limit. A box with an area
    below 1e-14, or with a number that is not finite, overlaps none.
    """
    check(
        self.dim() == 2 and self.shape[1] == 5 and scores.shape == self.shape[:1],
        f"[{_NAME}] expected self [N, 5] and scores [N], "
        f"got {list(self.shape)} and {list(scores.shape)}",
    )
    check_overlap(_NAME, "iou_threshold", iou_threshold)
    check(
        max_output_size >= -1,
        f"[{_NAME}] expected max_output_size -1 (all) or a number of boxes, got {max_output_size}",
    )
    check(mode in (0, 1), f"[{_NAME}] expected mode 0 (centre) or 1 (corners), got {mode}")
    ranked, order = wide(scores).sort(descending=True, stable=True)
    if is_traced(self):
        keep = ranked > scores_threshold
    else:
        overlap = _overlaps(self[order], mode == 1, iou_threshold)
        keep = keep_greedily(overlap, ranked > scores_threshold)
        if max_output_size >= 0:
            keep = keep & (keep.cumsum(0) <= max_output_size)
    index = order[keep].to(torch.int32)
    return index, keep.sum().reshape(1).to(torch.int32)


@op.samples
def samples(make):
    boxes = make.tensor([[0, 0, 2, 2, 0], [0, 0, 2, 2, 45], [10, 10, 2, 2, 0]])
    scores = make.tensor([0.9, 0.8, 0.7])
    yield Sample(boxes, scores, 0.5, id="catalogue", expect=[[0, 2], [2]])
    yield Sample(boxes, scores, 0.75, id="below_threshold", expect=[[0, 1, 2], [3]])
    centres, sides = make.uniform(40, 2, high=24), make.uniform(40, 2, low=-1, high=9)
    random = torch.cat([centres, sides, make.uniform(40, 1, low=-180, high=180)], 1)
    ranks = make(40)
    random[5], random[9, 4], ranks[3:6], ranks[7] = random[4], float("nan"), ranks[4], float("nan")
    yield Sample(random, ranks, 0.1, -9.0, id="random")
    yield Sample(random, ranks, 0.3, 0.25, 4, id="limited")
    corners = torch.cat([centres, centres + sides, random[:, 4:]], 1)
    yield Sample(corners, ranks, 0.0, -0.5, mode=1, id="corners")
    yield Sample(boxes[:0], scores[:0], 0.5, id="no_boxes")


op.errors(
    lambda make: Sample(make(3, 4), make(3), 0.5),
    match=r"\[npu_nms_rotated\] expected self \[N, 5\] and scores \[N\], got \[3, 4\] and \[3\]",
    id="boxes",
)
op.errors(
    lambda make: Sample(make(3, 5), make(3), 1.5),
    match=r"\[npu_nms_rotated\] expected iou_threshold from 0 to 1, got 1.5",
    id="threshold",
)
op.errors(
    lambda make: Sample(make(3, 5), make(3), 0.5, 0.0, -2),
    match=r"\[npu_nms_rotated\] expected max_output_size -1 \(all\) or a number of boxes, got -2",
    id="limit",
)
op.errors(
    lambda make: Sample(make(3, 5), make(3), 0.5, mode=2),
    match=r"\[npu_nms_rotated\] expected mode 0 \(centre\) or 1 \(corners\), got 2",
    id="mode",
)
