"""Box deltas from anchors to ground truth, as Faster R-CNN regresses them.

Source: torch_npu.npu_bounding_box_encode.
"""

from onnxruntime_npu.opdef import Sample, npu_op, torch, wide

from ._boxes import BOX_FLOATS, body_pixel_box, check_rows, pixel_box
from ._normalisation import FOUR_MEANS_AND_STDS, four

op = npu_op(
    f"npu_bounding_box_encode(Tensor anchor_box, Tensor ground_truth_box, {FOUR_MEANS_AND_STDS})"
    " -> Tensor",
    onnx="NPUBoundingBoxEncode",
    dtypes={"anchor_box": BOX_FLOATS, "ground_truth_box": BOX_FLOATS, "y": BOX_FLOATS},
)


@op.reference
def reference(
    anchor_box, ground_truth_box, means0, means1, means2, means3, stds0, stds1, stds2, stds3
):
    """y = ([(gx - px) / pw, (gy - py) / ph, ln(gw / pw), ln(gh / ph)] - means) / stds.

    anchor_box (p), ground_truth_box (g): [N, 4] x1, y1, x2, y2 of one dtype; x, y the centre,
    w = x2 - x1 + 1 and h = y2 - y1 + 1; y: like anchor_box. A ratio below zero gives NaN, as on
    all devices but the first generation. Of float16 boxes, what is in brackets is rounded to
    float16 before the means are subtracted: the public example's 13.3281, of float32 13.3333.
    """
    check_rows(
        "npu_bounding_box_encode", "anchor_box", anchor_box, "ground_truth_box", ground_truth_box
    )
    px, py, pw, ph = pixel_box(anchor_box)
    gx, gy, gw, gh = pixel_box(ground_truth_box)
    deltas = (gx - px) / pw, (gy - py) / ph, torch.log(gw / pw), torch.log(gh / ph)
    deltas = [wide(delta.to(anchor_box.dtype)) for delta in deltas]
    means, stds = (means0, means1, means2, means3), (stds0, stds1, stds2, stds3)
    scaled = [(d - m) / torch.full_like(d, s) for d, m, s in zip(deltas, means, stds, strict=True)]
    return torch.stack(scaled, 1).to(anchor_box.dtype)


@op.function
def body(b, call, anchor_box, ground_truth_box):
    px, py, pw, ph = body_pixel_box(b, anchor_box)
    gx, gy, gw, gh = body_pixel_box(b, ground_truth_box)
    shifts = b.Div(b.Sub(gx, px), pw), b.Div(b.Sub(gy, py), ph)
    deltas = b.Concat(*shifts, b.Log(b.Div(gw, pw)), b.Log(b.Div(gh, ph)), axis=1)
    deltas = b.Cast(b.Cast(deltas, to=call.dtype("anchor_box")), to="float32")
    means, stds = (b.const([four(call.attrs, name)], "float32") for name in ("means", "stds"))
    return b.Cast(b.Div(b.Sub(deltas, means), stds), to=call.dtype("anchor_box"))


@op.samples
def samples(make):
    boxes = make.uniform(2, 9, 4, high=16).sort(-1).values
    yield Sample(*boxes, 0.1, -0.2, 0.3, 0.4, 0.5, 1.0, 2.0, -1.0, id="random")
    anchors = make.tensor([[1.0, 2.0, 3.0, 4.0], [3.0, 4.0, 5.0, 6.0]])
    truths = make.tensor([[5.0, 6.0, 7.0, 8.0], [7.0, 8.0, 9.0, 6.0]])
    shift, half = (13.328125, 6.6640625) if make.dtype == "float16" else (13.3333, 6.66667)
    yield Sample(
        anchors,
        truths,
        *[0, 0, 0, 0, 0.1, 0.1, 0.2, 0.2],
        id="public",
        expect=[[[shift, shift, 0.0, 0.0], [shift, half, 0.0, float("nan")]]],
    )
    yield Sample(anchors[:0], truths[:0], *[0.0] * 4, *[1.0] * 4, id="empty")


op.tolerance(
    "float16",
    rtol=2e-3,
    atol=2e-3,
    reason="a shift or logarithm near 1 may be rounded the other way: 2^-10, and the result again",
)
op.errors(
    lambda make: Sample(make(3, 4), make(2, 4), *[0.0] * 4, *[1.0] * 4),
    match=r"\[npu_bounding_box_encode\] expected anchor_box and ground_truth_box of one shape "
    r"\[N, 4\], got \[3, 4\] and \[2, 4\]",
    id="rows",
)
op.errors(
    lambda make: Sample(
        make(3, 4, dtype="float32"), make(3, 4, dtype="float16"), *[0.0] * 4, *[1.0] * 4
    ),
    match=r"\[npu_bounding_box_encode\] expected ground_truth_box of the dtype of anchor_box, "
    r".*float32, got .*float16",
    id="dtype",
)
