"""Common areas of rotated rectangles. Source: torch_npu.npu_rotated_overlaps."""

from onnxruntime_npu.opdef import Sample, npu_op

from ._boxes import BOX_FLOATS
from ._rotated import centred, check_boxes, common_area, random_boxes, result

op = npu_op(
    "npu_rotated_overlaps(Tensor self, Tensor query_boxes, bool trans=False) -> Tensor",
    onnx="NPURotatedOverlaps",
    dtypes={"self": BOX_FLOATS, "query_boxes": BOX_FLOATS, "y": BOX_FLOATS},
    not_portable="standard operators do not cut polygons",
)


@op.reference
def reference(self, query_boxes, trans=False):
    """Return [B, N, K] of self's dtype: the area that box n and query box k have in common.

    self: [B, N, 5], query_boxes: [B, K, 5]: centre x, y, width, height, or with trans x1, y1, x2,
    y2, and the angle in degrees, about the centre. A box with a side that is not positive, or with
    a number that is not finite, has no area.
    """
    check_boxes("npu_rotated_overlaps", self, query_boxes)
    boxes = [v[..., :, None] for v in centred(self, trans)]
    queries = [v[..., None, :] for v in centred(query_boxes, trans)]
    return result(common_area(boxes, queries), self)


@op.samples
def samples(make):
    yield Sample(
        make.tensor([[[0.0, 0.0, 2.0, 2.0, 0.0]]]),
        make.tensor([[[0, 0, 2, 2, 45], [0, 0, 2, 2, 0], [1, 1, 2, 2, 0], [2, 0, 2, 2, 0]]]),
        id="by_hand",  # 8 (sqrt(2) - 1), the same box, a quarter, a common side
        expect=[[[[3.3137085, 4.0, 1.0, 0.0]]]],
    )
    yield Sample(random_boxes(make, 2, 6), random_boxes(make, 2, 5), id="random")
    yield Sample(random_boxes(make, 1, 6), random_boxes(make, 1, 5), True, id="corners")
    yield Sample(random_boxes(make, 2, 0), random_boxes(make, 2, 5), id="no_boxes")


op.tolerance(
    "float32",
    rtol=1e-5,
    atol=1e-4,
    reason="areas of up to 81 are the difference of products as large",
)
op.errors(
    lambda make: Sample(make(2, 3, 5), make(1, 3, 5)),
    match=r"\[npu_rotated_overlaps\] expected self \[B, N, 5\] and query_boxes \[B, K, 5\], "
    r"got \[2, 3, 5\] and \[1, 3, 5\]",
    id="batch",
)
op.errors(
    lambda make: Sample(make(3, 5), make(3, 5)),
    match=r"\[npu_rotated_overlaps\] expected self \[B, N, 5\] and query_boxes \[B, K, 5\], "
    r"got \[3, 5\] and \[3, 5\]",
    id="rank",
)
