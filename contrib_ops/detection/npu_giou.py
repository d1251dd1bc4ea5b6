"""Generalised IoU of pairs of boxes. Source: torch_npu.npu_giou, npu_giou_backward."""

from onnxruntime_npu.opdef import Sample, check, npu_op, torch

from ._boxes import BOX_FLOATS
from ._pairs import (
    body_corners,
    body_intersection,
    body_sides,
    check_pairs,
    corners,
    enclosing_sides,
    gradients,
    intersection,
)

_ARGUMENTS = "bool trans=False, bool is_cross=False, int mode=0"

op = npu_op(
    f"npu_giou(Tensor self, Tensor gtboxes, {_ARGUMENTS}) -> Tensor",
    onnx="NPUGiou",
    attribute_aliases={"trans": ["tran"]},  # of early versions of torch_npu's exporter
    dtypes={"self": BOX_FLOATS, "gtboxes": BOX_FLOATS, "y": BOX_FLOATS},
)


def _giou(self, gtboxes):
    a, b = corners(self, True), corners(gtboxes, True)
    area_a, area_b = ((v[2] - v[0]) * (v[3] - v[1]) for v in (a, b))
    both = intersection(a, b)
    union = area_a + area_b - both + 1e-16
    width, height = enclosing_sides(a, b)
    outer = width * height
    return (both / union - (outer - union) / outer)[:, None].to(self.dtype)


@op.reference
def reference(self, gtboxes, trans=False, is_cross=False, mode=0):
    """y = intersection / union - (outer - union) / outer for the smallest box around each pair.

    self, gtboxes: [4, n], centre x, y, width, height; y: [n, 1] of self's dtype. As in torch_npu,
    only trans=True, is_cross=False, mode=0 is accepted.
    """
    check(
        bool(trans) and not is_cross and mode == 0,
        "[npu_giou] expected trans True, is_cross False and mode 0, "
        f"got trans {bool(trans)}, is_cross {bool(is_cross)} and mode {mode}",
    )
    check_pairs("npu_giou", self, gtboxes, crossed=False)
    return _giou(self, gtboxes)


@op.function
def body(b, call, self, gtboxes):
    a, c = body_corners(b, self, centre=True), body_corners(b, gtboxes, centre=True)
    areas = [b.Mul(b.Sub(v[2], v[0]), b.Sub(v[3], v[1])) for v in (a, c)]
    both = body_intersection(b, a, c)
    union = b.Add(b.Sub(b.Add(*areas), both), 1e-16)
    outer = b.Mul(*body_sides(b, a, c, b.Min, b.Max))
    y = b.Sub(b.Div(both, union), b.Div(b.Sub(outer, union), outer))
    return b.Cast(b.Transpose(y, perm=[1, 0]), to=call.dtype("self"))


@op.backward("self", "gtboxes")
def backward(grad_y, self, gtboxes):
    return gradients(_giou, grad_y, self, gtboxes)


@op.partner(
    f"npu_giou_backward(Tensor grad, Tensor bboxes, Tensor gtboxes, {_ARGUMENTS})"
    " -> (Tensor, Tensor)"
)
def npu_giou_backward(grad, bboxes, gtboxes, trans=False, is_cross=False, mode=0):
    """Return the gradients of npu_giou's boxes and ground truth boxes, each [4, n]."""
    reference(bboxes, gtboxes, trans, is_cross, mode)
    return gradients(_giou, grad, bboxes, gtboxes)


@op.samples
def samples(make):
    def boxes(n):
        return torch.cat([make.uniform(2, n, high=6), make.uniform(2, n, low=1, high=5)])

    yield Sample(
        make.tensor([[2], [2], [4], [4]]),
        make.tensor([[4], [4], [4], [4]]),
        True,
        id="catalogue",
        expect=[[[-0.079365]]],
    )
    yield Sample(boxes(9), boxes(9), trans=True, id="random")
    yield Sample(boxes(5).t().contiguous().t(), boxes(5), True, id="not_contiguous")
    yield Sample(boxes(0), boxes(0), True, id="empty")


op.errors(
    lambda make: Sample(make(4, 3), make(4, 3)),
    match=r"\[npu_giou\] expected trans True, is_cross False and mode 0, "
    r"got trans False, is_cross False and mode 0",
    id="corners",
)
op.errors(
    lambda make: Sample(make(4, 3), make(4, 2), True),
    match=r"\[npu_giou\] expected as many gtboxes as boxes in self, 3, got 2",
    id="count",
)
op.errors(
    lambda make: Sample(make(3, 4), make(3, 4), True),
    match=r"\[npu_giou\] expected self and gtboxes of shape \[4, n\], got \[3, 4\] and \[3, 4\]",
    id="rows",
)
