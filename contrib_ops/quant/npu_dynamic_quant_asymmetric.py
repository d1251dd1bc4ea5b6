"""Asymmetric quantisation with scales and offsets from the values.

Source: torch_npu.npu_dynamic_quant_asymmetric.
"""

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
    f"npu_dynamic_quant_asymmetric({ARGUMENTS}) -> (Tensor, Tensor, Tensor)",
    onnx="NPUDynamicQuantV2",
    outputs=["y", "scale", "offset"],
    dtypes={**DTYPES, "offset": ["float32"]},
    type_codes=TYPE_CODES,
    typed_by=TYPED_BY,
)


@op.reference
def reference(input, smooth_scales, group_index, dst_type, quant_mode="pertoken", dst_type_max=0.0):
    """scale = (max z - min z) / (2 top + 1); offset = top - max z / scale.

    y = round(z / scale + offset), saturated; (y - offset) * scale is z again. The arguments, z, top
    and the shapes are those of npu_dynamic_quant; offset: like scale.

    float32 arithmetic, half to even. Where all z are one value, 0 counts as another one, so that
    the scale is |z| / (2 top + 1) and z comes back; zeros alone have scale 0, offset 0 and y 0. NaN
    makes its scale and offset NaN and y 0; with an infinity they are what IEEE arithmetic gives.
    """
    values, axis = smoothed(
        "npu_dynamic_quant_asymmetric",
        input,
        smooth_scales,
        group_index,
        dst_type,
        quant_mode,
        dst_type_max,
    )
    high, low = extreme(values, axis, largest=True), extreme(values, axis, largest=False)
    constant = high == low
    high = torch.where(constant, high.clamp(min=0), high)
    low = torch.where(constant, low.clamp(max=0), low)
    top = top_of(dst_type)
    scale = (high - low) / (2 * top + 1)
    offset = torch.where(scale == 0, 0.0, top - high / scale)
    return results(values, axis, dst_type, scale, offset)


@op.function
def body(b, call, input, smooth_scales, group_index):
    parts = DynamicBody(b, call, input, smooth_scales, group_index)
    high, low = parts.extreme(parts.values, True), parts.extreme(parts.values, False)
    constant, zero = b.Equal(high, low), b.const(0.0, "float32")
    high = b.Where(constant, b.Max(high, zero), high)
    low = b.Where(constant, b.Min(low, zero), low)
    scale = b.Div(b.Sub(high, low), 2 * parts.top + 1)
    offset = b.Sub(b.const(parts.top, "float32"), b.Div(high, scale))
    return parts.results(scale, b.Where(b.Equal(scale, zero), zero, offset))


@op.samples
def samples(make):
    yield from shared_samples(
        make,
        catalogue=[
            [[0, -128, 127], [127, 84, -128]],
            [0.0235294, 0.00588235],
            [-43.0, 42.0],
        ],
        smoothed_catalogue=None,
        constant=[
            [[0] * 4, [127] * 4, [-128] * 4],
            [0.0, 0.00784314, 0.00784314],
            [0.0, -128.0, 127.0],
        ],
    )


op.tolerance("float32", rtol=0, atol=0, reason="every step is one operation of float32")

refusals(op)
