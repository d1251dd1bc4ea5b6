"""Overlap of boxes that are columns [4, n]: what the three differentiable measures share."""

from onnxruntime_npu.opdef import check, torch, wide

SMALL = 1e-9


def check_pairs(op, self, gtboxes, crossed):
    """Refuse boxes that are not [4, n], or not as many of both unless every pair is wanted."""
    a, b = list(self.shape), list(gtboxes.shape)
    check(
        len(a) == 2 and a[0] == 4 and len(b) == 2 and b[0] == 4,
        f"[{op}] expected self and gtboxes of shape [4, n], got {a} and {b}",
    )
    check(
        crossed or a[1] == b[1],
        f"[{op}] expected as many gtboxes as boxes in self, {a[1]}, got {b[1]}",
    )


def check_mode(op, mode):
    """Refuse a mode that is neither IoU nor IoF."""
    check(mode in (0, 1), f"[{op}] expected mode 0 (IoU) or 1 (IoF), got {mode}")


def corners(boxes, centre):
    """Return x1, y1, x2, y2 of boxes given as corners, or as centre and size."""
    a, b, c, d = wide(boxes).unbind(0)
    return (a - c / 2, b - d / 2, a + c / 2, b + d / 2) if centre else (a, b, c, d)


def intersection(a, b, longer=0.0):
    """Return the common area of boxes given as corners, its sides longer by a number."""
    width = torch.minimum(a[2], b[2]) - torch.maximum(a[0], b[0])
    height = torch.minimum(a[3], b[3]) - torch.maximum(a[1], b[1])
    return (width + longer).clamp(min=0) * (height + longer).clamp(min=0)


def enclosing_sides(a, b):
    """Return width and height of the smallest box around both."""
    width = torch.maximum(a[2], b[2]) - torch.minimum(a[0], b[0])
    return width, torch.maximum(a[3], b[3]) - torch.minimum(a[1], b[1])


def distance_iou(self, gtboxes, centre, crossed, foreground):
    """Return IoU, distance IoU, and atan(width / height) of gtboxes less that of self.

    Each has a row per ground truth box if crossed, otherwise one row.
    """
    a, b = corners(self, centre), corners(gtboxes, centre)
    a = [v[None] for v in a]
    b = [v[:, None] if crossed else v[None] for v in b]
    wa, ha, wb, hb = a[2] - a[0], a[3] - a[1] + SMALL, b[2] - b[0], b[3] - b[1] + SMALL
    both = intersection(a, b)
    iou = both / ((wb * hb if foreground else wa * ha + wb * hb - both) + SMALL)
    width, height = enclosing_sides(a, b)
    dx, dy = b[0] + b[2] - a[0] - a[2], b[1] + b[3] - a[1] - a[3]
    distance = (dx.square() + dy.square()) / 4 / (width.square() + height.square() + SMALL)
    return iou, iou - distance, torch.atan(wb / hb) - torch.atan(wa / ha)


def gradients(measure, grad, self, gtboxes):
    """Return the gradients of measure(self, gtboxes), a function in plain torch."""
    _, pullback = torch.func.vjp(measure, self, gtboxes)
    return pullback(grad)


def body_corners(b, boxes, centre, columns=False):
    """Build x1, y1, x2, y2 in float32, each [1, n], or [n, 1] as columns."""
    boxes = b.Cast(boxes, to="float32")
    if columns:
        boxes = b.Transpose(boxes, perm=[1, 0])
    p, q, r, s = b.Split(boxes, axis=int(columns), num_outputs=4)
    if not centre:
        return p, q, r, s
    r, s = b.Mul(r, 0.5), b.Mul(s, 0.5)
    return b.Sub(p, r), b.Sub(q, s), b.Add(p, r), b.Add(q, s)


def body_sides(b, a, c, low, high):
    """Build the extent on both axes from low(x1, x1'), high(x2, x2')."""
    return [b.Sub(high(a[i + 2], c[i + 2]), low(a[i], c[i])) for i in (0, 1)]


def body_intersection(b, a, c, longer=0.0):
    """Build the common area of boxes given as corners, its sides longer by a number."""
    width, height = body_sides(b, a, c, b.Max, b.Min)
    if longer:
        width, height = b.Add(width, longer), b.Add(height, longer)
    return b.Mul(b.Max(width, 0.0), b.Max(height, 0.0))


def body_distance_iou(b, call, self, gtboxes):
    """Build what distance_iou returns, by the attributes of the call."""
    centre, crossed = bool(call.attrs["trans"]), bool(call.attrs["is_cross"])
    a, c = body_corners(b, self, centre), body_corners(b, gtboxes, centre, columns=crossed)
    (wa, ha), (wc, hc) = ((b.Sub(v[2], v[0]), b.Add(b.Sub(v[3], v[1]), SMALL)) for v in (a, c))
    both = body_intersection(b, a, c)
    area = b.Mul(wc, hc)
    if not call.attrs["mode"]:
        area = b.Sub(b.Add(b.Mul(wa, ha), area), both)
    iou = b.Div(both, b.Add(area, SMALL))
    width, height = body_sides(b, a, c, b.Min, b.Max)
    diagonal = b.Add(b.Add(b.Mul(width, width), b.Mul(height, height)), SMALL)
    shifts = [b.Sub(b.Add(c[i], c[i + 2]), b.Add(a[i], a[i + 2])) for i in (0, 1)]
    distance = b.Mul(b.Add(*(b.Mul(v, v) for v in shifts)), 0.25)
    angle = b.Sub(b.Atan(b.Div(wc, hc)), b.Atan(b.Div(wa, ha)))
    return iou, b.Sub(iou, b.Div(distance, diagonal)), angle
