"""Rotated boxes from anchors and deltas, the inverse of npu_rotated_box_encode.

Source: torch_npu.npu_rotated_box_decode.
"""

import math

from onnxruntime_npu.opdef import Sample, npu_op, torch, wide

from ._boxes import BOX_FLOATS
from ._rotated_coder import (
    body_planes,
    body_tangent_box,
    body_weights,
    check_planes,
    random_boxes,
    refusals,
    tangent_box,
)

_NAME = "npu_rotated_box_decode"

op = npu_op(
    f"{_NAME}(Tensor self, Tensor deltas, Tensor weight) -> Tensor",
    onnx="NPURotatedBoxDecode",
    dtypes={name: BOX_FLOATS for name in ("self", "deltas", "weight", "y")},
)


@op.reference
def reference(self, deltas, weight):
    """Return the boxes that npu_rotated_box_encode, with self and weight, turns into deltas.

    self: [B, 5, N] anchors, the planes x1, y1, x2, y2 and the angle in degrees; deltas: [B, 5, N];
    weight: [5]; all of one dtype; y: like self, with angles between -90 and 90 degrees.
    """
    check_planes(_NAME, self, deltas, "deltas", weight)
    px, py, pw, ph, p = tangent_box(self)
    dx, dy, dw, dh, da = (wide(deltas) / wide(weight)[:, None]).unbind(1)
    x, y, width, height = px + pw * dx, py + ph * dy, pw * dw.exp() / 2, ph * dh.exp() / 2
    degrees = (p + da).atan() * (180 / math.pi)
    return torch.stack([x - width, y - height, x + width, y + height, degrees], 1).to(self.dtype)


@op.function
def body(b, call, self, deltas, weight):
    px, py, pw, ph, p = body_tangent_box(b, self)
    scaled = b.Div(b.Cast(deltas, to="float32"), body_weights(b, weight))
    dx, dy, dw, dh, da = body_planes(b, scaled)
    x, y = b.Add(px, b.Mul(pw, dx)), b.Add(py, b.Mul(ph, dy))
    width, height = (b.Mul(b.Mul(side, b.Exp(d)), 0.5) for side, d in ((pw, dw), (ph, dh)))
    corners = b.Sub(x, width), b.Sub(y, height), b.Add(x, width), b.Add(y, height)
    degrees = b.Mul(b.Atan(b.Add(p, da)), 180 / math.pi)
    return b.Cast(b.Concat(*corners, degrees, axis=1), to=call.dtype("self"))


@op.samples
def samples(make):
    yield Sample(
        make.tensor([[[32.1855], [41.9922], [64.1435], [62.5325], [34.607]]]),
        make.tensor([[[1.8725], [-1.8915], [0.2395], [-0.4622], [-34.6539]]]),
        make.tensor([1.0] * 5),
        id="public",
        expect=[[[[87.70366], [6.9412346], [128.31055], [19.879467], [-88.313515]]]]
        if make.dtype == "float32"
        else None,
    )
    boxes, weight = random_boxes(make, 2, 7), make.tensor([1.0, 2.0, 0.5, -1.0, 4.0])
    yield Sample(boxes, make(2, 5, 7), weight, id="weights")
    yield Sample(boxes[..., :0], make(2, 5, 0), weight, id="no_boxes")


refusals(op, "deltas")
