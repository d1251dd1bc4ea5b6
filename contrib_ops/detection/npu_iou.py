"""Overlap of every box with every ground truth box. Source: torch_npu.npu_iou, npu_ptiou.

Device generations differ: the newest one adds 0.01 to the sides of the intersection, too, which
ORT_NPU_GENERATION=newest asks for. The default is the rule of the generations before it, with which
detectors in the field were trained, in float32.
"""

from onnxruntime_npu.opdef import Sample, check, npu_op, wide

from .._generation import is_newest
from ._boxes import BOX_FLOATS
from ._pairs import body_corners, body_intersection, check_mode, intersection

op = npu_op(
    "npu_iou(Tensor bboxes, Tensor gtboxes, int mode=0) -> Tensor",
    onnx="NPUIou",
    torch_aliases=["npu_ptiou(Tensor bboxes, Tensor gtboxes, int mode=0) -> Tensor"],
    dtypes={"bboxes": BOX_FLOATS, "gtboxes": BOX_FLOATS, "y": BOX_FLOATS},
)

_SIDE = 0.01  # what a side counts more than its length


def _common_side():
    return _SIDE if is_newest() else 0.0


@op.reference
def reference(bboxes, gtboxes, mode=0):
    """y = intersection / union (mode 0) or / area of the ground truth box (mode 1).

    bboxes: [N, 4], gtboxes: [G, 4], both x1, y1, x2, y2; y: [G, N] of the dtype of bboxes. The
    sides of an area, but not of an intersection, are longer by 0.01. Sides below zero are taken
    as they are in an area and as 0 in an intersection.
    """
    a, b = list(bboxes.shape), list(gtboxes.shape)
    check(
        len(a) == 2 and a[1] == 4 and len(b) == 2 and b[1] == 4,
        f"[npu_iou] expected bboxes [N, 4] and gtboxes [G, 4], got {a} and {b}",
    )
    check_mode("npu_iou", mode)
    box = [v[None] for v in wide(bboxes).unbind(1)]
    truth = [v[:, None] for v in wide(gtboxes).unbind(1)]
    of_box, of_truth = ((v[2] - v[0] + _SIDE) * (v[3] - v[1] + _SIDE) for v in (box, truth))
    both = intersection(box, truth, _common_side())
    return (both / (of_truth if mode else of_box + of_truth - both)).to(bboxes.dtype)


@op.function
def body(b, call, bboxes, gtboxes):
    box = body_corners(b, b.Transpose(bboxes, perm=[1, 0]), centre=False)
    truth = b.Split(b.Cast(gtboxes, to="float32"), axis=1, num_outputs=4)
    of_box, of_truth = (
        b.Mul(b.Add(b.Sub(v[2], v[0]), _SIDE), b.Add(b.Sub(v[3], v[1]), _SIDE))
        for v in (box, truth)
    )
    both = body_intersection(b, box, truth, _common_side())
    area = of_truth if call.attrs["mode"] else b.Sub(b.Add(of_box, of_truth), both)
    return b.Cast(b.Div(both, area), to=call.dtype("bboxes"))


@op.samples
def samples(make):
    boxes = make.tensor([[0, 0, 10, 10], [10, 10, 20, 20], [32, 32, 38, 42]])
    truths = make.tensor([[0, 0, 10, 20], [0, 10, 10, 10], [10, 10, 20, 20]])
    yield Sample(
        boxes,
        truths,
        id="public",
        expect=[[[0.498753, 0, 0], [0, 0, 0], [0, 0.996014, 0]]],
    )
    yield Sample(
        boxes,
        truths,
        1,
        id="public_foreground",
        expect=[[[0.499251, 0, 0], [0, 0, 0], [0, 0.998003, 0]]],
    )
    near, far = make.uniform(2, 5, 4, high=8).sort(1).values.unbind(0)
    yield Sample(near, make.uniform(3, 4, high=8).sort(1).values, id="random")
    yield Sample(near, far[:0], id="no_truths")
    yield Sample(near[:0], far, id="no_boxes")


op.errors(
    lambda make: Sample(make(3, 5), make(2, 4)),
    match=r"\[npu_iou\] expected bboxes \[N, 4\] and gtboxes \[G, 4\], got \[3, 5\] and \[2, 4\]",
    id="columns",
)
op.errors(
    lambda make: Sample(make(3, 4), make(2, 4), 2),
    match=r"\[npu_iou\] expected mode 0 \(IoU\) or 1 \(IoF\), got 2",
    id="mode",
)
