"""Symmetric quantisation with scales from the values. Source: torch_npu.npu_dynamic_quant."""

from onnxruntime_npu.opdef import npu_op, torch

from ._dynamic import (
    ARGUMENTS,
    DTYPES,
    TYPE_CODES,
    TYPED_BY,
    DynamicBody,
    extreme,
    refusals,
    results,
    smoothed,
    top_of,
)
from ._dynamic import samples as shared_samples

op = npu_op(
    f"npu_dynamic_quant({ARGUMENTS}) -> (Tensor, Tensor)",
    onnx="NPUDynamicQuant",
    outputs=["y", "scale"],
    dtypes=DTYPES,
    type_codes=TYPE_CODES,
    typed_by=TYPED_BY,
)


@op.reference
def reference(input, smooth_scales, group_index, dst_type, quant_mode="pertoken", dst_type_max=0.0):
    """scale = max |z| / top; y = round(z / scale), of z = input * smooth_scales.

    input: [.., R, H]; dst_type: int8, the default, with top 127, or int4 with top 7; y: input's
    shape in it, int4 as int32 with H / 8, the first value in the lowest bits. quant_mode says what
    has one scale: pertoken [.., R], perchannel [.., H], or pertensor [1]; scale is float32.
    smooth_scales: [H], perchannel [R] or [R, 1]; with group_index [E, H], where the rows of all
    leading axes from group_index[e - 1] to group_index[e] have row e; group_index: [E], ascending
    to the number of rows. dst_type_max: 0.

    float32 arithmetic, half to even. Zeros alone have scale 0 and y 0. An infinity makes its scale
    infinite and NaN makes it NaN; y is then 0 throughout.
    """
    values, axis = smoothed(
        "npu_dynamic_quant",
        input,
        smooth_scales,
        group_index,
        dst_type,
        quant_mode,
        dst_type_max,
    )
    scale = extreme(values.abs(), axis, largest=True) / top_of(dst_type)
    return results(values, axis, dst_type, scale, torch.zeros_like(scale))[:2]


@op.function
def body(b, call, input, smooth_scales, group_index):
    parts = DynamicBody(b, call, input, smooth_scales, group_index)
    scale = b.Div(parts.extreme(b.Abs(parts.values), True), parts.top)
    return parts.results(scale, None)


@op.samples
def samples(make):
    yield from shared_samples(
        make,
        catalogue=[[[32, -64, 127], [64, 32, -127]], [0.0314961, 0.00787402]],
        smoothed_catalogue=[[[32, -127, 64], [127, 127, -127]], [0.0314961, 0.00393701]],
        constant=[[[0] * 4, [127] * 4, [-127] * 4], [0.0, 0.01574803, 0.01574803]],
    )


op.tolerance("float32", rtol=0, atol=0, reason="every step is one operation of float32")

refusals(op)
