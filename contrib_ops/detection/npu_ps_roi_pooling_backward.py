"""The gradient of npu_ps_roi_pooling. Source: torch_npu.npu_ps_roi_pooling_backward."""

from onnxruntime_npu.opdef import Sample, check, npu_op

from ._boxes import BOX_FLOATS
from ._position_bins import check_arguments, check_map, spread

op = npu_op(
    "npu_ps_roi_pooling_backward(Tensor output_grad, Tensor rois, float spatial_scale,"
    " int group_size, int output_dim, SymInt[] input_size) -> Tensor",
    onnx="NPUPsRoiPoolingBackward",
    dtypes={"output_grad": BOX_FLOATS, "rois": BOX_FLOATS, "y": BOX_FLOATS},
    not_portable="standard operators have no bins whose sizes depend on values",
)


@op.reference
def reference(output_grad, rois, spatial_scale, group_size, output_dim, input_size):
    """Return the gradient of npu_ps_roi_pooling's map, of input_size and output_grad's dtype.

    output_grad: [B * R, output_dim, g, g]; every pixel of a bin gets the bin's gradient divided by
    the number of its pixels.
    """
    name = "npu_ps_roi_pooling_backward"
    check_arguments(name, rois, group_size, output_dim)
    check_map(name, "input_size", input_size, group_size, output_dim)
    check(
        all(size >= 0 for size in input_size) and all(size < 2**31 for size in input_size),
        f"[{name}] expected input_size of int32 sizes, got {list(input_size)}",
    )
    expected = [rois.shape[0] * rois.shape[2], output_dim, group_size, group_size]
    check(
        list(output_grad.shape) == expected,
        f"[{name}] expected output_grad of shape {expected}, got {list(output_grad.shape)}",
    )
    check(
        output_grad.dtype == rois.dtype,
        f"[{name}] expected rois of the dtype of output_grad, {output_grad.dtype}, "
        f"got {rois.dtype}",
    )
    how = rois, spatial_scale, group_size, output_dim, input_size
    return spread(output_grad, *how).to(output_grad.dtype)


@op.samples
def samples(make):
    regions = make.tensor(
        [[[0, 1, 0, 1], [1, 0, 3, 8], [2, 4, 9, 2], [9, 8.6, 5, 12], [7, 30, 9, 6]]]
    )
    yield Sample(make(4, 2, 3, 3), regions, 0.5, 3, 2, [2, 18, 5, 6], id="regions")
    yield Sample(
        make.tensor([[[[8.0]]]]),
        make.tensor([[[0.0], [0.0], [1.0], [1.0], [2.0]]]),
        *(1.0, 1, 1, [1, 1, 3, 3]),
        id="by_hand",  # x 0 .. 1, y 1 .. 2: four pixels
        expect=[[[[[0, 0, 0], [2, 2, 0], [2, 2, 0]]]]],
    )
    yield Sample(make(0, 2, 3, 3), regions[..., :0], 0.5, 3, 2, [2, 18, 5, 6], id="no_regions")


op.errors(
    lambda make: Sample(make(1, 1, 2, 2), make(1, 5, 3), 1.0, 2, 1, [1, 4, 4, 4]),
    match=r"\[npu_ps_roi_pooling_backward\] expected output_grad of shape \[3, 1, 2, 2\], "
    r"got \[1, 1, 2, 2\]",
    id="gradient",
)
