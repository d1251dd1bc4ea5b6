"""Rotated rectangles in torch: the common area of pairs from all points where they meet."""

import math

from onnxruntime_npu.opdef import check, torch, wide


def check_boxes(op, self, query_boxes):
    """Refuse boxes that are not [B, N, 5] and [B, K, 5]."""
    a, b = list(self.shape), list(query_boxes.shape)
    check(
        len(a) == 3 and a[2] == 5 and len(b) == 3 and b[2] == 5 and a[0] == b[0],
        f"[{op}] expected self [B, N, 5] and query_boxes [B, K, 5], got {a} and {b}",
    )


def centred(boxes, corners):
    """Return x, y, width, height and degrees in float64, from corners if the boxes have them."""
    a, b, c, d, angle = boxes.double().unbind(-1)
    if corners:
        return (a + c) / 2, (b + d) / 2, c - a, d - b, angle
    return a, b, c, d, angle


def has_area(box):
    """Return whether the sides are positive and all numbers finite."""
    finite = torch.stack([v.isfinite() for v in box]).all(0)
    return finite & (box[2] > 0) & (box[3] > 0)


def _points(box):
    """Return the corners [.., 4, 2] in order, and the centre's axes scaled to half the sides."""
    x, y, width, height, degrees = box
    angle = degrees * (math.pi / 180)
    c, s = angle.cos(), angle.sin()
    u = torch.stack([c * width, s * width], -1) / 2
    v = torch.stack([-s * height, c * height], -1) / 2
    centre = torch.stack([x, y], -1)
    return torch.stack([centre + u + v, centre - u + v, centre - u - v, centre + u - v], -2), u, v


def _cross(a, b):
    return a[..., 0] * b[..., 1] - a[..., 1] * b[..., 0]


def _inside(points, box, axes):
    """Return which points [.., 4, 2] lie in the box, its border included."""
    shift = points - torch.stack(box[:2], -1)[..., None, :]
    within = []
    for axis in axes:
        square = axis.square().sum(-1)[..., None]
        along = (shift * axis[..., None, :]).sum(-1)
        within.append(along.abs() <= square * (1 + 1e-9))
    return within[0] & within[1]


def common_area(a, b):
    """Return the area of a and b in common, each a tuple that broadcasts with the other."""
    shape = torch.broadcast_shapes(a[0].shape, b[0].shape)
    counts = has_area(a) & has_area(b)
    middle = [(p + q) / 2 for p, q in zip(a[:2], b[:2], strict=True)]
    a, b = ([v.expand(shape) for v in box] for box in (a, b))
    # Around their middle, so that far boxes lose no digits.
    a = [torch.where(counts, v, 1.0) for v in (a[0] - middle[0], a[1] - middle[1], *a[2:])]
    b = [torch.where(counts, v, 1.0) for v in (b[0] - middle[0], b[1] - middle[1], *b[2:])]
    pa, *axes_a = _points(a)
    pb, *axes_b = _points(b)
    da, db = pa.roll(-1, -2) - pa, pb.roll(-1, -2) - pb
    # Every edge of one against every edge of the other: [.., 4, 4].
    edge, other = da[..., :, None, :], db[..., None, :, :]
    between = pb[..., None, :, :] - pa[..., :, None, :]
    sine = _cross(edge, other)
    crossing = sine != 0
    sine = torch.where(crossing, sine, 1.0)
    t, u = _cross(between, other) / sine, _cross(between, edge) / sine
    crossing = crossing & (t >= 0) & (t <= 1) & (u >= 0) & (u <= 1)
    meets = (pa[..., :, None, :] + t[..., None] * edge).flatten(-3, -2)
    points = torch.cat([meets, pa, pb], -2)
    used = torch.cat([crossing.flatten(-2), _inside(pa, b, axes_b), _inside(pb, a, axes_a)], -1)
    number = used.sum(-1)
    mean = torch.where(used[..., None], points, 0.0).sum(-2) / number.clamp(min=1)[..., None]
    points = torch.where(used[..., None], points - mean[..., None, :], 0.0)
    angle = torch.where(used, torch.atan2(points[..., 1], points[..., 0]), math.inf)
    order = angle.argsort(-1)
    points = points.gather(-2, order[..., None].expand(points.shape))
    # The unused, last, become the first point, which closes the polygon.
    used = used.gather(-1, order)
    points = torch.where(used[..., None], points, points[..., :1, :])
    area = _cross(points, points.roll(-1, -2)).sum(-1).abs() / 2
    return torch.where(counts & (number > 2), area, 0.0)


def result(values, like):
    """Return values in the dtype of the boxes; float64 boxes keep theirs."""
    return values.to(wide(like).dtype).to(like.dtype)


def random_boxes(make, *shape):
    """Return boxes of shape [*shape, 5] around [0, 12], of which some have no area."""
    centres, sides = make.uniform(*shape, 2, high=12), make.uniform(*shape, 2, low=-1, high=9)
    return torch.cat([centres, sides, make.uniform(*shape, 1, low=-180, high=180)], -1)
