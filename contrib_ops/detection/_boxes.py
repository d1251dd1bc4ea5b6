"""Boxes as the operators of detection take them: checks and sizes, in torch and ONNX."""

from onnxruntime_npu.opdef import check, wide

BOX_FLOATS = ["float32", "float16"]


def check_rows(op, first, a, second, b):
    """Refuse two sets of boxes that are not [N, 4] of one shape and dtype."""
    check(
        a.dim() == 2 and a.shape[1] == 4 and b.shape == a.shape,
        f"[{op}] expected {first} and {second} of one shape [N, 4], "
        f"got {list(a.shape)} and {list(b.shape)}",
    )
    check(
        a.dtype == b.dtype,
        f"[{op}] expected {second} of the dtype of {first}, {a.dtype}, got {b.dtype}",
    )


def pixel_box(boxes):
    """Return centre x, y, width and height of boxes whose corners are pixels of theirs."""
    x1, y1, x2, y2 = wide(boxes).unbind(1)
    return (x1 + x2) / 2, (y1 + y2) / 2, x2 - x1 + 1, y2 - y1 + 1


def body_columns(b, boxes, count=4):
    """Build the columns of boxes in float32, each [N, 1]."""
    return b.Split(b.Cast(boxes, to="float32"), axis=1, num_outputs=count)


def body_pixel_box(b, boxes):
    """Build what pixel_box returns."""
    x1, y1, x2, y2 = body_columns(b, boxes)
    centres = b.Mul(b.Add(x1, x2), 0.5), b.Mul(b.Add(y1, y2), 0.5)
    return *centres, b.Add(b.Sub(x2, x1), 1.0), b.Add(b.Sub(y2, y1), 1.0)
