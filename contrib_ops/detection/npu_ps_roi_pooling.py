"""Position-sensitive means of regions, as in R-FCN. Source: torch_npu.npu_ps_roi_pooling.

Coordinates are rounded before they are scaled, as in upstream's kernels; a public variant of the
operator rounds afterwards, which differs for coordinates that are not whole numbers only.
"""

from onnxruntime_npu.opdef import Sample, check, npu_op, torch

from ._boxes import BOX_FLOATS
from ._position_bins import check_arguments, check_map, pool, spread

op = npu_op(
    "npu_ps_roi_pooling(Tensor self, Tensor rois, float spatial_scale, int group_size,"
    " int output_dim) -> Tensor",
    onnx="NPUPsRoiPooling",
    dtypes={"self": BOX_FLOATS, "rois": BOX_FLOATS, "y": BOX_FLOATS},
    not_portable="standard operators have no bins whose sizes depend on values",
)


@op.reference
def reference(self, rois, spatial_scale, group_size, output_dim):
    """Return [B * R, output_dim, g, g] of self's dtype: the mean of bin (i, j) of each region.

    self: [N, output_dim * g^2, H, W], g = group_size, channel c g^2 + i g + j for bin (i, j) of
    result c; rois: [B, 5, R] of self's dtype, planes image, x1, y1, x2, y2. A region is from
    floor(x1 + 0.5) to floor(x2 + 0.5) + 1, times spatial_scale and at least 0.1 long, likewise in
    y; a bin has the pixels that it touches inside the map. One without pixels, and an image that is
    not there, give 0.
    """
    name = "npu_ps_roi_pooling"
    check_arguments(name, rois, group_size, output_dim)
    check_map(name, "self", self.shape, group_size, output_dim)
    check(
        self.dtype == rois.dtype,
        f"[{name}] expected rois of the dtype of self, {self.dtype}, got {rois.dtype}",
    )
    return pool(self, rois, spatial_scale, group_size, output_dim).to(self.dtype)


@op.backward("self")
def backward(grad_y, self, rois, spatial_scale, group_size, output_dim):
    """npu_ps_roi_pooling_backward; in float64 and for second derivatives its formula."""
    how = rois, spatial_scale, group_size, output_dim, self.shape
    if self.dtype == torch.float64 or torch.is_grad_enabled():
        return spread(grad_y, *how).to(self.dtype)
    return torch.ops.npu.npu_ps_roi_pooling_backward(grad_y, *how)


@op.samples
def samples(make):
    yield Sample(
        torch.arange(64.0).reshape(1, 4, 4, 4).to(make(0)),
        make.tensor([[[0.0], [0.0], [0.0], [3.0], [3.0]]]),
        1.0,
        2,
        1,
        id="catalogue",
        expect=[[[[[2.5, 20.5], [42.5, 60.5]]]]],
    )
    regions = make.tensor(
        [
            [[0, 1, 2], [1, 0, 3], [2, 4, 1], [9, 8.6, 7], [7, 30, 9]],
            [[1, 1, -1], [6, 40, 0], [2, 40, 0], [3, 50, 9], [1, 50, 9]],
        ]
    )
    yield Sample(make(2, 18, 5, 6), regions, 0.5, 3, 2, id="regions")
    yield Sample(make(2, 18, 5, 6), regions[..., :0], 0.5, 3, 2, id="no_regions")


op.errors(
    lambda make: Sample(make(1, 4, 4, 4), make(1, 4, 3), 1.0, 2, 1),
    match=r"\[npu_ps_roi_pooling\] expected rois of shape \[B, 5, R\], got \[1, 4, 3\]",
    id="rois",
)
op.errors(
    lambda make: Sample(make(1, 5, 4, 4), make(1, 5, 3), 1.0, 2, 1),
    match=r"\[npu_ps_roi_pooling\] expected self \[N, 4, H, W\], group_size\^2 channels for each "
    r"of output_dim, got \[1, 5, 4, 4\]",
    id="channels",
)
op.errors(
    lambda make: Sample(make(1, 4, 4, 4), make(1, 5, 3), 1.0, 128, 1),
    match=r"\[npu_ps_roi_pooling\] expected group_size from 1 to 127, got 128",
    id="group_size",
)
