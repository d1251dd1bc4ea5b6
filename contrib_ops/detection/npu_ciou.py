"""Complete IoU of boxes. Source: torch_npu.npu_ciou, _npu_ciou, npu_ciou_backward."""

import math

from onnxruntime_npu.opdef import Sample, npu_op, torch

from ._boxes import BOX_FLOATS
from ._pairs import SMALL, body_distance_iou, check_mode, check_pairs, distance_iou, gradients

_ARGUMENTS = "bool trans=False, bool is_cross=True, int mode=0"
_FORWARD = f"Tensor self, Tensor gtboxes, {_ARGUMENTS}, bool atan_sub_flag=False"
_FACTOR = 4 / math.pi**2

op = npu_op(
    f"npu_ciou({_FORWARD}) -> Tensor",
    onnx="NPUCiou",
    dtypes={"self": BOX_FLOATS, "gtboxes": BOX_FLOATS, "y": BOX_FLOATS},
)


def _ciou(self, gtboxes, trans, is_cross, mode):
    """Return the complete IoU and the difference of the angles."""
    check_mode("npu_ciou", mode)
    check_pairs("npu_ciou", self, gtboxes, is_cross)
    iou, diou, angle = distance_iou(self, gtboxes, trans, is_cross, mode == 1)
    v = _FACTOR * angle.square()
    # In this order: in float32, 1 + 1e-9 is 1, and equal boxes would give 0 / 0.
    alpha = v / ((1 - iou) + SMALL + v)
    return (diou - alpha.detach() * v).to(self.dtype), angle.to(self.dtype)


@op.reference
def reference(self, gtboxes, trans=False, is_cross=True, mode=0, atan_sub_flag=False):
    """y = npu_diou - alpha v: v = 4/pi^2 d^2, alpha = v / (1 + 1e-9 - IoU + v).

    d = atan(w / h) of the ground truth box less that of the box. Arguments and shapes as in
    npu_diou; atan_sub_flag has no effect: the backward pass computes d again.
    """
    return _ciou(self, gtboxes, trans, is_cross, mode)[0]


@op.function
def body(b, call, self, gtboxes):
    iou, diou, angle = body_distance_iou(b, call, self, gtboxes)
    v = b.Mul(b.Mul(angle, angle), _FACTOR)
    alpha = b.Div(v, b.Add(b.Add(b.Sub(1.0, iou), SMALL), v))
    return b.Cast(b.Sub(diou, b.Mul(alpha, v)), to=call.dtype("self"))


def _gradients(grad, self, gtboxes, *flags):
    return gradients(lambda a, b: _ciou(a, b, *flags)[0], grad, self, gtboxes)


@op.backward("self", "gtboxes", constants="alpha is a constant, as in torch_npu's gradient")
def backward(grad_y, self, gtboxes, trans, is_cross, mode):
    """Of every call; torch_npu has it only for trans=True, is_cross=False, mode=0."""
    return _gradients(grad_y, self, gtboxes, trans, is_cross, mode)


@op.partner(f"_npu_ciou({_FORWARD}) -> (Tensor, Tensor)")
def _npu_ciou(self, gtboxes, trans=False, is_cross=True, mode=0, atan_sub_flag=False):
    """Return npu_ciou's result and the difference of the angles, of the same shape."""
    return _ciou(self, gtboxes, trans, is_cross, mode)


@op.partner(
    "npu_ciou_backward(Tensor grad, Tensor bboxes, Tensor gtboxes, Tensor? atan_sub,"
    f" {_ARGUMENTS}) -> (Tensor, Tensor)"
)
def npu_ciou_backward(grad, bboxes, gtboxes, atan_sub, trans=False, is_cross=True, mode=0):
    """Return the gradients of npu_ciou's boxes and ground truth boxes; atan_sub is not read."""
    return _gradients(grad, bboxes, gtboxes, trans, is_cross, mode)


@op.samples
def samples(make):
    def boxes(n):
        return torch.cat([make.uniform(2, n, high=6), make.uniform(2, n, low=1, high=5)])

    yield Sample(
        make.tensor([[0], [0], [4], [4]]),
        make.tensor([[2], [2], [6], [4]]),
        is_cross=False,
        id="catalogue",
        expect=[[[0.101755]]],
    )
    same = boxes(2)
    yield Sample(same, same.clone(), True, False, id="equal_boxes", expect=[[[1.0, 1.0]]])
    yield Sample(boxes(9), boxes(9), True, False, 0, True, id="pairs")
    yield Sample(boxes(5), boxes(3), True, mode=1, id="crossed_foreground")
    yield Sample(boxes(0), boxes(2), id="no_boxes")


op.errors(
    lambda make: Sample(make(4, 3), make(4, 2), is_cross=False),
    match=r"\[npu_ciou\] expected as many gtboxes as boxes in self, 3, got 2",
    id="count",
)
op.errors(
    lambda make: Sample(make(4, 3), make(4, 3), mode=-1),
    match=r"\[npu_ciou\] expected mode 0 \(IoU\) or 1 \(IoF\), got -1",
    id="mode",
)
