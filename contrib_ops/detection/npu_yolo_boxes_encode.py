"""Regression targets of YOLO from anchors and their ground truth boxes.

Source: torch_npu.npu_yolo_boxes_encode.
"""

from onnxruntime_npu.opdef import Sample, check, npu_op, torch, wide

from ._boxes import BOX_FLOATS, body_columns, check_rows

op = npu_op(
    "npu_yolo_boxes_encode(Tensor self, Tensor gt_bboxes, Tensor stride,"
    " bool performance_mode=False) -> Tensor",
    onnx="NPUYoloBoxesEncode",
    attribute_words={"performance_mode": ["high_precision", "high_performance"]},  # of graph files
    dtypes={"self": BOX_FLOATS, "gt_bboxes": BOX_FLOATS, "stride": ["int32"], "y": BOX_FLOATS},
)

_SMALL, _LARGE = 1e-6, 65504.0


@op.reference
def reference(self, gt_bboxes, stride, performance_mode=False):
    """y = [shift x, shift y, ln(width ratio), ln(height ratio)], like gt_bboxes.

    self (anchors), gt_bboxes: [N, 4] x1, y1, x2, y2 of one dtype; stride: [N] int32. A shift is
    the distance of the centres / stride + 0.5, clamped to [1e-6, 1 - 1e-6]; a ratio, ground truth
    to anchor, is clamped to [1e-6, 65504]. performance_mode, which lets a device compute in
    float16, has no effect: it is always float32.
    """
    check_rows("npu_yolo_boxes_encode", "self", self, "gt_bboxes", gt_bboxes)
    check(
        list(stride.shape) == [self.shape[0]],
        f"[npu_yolo_boxes_encode] expected stride of shape {[self.shape[0]]}, "
        f"got {list(stride.shape)}",
    )
    a, g = wide(self).unbind(1), wide(gt_bboxes).unbind(1)
    steps = stride.to(a[0].dtype)
    shifts = [
        (((g[i] + g[i + 2]) / 2 - (a[i] + a[i + 2]) / 2) / steps + 0.5).clamp(_SMALL, 1 - _SMALL)
        for i in (0, 1)
    ]
    ratios = [((g[i + 2] - g[i]) / (a[i + 2] - a[i])).clamp(_SMALL, _LARGE).log() for i in (0, 1)]
    return torch.stack([*shifts, *ratios], 1).to(gt_bboxes.dtype)


@op.function
def body(b, call, self, gt_bboxes, stride):
    a, g = body_columns(b, self), body_columns(b, gt_bboxes)
    steps = b.Unsqueeze(b.Cast(stride, to="float32"), [1])
    shifts, ratios = [], []
    for i in (0, 1):
        centres = (b.Mul(b.Add(v[i], v[i + 2]), 0.5) for v in (g, a))
        shift = b.Add(b.Div(b.Sub(*centres), steps), 0.5)
        shifts.append(b.Min(b.Max(shift, _SMALL), 1 - _SMALL))
        ratio = b.Div(b.Sub(g[i + 2], g[i]), b.Sub(a[i + 2], a[i]))
        ratios.append(b.Log(b.Min(b.Max(ratio, _SMALL), _LARGE)))
    return b.Cast(b.Concat(*shifts, *ratios, axis=1), to=call.dtype("gt_bboxes"))


@op.samples
def samples(make):
    yield Sample(
        make.tensor([[0.0, 0.0, 4.0, 4.0]]),
        make.tensor([[1.0, 1.0, 3.0, 5.0]]),
        make.tensor([8], "int32"),
        id="catalogue",
        expect=[[[0.5, 0.625, -0.693147, 0.0]]],
    )
    if make.dtype == "float32":
        # The public test: torch.manual_seed(1234), torch.rand((2, 4)) twice.
        generator = torch.Generator().manual_seed(1234)
        yield Sample(
            torch.rand((2, 4), generator=generator),
            torch.rand((2, 4), generator=generator),
            make.tensor([2, 2], "int32"),
            id="public",
            expect=[
                [
                    [0.7921727, 0.5314963, -0.74224466, -13.815511],
                    [0.7360072, 0.58343244, 4.3334002, -0.51378196],
                ]
            ],
        )
    boxes = make.uniform(2, 9, 4, high=64).sort(-1).values
    yield Sample(*boxes, make.ints(9, low=1, high=64, dtype="int32"), True, id="random")
    yield Sample(boxes[0, :0], boxes[1, :0], make.ints(0, dtype="int32"), id="empty")


op.errors(
    lambda make: Sample(make(3, 4), make(3, 4), make.ints(2, dtype="int32")),
    match=r"\[npu_yolo_boxes_encode\] expected stride of shape \[3\], got \[2\]",
    id="stride",
)
