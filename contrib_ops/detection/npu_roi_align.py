"""Means of bilinear samples of regions of feature maps. Source: torch_npu.npu_roi_align."""

from onnxruntime_npu.opdef import Sample, check, npu_op, torch

from ._boxes import BOX_FLOATS
from ._roi_align import check_arguments, pool, spread

op = npu_op(
    "npu_roi_align(Tensor self, Tensor rois, float spatial_scale, int pooled_height,"
    " int pooled_width, int sample_num, int roi_end_mode) -> Tensor",
    onnx="NPURoiAlign",
    dtypes={"self": BOX_FLOATS, "rois": BOX_FLOATS, "y": BOX_FLOATS},
)


@op.reference
def reference(self, rois, spatial_scale, pooled_height, pooled_width, sample_num, roi_end_mode):
    """Return [n, C, pooled_height, pooled_width] of self's dtype, in float32.

    self: [B, C, H, W]; rois: [n, 5] of self's dtype, the number of the image, x1, y1, x2, y2;
    coordinates times spatial_scale are positions. roi_end_mode 0: as given; 1: x2 + 1, y2 + 1; 2:
    positions less 0.5. A region has at least the size 1, unless the mode is 2. A bin is the mean
    of sample_num^2 samples, or without a positive sample_num of as many as it has pixels, rounded
    up for each axis; a sample more than 1 outside counts 0. An image that is not there gives 0.
    """
    name = "npu_roi_align"
    check(self.dim() == 4, f"[{name}] expected self of shape [B, C, H, W], got {list(self.shape)}")
    check_arguments(name, rois, pooled_height, pooled_width, sample_num, roi_end_mode)
    check(
        self.dtype == rois.dtype,
        f"[{name}] expected rois of the dtype of self, {self.dtype}, got {rois.dtype}",
    )
    how = spatial_scale, pooled_height, pooled_width, sample_num, roi_end_mode
    return pool(name, self, rois, *how).to(self.dtype)


@op.function
def body(b, call, self, rois):
    attrs, mode = call.attrs, call.attrs["roi_end_mode"]
    rois = b.Cast(rois, to="float32")
    image = b.Squeeze(b.Slice(rois, [0], [1], [1]), [1])
    corners = b.Slice(rois, [1], [5], [1])
    if mode == 1:
        corners = b.Add(corners, b.const([[0, 0, 1, 1]], "float32"))
    count = b.Cast(b.Slice(b.Shape(self), [0], [1]), to="float32")
    there = b.And(b.GreaterOrEqual(image, 0.0), b.Less(image, count))
    image = b.Cast(b.Where(there, image, b.const(0.0, "float32")), to="int64")
    pooled = b.RoiAlign(
        b.Cast(self, to="float32"),
        corners,
        image,
        coordinate_transformation_mode="half_pixel" if mode == 2 else "output_half_pixel",
        output_height=attrs["pooled_height"],
        output_width=attrs["pooled_width"],
        sampling_ratio=max(attrs["sample_num"], 0),
        spatial_scale=attrs["spatial_scale"],
    )
    y = b.Where(b.Unsqueeze(there, [1, 2, 3]), pooled, b.const(0.0, "float32"))
    return b.Cast(y, to=call.dtype("self"))


@op.backward("self")
def backward(
    grad_y, self, rois, spatial_scale, pooled_height, pooled_width, sample_num, roi_end_mode
):
    """npu_roi_alignbk; in float64 and for second derivatives autograd of the reference."""
    if self.dtype == torch.float64 or torch.is_grad_enabled():
        how = spatial_scale, pooled_height, pooled_width, sample_num, roi_end_mode
        return spread("npu_roi_align", grad_y, rois, self.shape, *how).to(self.dtype)
    return torch.ops.npu.npu_roi_alignbk(
        grad_y,
        rois,
        self.shape,
        pooled_width,
        pooled_height,
        spatial_scale,
        sample_num,
        roi_end_mode,
    )


@op.samples
def samples(make):
    yield Sample(
        torch.arange(1.0, 37).reshape(1, 1, 6, 6).to(make(0)),
        make.tensor([[0.0, -2.0, -2.0, 22.0, 22.0]]),
        *(0.25, 3, 3, 2, 0),
        id="public",
        expect=[[[[[4.5, 6.5, 8.5], [16.5, 18.5, 20.5], [28.5, 30.5, 32.5]]]]],
    )
    regions = make.tensor(
        [
            [1, 2.25, 3, 13, 9.25],
            [0, -5, 1, 30, 29],  # partly outside
            [2, 1, 1, 5, 5],  # no such image
            [0, 5, 5, 5, 5],  # no area
        ]
    )
    features = make(2, 3, 7, 9)
    yield Sample(features, regions, 0.5, 2, 3, 3, 1, id="end_inside")
    yield Sample(features, regions, 0.4375, 3, 2, 0, 2, id="samples_by_size")
    yield Sample(features, regions[:0], 0.5, 2, 2, 2, 0, id="no_regions")


_NAME = r"\[npu_roi_align\] "
op.errors(
    lambda make: Sample(make(2, 3, 4), make(3, 5), 1.0, 2, 2, 2, 0),
    match=_NAME + r"expected self of shape \[B, C, H, W\], got \[2, 3, 4\]",
    id="rank",
)
op.errors(
    lambda make: Sample(make(1, 2, 3, 4), make(3, 4), 1.0, 2, 2, 2, 0),
    match=_NAME + r"expected rois of shape \[n, 5\], got \[3, 4\]",
    id="columns",
)
op.errors(
    lambda make: Sample(make(1, 2, 3, 4), make(3, 5), 1.0, 2, 0, 2, 0),
    match=_NAME + r"expected pooled_height and pooled_width from 1 to 65536, got 2 and 0",
    id="bins",
)
op.errors(
    lambda make: Sample(make(1, 2, 3, 4), make(3, 5), 1.0, 2, 2, 2, 3),
    match=_NAME + r"expected roi_end_mode 0, 1 or 2, got 3",
    id="mode",
)
op.errors(
    lambda make: Sample(make(1, 2, 3, 4), make.tensor([[0, 0, 0, 6e4, 9]]), 1.0, 2, 2, 0, 0),
    match=_NAME + r"expected regions of at most 4096 samples a bin and axis, got more; "
    r"pass a positive sample_num",
    needs_values=True,
    id="huge_region",
)
