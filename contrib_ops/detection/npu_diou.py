"""Distance IoU of boxes. Source: torch_npu.npu_diou, npu_diou_backward."""

from onnxruntime_npu.opdef import Sample, npu_op, torch

from ._boxes import BOX_FLOATS
from ._pairs import body_distance_iou, check_mode, check_pairs, distance_iou, gradients

_ARGUMENTS = "bool trans=False, bool is_cross=False, int mode=0"

op = npu_op(
    f"npu_diou(Tensor self, Tensor gtboxes, {_ARGUMENTS}) -> Tensor",
    onnx="NPUDiou",
    dtypes={"self": BOX_FLOATS, "gtboxes": BOX_FLOATS, "y": BOX_FLOATS},
)


def _diou(self, gtboxes, trans, is_cross, mode):
    check_mode("npu_diou", mode)
    check_pairs("npu_diou", self, gtboxes, is_cross)
    return distance_iou(self, gtboxes, trans, is_cross, mode == 1)[1].to(self.dtype)


@op.reference
def reference(self, gtboxes, trans=False, is_cross=False, mode=0):
    """y = IoU - distance of the centres^2 / diagonal of the smallest box around both^2.

    self: [4, n], gtboxes: [4, m], x1, y1, x2, y2, or with trans centre x, y, width, height; y: of
    self's dtype, [1, n] of the pairs (m = n), or with is_cross [m, n] of every ground truth box
    with every box. mode 1 divides the intersection by the area of the ground truth box. Heights,
    denominators and diagonals count 1e-9 more.
    """
    return _diou(self, gtboxes, trans, is_cross, mode)


@op.function
def body(b, call, self, gtboxes):
    return b.Cast(body_distance_iou(b, call, self, gtboxes)[1], to=call.dtype("self"))


def _gradients(grad, self, gtboxes, *flags):
    return gradients(lambda a, b: _diou(a, b, *flags), grad, self, gtboxes)


@op.backward("self", "gtboxes")
def backward(grad_y, self, gtboxes, trans, is_cross, mode):
    """Of every call; torch_npu has it only for trans=True, is_cross=False, mode=0."""
    return _gradients(grad_y, self, gtboxes, trans, is_cross, mode)


@op.partner(
    f"npu_diou_backward(Tensor grad, Tensor bboxes, Tensor gtboxes, {_ARGUMENTS})"
    " -> (Tensor, Tensor)"
)
def npu_diou_backward(grad, bboxes, gtboxes, trans=False, is_cross=False, mode=0):
    """Return the gradients of npu_diou's boxes and ground truth boxes."""
    return _gradients(grad, bboxes, gtboxes, trans, is_cross, mode)


@op.samples
def samples(make):
    def boxes(n):
        return torch.cat([make.uniform(2, n, high=6), make.uniform(2, n, low=1, high=5)])

    yield Sample(
        make.tensor([[0], [0], [4], [4]]),
        make.tensor([[2], [2], [6], [6]]),
        id="catalogue",
        expect=[[[0.031746]]],
    )
    yield Sample(boxes(9), boxes(9), trans=True, id="pairs")
    yield Sample(boxes(5), boxes(3), True, True, 1, id="crossed_foreground")
    yield Sample(boxes(0), boxes(0), True, id="empty")


op.errors(
    lambda make: Sample(make(4, 3), make(4, 2)),
    match=r"\[npu_diou\] expected as many gtboxes as boxes in self, 3, got 2",
    id="count",
)
op.errors(
    lambda make: Sample(make(4, 3), make(4, 3), mode=3),
    match=r"\[npu_diou\] expected mode 0 \(IoU\) or 1 \(IoF\), got 3",
    id="mode",
)
