"""Intersection over union of rotated rectangles. Source: torch_npu.npu_rotated_iou.

torch_npu says neither what its thresholds of height and angle do, nor what shape the result of
pairs has: here the thresholds are 0 and pairs give [B, N].
"""

from onnxruntime_npu.opdef import Sample, check, npu_op, torch

from ._boxes import BOX_FLOATS
from ._rotated import centred, check_boxes, common_area, has_area, random_boxes, result

op = npu_op(
    "npu_rotated_iou(Tensor self, Tensor query_boxes, bool trans=False, int mode=0,"
    " bool is_cross=True, float v_threshold=0.0, float e_threshold=0.0) -> Tensor",
    onnx="NPURotatedIou",
    dtypes={"self": BOX_FLOATS, "query_boxes": BOX_FLOATS, "y": BOX_FLOATS},
    not_portable="standard operators do not cut polygons",
)


@op.reference
def reference(
    self, query_boxes, trans=False, mode=0, is_cross=True, v_threshold=0.0, e_threshold=0.0
):
    """y = common area / (area + query area - common area + 1e-6), of self's dtype.

    self: [B, N, 5], query_boxes: [B, K, 5], as in npu_rotated_overlaps. is_cross: [B, N, K] of all
    pairs, otherwise [B, N] of box n and query box n (K = N). mode 1 divides by the area of the box
    in self. A box without area overlaps none.
    """
    name = "npu_rotated_iou"
    check_boxes(name, self, query_boxes)
    check(mode in (0, 1), f"[{name}] expected mode 0 (IoU) or 1 (IoF), got {mode}")
    check(
        bool(is_cross) or self.shape[1] == query_boxes.shape[1],
        f"[{name}] expected as many query_boxes as boxes in self, {self.shape[1]}, "
        f"got {query_boxes.shape[1]}",
    )
    check(
        v_threshold == 0 and e_threshold == 0,
        f"[{name}] expected v_threshold and e_threshold 0: torch_npu does not say what others do",
    )
    boxes, queries = centred(self, trans), centred(query_boxes, trans)
    if is_cross:
        boxes = [v[..., :, None] for v in boxes]
        queries = [v[..., None, :] for v in queries]
    both = common_area(boxes, queries)
    area, query_area = boxes[2] * boxes[3], queries[2] * queries[3]
    iou = both / (area if mode else area + query_area - both + 1e-6)
    return result(torch.where(has_area(boxes) & has_area(queries), iou, 0.0), self)


@op.samples
def samples(make):
    yield Sample(
        make.tensor([[[0.0, 0.0, 2.0, 2.0, 0.0]]]),
        make.tensor([[[0.0, 0.0, 2.0, 2.0, 45.0]]]),
        id="catalogue",
        expect=[[[[0.707107]]]],
    )
    yield Sample(random_boxes(make, 2, 6), random_boxes(make, 2, 5), id="random")
    yield Sample(
        random_boxes(make, 2, 6), random_boxes(make, 2, 6), True, 1, False, id="pairs_of_corners"
    )
    yield Sample(random_boxes(make, 2, 3), random_boxes(make, 2, 0), id="no_queries")


_NAME = r"\[npu_rotated_iou\] "
op.errors(
    lambda make: Sample(make(2, 3, 5), make(2, 4, 5), is_cross=False),
    match=_NAME + r"expected as many query_boxes as boxes in self, 3, got 4",
    id="pairs",
)
op.errors(
    lambda make: Sample(make(2, 3, 5), make(2, 4, 5), e_threshold=0.5),
    match=_NAME + r"expected v_threshold and e_threshold 0: torch_npu does not say",
    id="threshold",
)
op.errors(
    lambda make: Sample(make(2, 3, 5), make(2, 4, 5), mode=2),
    match=_NAME + r"expected mode 0 \(IoU\) or 1 \(IoF\), got 2",
    id="mode",
)
