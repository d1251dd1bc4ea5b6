"""Deltas from rotated anchors to rotated ground truth. Source: torch_npu.npu_rotated_box_encode."""

from onnxruntime_npu.opdef import Sample, npu_op, torch, wide

from ._boxes import BOX_FLOATS
from ._rotated_coder import (
    body_tangent_box,
    body_weights,
    check_planes,
    random_boxes,
    refusals,
    tangent_box,
)

_NAME = "npu_rotated_box_encode"

op = npu_op(
    f"{_NAME}(Tensor self, Tensor gt_bboxes, Tensor weight) -> Tensor",
    onnx="NPURotatedBoxEncode",
    dtypes={name: BOX_FLOATS for name in ("self", "gt_bboxes", "weight", "y")},
)


@op.reference
def reference(self, gt_bboxes, weight):
    """y = [(gx - px) / pw, (gy - py) / ph, ln(gw / pw), ln(gh / ph), tan g - tan p] * weight.

    self (p), gt_bboxes (g): [B, 5, N], the planes x1, y1, x2, y2 and the angle in degrees; x, y the
    centre, w = x2 - x1, h = y2 - y1; weight: [5]; all of one dtype; y: like self.
    """
    check_planes(_NAME, self, gt_bboxes, "gt_bboxes", weight)
    px, py, pw, ph, p = tangent_box(self)
    gx, gy, gw, gh, g = tangent_box(gt_bboxes)
    deltas = [(gx - px) / pw, (gy - py) / ph, (gw / pw).log(), (gh / ph).log(), g - p]
    return (torch.stack(deltas, 1) * wide(weight)[:, None]).to(self.dtype)


@op.function
def body(b, call, self, gt_bboxes, weight):
    px, py, pw, ph, p = body_tangent_box(b, self)
    gx, gy, gw, gh, g = body_tangent_box(b, gt_bboxes)
    shifts = b.Div(b.Sub(gx, px), pw), b.Div(b.Sub(gy, py), ph)
    sizes = b.Log(b.Div(gw, pw)), b.Log(b.Div(gh, ph))
    deltas = b.Concat(*shifts, *sizes, b.Sub(g, p), axis=1)
    return b.Cast(b.Mul(deltas, body_weights(b, weight)), to=call.dtype("self"))


@op.samples
def samples(make):
    yield Sample(
        make.tensor([[[44.2877], [9.1412], [88.7575], [25.8879], [64.8047]]]),
        make.tensor([[[39.1763], [0.9838], [78.1028], [29.5997], [51.5907]]]),
        make.tensor([1.0] * 5),
        id="public",
        expect=[[[[-0.1773], [-0.1327], [-0.1331], [0.5358], [-0.8643]]]]
        if make.dtype == "float16"  # printed to four digits
        else None,
    )
    boxes, truths = (random_boxes(make, 2, 7) for _ in range(2))
    yield Sample(boxes, truths, make.tensor([1.0, 2.0, 0.5, -1.0, 4.0]), id="weights")
    yield Sample(boxes[..., :0], truths[..., :0], make.tensor([1.0] * 5), id="no_boxes")


refusals(op, "gt_bboxes")
