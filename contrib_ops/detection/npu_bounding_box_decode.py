"""Boxes from deltas and regions, the inverse of npu_bounding_box_encode.

Source: torch_npu.npu_bounding_box_decode. The newest device generation clips to [0, W] and [0, H],
gives 0 for NaN and ignores wh_ratio_clip, which ORT_NPU_GENERATION=newest asks for. The default is
the rule of the generations before it, on which detectors in the field were trained and of which
torch_npu publishes values.
"""

import math

from onnxruntime_npu.opdef import Sample, check, npu_op, torch, wide

from .._generation import is_newest
from ._boxes import BOX_FLOATS, body_columns, body_pixel_box, check_rows, pixel_box
from ._normalisation import FOUR_MEANS_AND_STDS, four

op = npu_op(
    f"npu_bounding_box_decode(Tensor rois, Tensor deltas, {FOUR_MEANS_AND_STDS},"
    " int[1] max_shape, float wh_ratio_clip) -> Tensor",
    onnx="NPUBoundingBoxDecode",
    dtypes={"rois": BOX_FLOATS, "deltas": BOX_FLOATS, "y": BOX_FLOATS},
    attribute_names={"max_shape": "max_shapes"},
)


def _greatest_scale(wh_ratio_clip):
    return math.inf if is_newest() else abs(math.log(wh_ratio_clip))


def _ends(max_shape):
    """Return what x1, y1, x2 and y2 are at most."""
    height, width = (float(size - (not is_newest())) for size in max_shape)
    return [width, height] * 2


@op.reference
def reference(
    rois,
    deltas,
    means0,
    means1,
    means2,
    means3,
    stds0,
    stds1,
    stds2,
    stds3,
    max_shape,
    wh_ratio_clip,
):
    """Return [x1, y1, x2, y2] in the image of max_shape (H, W), like rois.

    With d = deltas * stds + means and p the region as in npu_bounding_box_encode: the centre is
    (px + pw dx, py + ph dy), the size (pw exp(dw), ph exp(dh)) with dw and dh clamped to
    +-|ln(wh_ratio_clip)|; the corners are half the size less 0.5 away, x clamped to [0, W - 1] and
    y to [0, H - 1]. rois, deltas: [N, 4] of one dtype.
    """
    check_rows("npu_bounding_box_decode", "rois", rois, "deltas", deltas)
    check(
        len(max_shape) == 2 and min(max_shape) > 0,
        "[npu_bounding_box_decode] expected max_shape of two positive sizes, height and width, "
        f"got {list(max_shape)}",
    )
    check(
        wh_ratio_clip > 0,
        f"[npu_bounding_box_decode] expected wh_ratio_clip > 0, got {wh_ratio_clip}",
    )
    means, stds = (means0, means1, means2, means3), (stds0, stds1, stds2, stds3)
    dx, dy, dw, dh = (
        d * s + m for d, m, s in zip(wide(deltas).unbind(1), means, stds, strict=True)
    )
    px, py, pw, ph = pixel_box(rois)
    most = _greatest_scale(wh_ratio_clip)
    gx, gy = px + pw * dx, py + ph * dy
    gw, gh = pw * dw.clamp(-most, most).exp(), ph * dh.clamp(-most, most).exp()
    corners = gx - gw / 2 + 0.5, gy - gh / 2 + 0.5, gx + gw / 2 - 0.5, gy + gh / 2 - 0.5
    clipped = [c.clamp(0, end) for c, end in zip(corners, _ends(max_shape), strict=True)]
    if is_newest():
        clipped = [torch.where(c.isnan(), 0.0, c) for c in clipped]
    return torch.stack(clipped, 1).to(rois.dtype)


@op.function
def body(b, call, rois, deltas):
    means, stds = (b.const([four(call.attrs, name)], "float32") for name in ("means", "stds"))
    scaled = b.Add(b.Mul(b.Cast(deltas, to="float32"), stds), means)
    dx, dy, dw, dh = body_columns(b, scaled)
    px, py, pw, ph = body_pixel_box(b, rois)
    most = _greatest_scale(call.attrs["wh_ratio_clip"])
    gx, gy = b.Add(px, b.Mul(pw, dx)), b.Add(py, b.Mul(ph, dy))
    half = [
        b.Sub(b.Mul(b.Mul(p, b.Exp(b.Max(b.Min(d, most), -most))), 0.5), 0.5)
        for p, d in ((pw, dw), (ph, dh))
    ]
    corners = [b.Sub(gx, half[0]), b.Sub(gy, half[1]), b.Add(gx, half[0]), b.Add(gy, half[1])]
    if is_newest():
        corners = [b.Where(b.IsNaN(c), b.const(0.0, "float32"), c) for c in corners]
    ends = _ends(call.attrs["max_shapes"])
    clipped = [b.Max(b.Min(c, end), 0.0) for c, end in zip(corners, ends, strict=True)]
    return b.Cast(b.Concat(*clipped, axis=1), to=call.dtype("rois"))


_PLAIN = [0.0] * 4 + [1.0] * 4


@op.samples
def samples(make):
    regions = make.tensor([[1.0, 2.0, 3.0, 4.0], [3.0, 4.0, 5.0, 6.0]])
    deltas = make.tensor([[5.0, 6.0, 7.0, 8.0], [7.0, 8.0, 9.0, 6.0]])
    yield Sample(
        regions,
        deltas,
        *_PLAIN,
        [10, 10],
        0.1,
        id="public",
        expect=[[[2.5, 6.5, 9.0, 9.0], [9.0, 9.0, 9.0, 9.0]]],
    )
    boxes = make.uniform(9, 4, high=16).sort(-1).values
    normalisation = [0.1, -0.1, 0.2, 0.0, 0.1, 0.2, 0.3, -0.2]
    yield Sample(boxes, make(9, 4), *normalisation, [20, 30], 0.016, id="random")
    yield Sample(regions[:0], deltas[:0], *_PLAIN, [10, 10], 0.016, id="empty")


op.errors(
    lambda make: Sample(make(3, 5), make(3, 5), *_PLAIN, [10, 10], 0.1),
    match=r"\[npu_bounding_box_decode\] expected rois and deltas of one shape \[N, 4\], "
    r"got \[3, 5\] and \[3, 5\]",
    id="columns",
)
op.errors(
    lambda make: Sample(make(3, 4), make(3, 4), *_PLAIN, [10], 0.1),
    match=r"\[npu_bounding_box_decode\] expected max_shape of two positive sizes, height and "
    r"width, got \[10\]",
    id="max_shape",
)
op.errors(
    lambda make: Sample(make(3, 4), make(3, 4), *_PLAIN, [10, 10], 0.0),
    match=r"\[npu_bounding_box_decode\] expected wh_ratio_clip > 0, got 0",
    id="clip",
)
