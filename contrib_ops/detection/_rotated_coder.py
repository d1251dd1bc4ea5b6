"""Boxes as npu_rotated_box_encode and npu_rotated_box_decode take them, in torch and ONNX."""

import math

from onnxruntime_npu.opdef import Sample, check, torch, wide


def check_planes(op, self, second, name, weight):
    """Refuse boxes that are not [B, 5, N] of one shape, and weights that are not [5]."""
    check(
        self.dim() == 3 and self.shape[1] == 5 and second.shape == self.shape,
        f"[{op}] expected self and {name} of one shape [B, 5, N], "
        f"got {list(self.shape)} and {list(second.shape)}",
    )
    check(
        list(weight.shape) == [5],
        f"[{op}] expected weight of shape [5], got {list(weight.shape)}",
    )
    check(
        self.dtype == second.dtype == weight.dtype,
        f"[{op}] expected {name} and weight of the dtype of self, {self.dtype}, "
        f"got {second.dtype} and {weight.dtype}",
    )


def tangent_box(boxes):
    """Return centre x, y, width, height and the tangent of the angle, each [B, N]."""
    x1, y1, x2, y2, degrees = wide(boxes).unbind(1)
    return (x1 + x2) / 2, (y1 + y2) / 2, x2 - x1, y2 - y1, (degrees * (math.pi / 180)).tan()


def body_planes(b, boxes):
    """Build the planes of boxes in float32, each [B, 1, N]."""
    return b.Split(b.Cast(boxes, to="float32"), axis=1, num_outputs=5)


def body_tangent_box(b, boxes):
    """Build what tangent_box returns, each [B, 1, N]."""
    x1, y1, x2, y2, degrees = body_planes(b, boxes)
    centre = b.Mul(b.Add(x1, x2), 0.5), b.Mul(b.Add(y1, y2), 0.5)
    return *centre, b.Sub(x2, x1), b.Sub(y2, y1), b.Tan(b.Mul(degrees, math.pi / 180))


def body_weights(b, weight):
    """Build the weights of the planes in float32, [5, 1]."""
    return b.Reshape(b.Cast(weight, to="float32"), b.const([5, 1], "int64"))


def random_boxes(make, *shape):
    """Return boxes [.., 5, N] of positive sides."""
    *batch, count = shape
    corners = make.uniform(*batch, 2, count, high=40)
    sides = make.uniform(*batch, 2, count, low=4, high=60)
    angles = make.uniform(*batch, 1, count, low=-80, high=80)
    return torch.cat([corners, corners + sides, angles], -2)


def refusals(op, second):
    """Add the calls that both operators refuse; ``second``: the name of the second boxes."""
    op.errors(
        lambda make: Sample(make(2, 5, 3), make(2, 5, 4), make(5)),
        match=rf"\[{op.name}\] expected self and {second} of one shape \[B, 5, N\], "
        r"got \[2, 5, 3\] and \[2, 5, 4\]",
        id="boxes",
    )
    op.errors(
        lambda make: Sample(make(2, 5, 3), make(2, 5, 3), make(4)),
        match=rf"\[{op.name}\] expected weight of shape \[5\], got \[4\]",
        id="weight",
    )
