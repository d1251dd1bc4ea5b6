"""The gradient of npu_roi_align. Source: torch_npu.npu_roi_alignbk."""

from onnxruntime_npu.opdef import Sample, check, npu_op

from ._boxes import BOX_FLOATS
from ._roi_align import check_arguments, spread

op = npu_op(
    "npu_roi_alignbk(Tensor self, Tensor rois, int[] xdiff_shape, int pooled_width,"
    " int pooled_height, float spatial_scale, int sample_num, int? roi_end_mode=None) -> Tensor",
    onnx="NPURoiAlignBackward",
    dtypes={"self": BOX_FLOATS, "rois": BOX_FLOATS, "y": BOX_FLOATS},
    not_portable="standard operators do not spread a region's bins over a plane",
)


@op.reference
def reference(
    self,
    rois,
    xdiff_shape,
    pooled_width,
    pooled_height,
    spatial_scale,
    sample_num,
    roi_end_mode=None,
):
    """Return the gradient of npu_roi_align's features, of xdiff_shape [B, C, H, W], in float32.

    self: the gradient of its result, [n, C, pooled_height, pooled_width]; rois and the other
    arguments as it takes them, roi_end_mode None as 1; the result has self's dtype.
    """
    name = "npu_roi_alignbk"
    mode = 1 if roi_end_mode is None else roi_end_mode
    check_arguments(name, rois, pooled_height, pooled_width, sample_num, mode)
    check(
        len(xdiff_shape) == 4 and min(xdiff_shape) >= 0 and max(xdiff_shape) < 2**31,
        f"[{name}] expected xdiff_shape [B, C, H, W] of int32 sizes, got {list(xdiff_shape)}",
    )
    expected = [rois.shape[0], xdiff_shape[1], pooled_height, pooled_width]
    check(
        list(self.shape) == expected,
        f"[{name}] expected self of shape {expected}, got {list(self.shape)}",
    )
    check(
        self.dtype == rois.dtype,
        f"[{name}] expected rois of the dtype of self, {self.dtype}, got {rois.dtype}",
    )
    how = spatial_scale, pooled_height, pooled_width, sample_num, mode
    return spread(name, self, rois, xdiff_shape, *how).to(self.dtype)


@op.samples
def samples(make):
    regions = make.tensor([[1, 2.25, 3, 13, 9.25], [0, -5, 1, 30, 29], [2, 1, 1, 5, 5]])
    yield Sample(
        make.tensor([[[[4.0]]]]),
        make.tensor([[0.0, 1.0, 1.0, 2.0, 2.0]]),
        [1, 1, 3, 3],
        *(1, 1, 1.0, 1, 0),
        id="by_hand",  # one sample at (1.5, 1.5)
        expect=[[[[[0.0, 0.0, 0.0], [0.0, 1.0, 1.0], [0.0, 1.0, 1.0]]]]],
    )
    yield Sample(
        make.tensor([[[[4.5, 6.5, 8.5], [16.5, 18.5, 20.5], [28.5, 30.5, 32.5]]]]),
        make.tensor([[0.0, -2.0, -2.0, 22.0, 22.0]]),
        [1, 1, 6, 6],
        *(3, 3, 0.25, 2),
        id="public",
        expect=[
            [
                [
                    [
                        [1.0786, 1.0557, 1.4942, 1.5248, 1.9226, 2.4709],
                        [1.0557, 1.0332, 1.4625, 1.4924, 1.8817, 2.4183],
                        [3.6872, 3.6087, 4.0380, 4.0679, 4.4572, 5.6097],
                        [3.8708, 3.7884, 4.2177, 4.2476, 4.6369, 5.8324],
                        [6.2575, 6.1243, 6.5536, 6.5835, 6.9729, 8.7269],
                        [8.2847, 8.1084, 8.6403, 8.6774, 9.1598, 11.4575],
                    ]
                ]
            ]
        ]
        if make.dtype == "float16"  # printed to four digits
        else None,
    )
    yield Sample(make(3, 2, 2, 3), regions, [2, 2, 7, 9], 3, 2, 0.4375, 0, 2, id="regions")
    yield Sample(make(0, 2, 2, 3), regions[:0], [2, 2, 7, 9], 3, 2, 0.5, 2, 1, id="no_regions")


op.errors(
    lambda make: Sample(make(3, 2, 2, 2), make(3, 5), [2, 2, 7], 2, 2, 1.0, 2),
    match=r"\[npu_roi_alignbk\] expected xdiff_shape \[B, C, H, W\] of int32 sizes, "
    r"got \[2, 2, 7\]",
    id="xdiff_shape",
)
op.errors(
    lambda make: Sample(make(3, 2, 2, 2), make(3, 5), [2, 3, 7, 7], 2, 2, 1.0, 2),
    match=r"\[npu_roi_alignbk\] expected self of shape \[3, 3, 2, 2\], got \[3, 2, 2, 2\]",
    id="gradient",
)
