"""The anchors of a feature map whose cells hold the centre of a ground truth box.

Source: torch_npu.npu_anchor_response_flags. torch_npu does not say where a centre outside the image
counts; here, as in its newest generation, at the nearest cell, and a centre that is not finite in
the first cell of its axis.
"""

from onnxruntime_npu.opdef import Sample, check, npu_op, torch, wide

from ._boxes import BOX_FLOATS, body_columns

op = npu_op(
    "npu_anchor_response_flags(Tensor self, int[2] featmap_size, int[2] stride,"
    " int num_base_anchors) -> Tensor",
    onnx="NPUAnchorResponseFlags",
    dtypes={"self": BOX_FLOATS, "y": ["uint8"]},
    attribute_names={"featmap_size": "featmap_sizes", "stride": "strides"},
)

_MOST = 2**31 - 1


@op.reference
def reference(self, featmap_size, stride, num_base_anchors):
    """y[(row * width + column) * num_base_anchors + k] = 1 where a box has its centre, else 0.

    self: [M, 4] x1, y1, x2, y2; featmap_size: height and width of the map; stride: of x and y;
    y: [height * width * num_base_anchors] uint8. Column and row are floor(centre / stride).
    """
    name = "[npu_anchor_response_flags]"
    check(
        self.dim() == 2 and self.shape[1] == 4,
        f"{name} expected self of shape [M, 4], got {list(self.shape)}",
    )
    for what, sizes in (("featmap_size", featmap_size), ("stride", stride)):
        check(
            len(sizes) == 2 and min(sizes) > 0 and max(sizes) <= _MOST,
            f"{name} expected {what} of two positive int32 numbers, got {list(sizes)}",
        )
    height, width = featmap_size
    check(
        0 < num_base_anchors <= _MOST // (height * width),
        f"{name} expected num_base_anchors > 0 and at most {_MOST} flags, "
        f"got {num_base_anchors} for each of {height * width} cells",
    )
    x1, y1, x2, y2 = wide(self).unbind(1)

    def cell(centre, step, size):
        place = (centre / step).floor()
        return torch.where(place.isfinite(), place, 0.0).clamp(0, size - 1).to(torch.int64)

    cells = cell((y1 + y2) / 2, stride[1], height) * width + cell((x1 + x2) / 2, stride[0], width)
    flags = torch.zeros(height * width, dtype=torch.uint8, device=self.device)
    ones = torch.ones_like(cells, dtype=torch.uint8)
    return flags.index_put((cells,), ones).repeat_interleave(num_base_anchors)


@op.function
def body(b, call, self):
    height, width = call.attrs["featmap_sizes"]
    x1, y1, x2, y2 = body_columns(b, self)

    def cell(low, high, step, size):
        place = b.Floor(b.Div(b.Mul(b.Add(low, high), 0.5), float(step)))
        unusable = b.Or(b.IsNaN(place), b.IsInf(place))
        place = b.Where(unusable, b.const(0.0, "float32"), place)
        return b.Cast(b.Max(b.Min(place, float(size - 1)), 0.0), to="int64")

    steps = call.attrs["strides"]
    rows, columns = cell(y1, y2, steps[1], height), cell(x1, x2, steps[0], width)
    cells = b.Add(b.Mul(rows, width), columns)
    flags = b.Expand(b.const(0, "uint8"), b.const([height * width], "int64"))
    ones = b.Cast(b.Squeeze(b.Equal(cells, cells), [1]), to="uint8")
    flags = b.Unsqueeze(b.ScatterND(flags, cells, ones), [1])
    anchors = b.const([1, call.attrs["num_base_anchors"]], "int64")
    return b.Reshape(b.Expand(flags, anchors), b.const([-1], "int64"))


@op.samples
def samples(make):
    yield Sample(
        make.tensor([[8.0, 8.0, 24.0, 24.0]]),
        [2, 3],
        [16, 16],
        2,
        id="catalogue",
        expect=[[0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 0, 0]],
    )
    yield Sample(make.uniform(9, 4, low=-20, high=90), [5, 4], [16, 8], 3, id="outside")
    yield Sample(
        make.tensor([[float("nan"), 0, 0, 40], [6e4, 6e4, 6e4, 6e4], [-6e4, 0, -6e4, 0]]),
        [3, 3],
        [16, 16],
        1,
        id="far",
        expect=[[1, 0, 0, 1, 0, 0, 0, 0, 1]] if make.dtype == "float32" else None,
    )
    yield Sample(make(0, 4), [2, 2], [8, 8], 1, id="empty")


op.errors(
    lambda make: Sample(make(3, 5), [2, 2], [8, 8], 1),
    match=r"\[npu_anchor_response_flags\] expected self of shape \[M, 4\], got \[3, 5\]",
    id="columns",
)
op.errors(
    lambda make: Sample(make(3, 4), [2, 2], [8, 0], 1),
    match=r"\[npu_anchor_response_flags\] expected stride of two positive int32 numbers, "
    r"got \[8, 0\]",
    id="stride",
)
op.errors(
    lambda make: Sample(make(3, 4), [2, 2], [8, 8], 2**30),
    match=r"\[npu_anchor_response_flags\] expected num_base_anchors > 0 and at most 2147483647 "
    r"flags, got 1073741824 for each of 4 cells",
    id="anchors",
)
