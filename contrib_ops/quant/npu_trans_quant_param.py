"""Scales in the 64-bit form that integer matmuls take. Source: torch_npu.npu_trans_quant_param."""

from onnxruntime_npu.opdef import Sample, check, npu_op

from ._packed_scale import pack_scale

op = npu_op(
    "npu_trans_quant_param(Tensor scale, Tensor? offset=None, int? round_mode=0) -> Tensor",
    onnx="NPUTransQuantParam",
    dtypes={"scale": ["float32"], "offset": ["float32"], "y": ["int64"]},
    not_portable="ONNX has no way to the bits of a float before opset 26",
)


@op.reference
def reference(scale, offset=None, round_mode=0):
    """y holds scale as a float32 of 10 mantissa bits in bits 0..31, and bit 46, which is set.

    round_mode: 0 (or None) cuts the mantissa, 1 rounds it half to even. offset, rounded half to
    even and saturated to [-256, 255], is in bits 37..45. scale: of rank 1 or 2; offset: scale's
    shape, or of rank 1 where one of both is [1]; y: their common shape. A NaN scale stays NaN, a
    NaN offset is 0.
    """
    mode = 0 if round_mode is None else round_mode
    check(mode in (0, 1), f"[npu_trans_quant_param] expected round_mode 0 or 1, got {mode}")
    check(
        scale.dim() in (1, 2),
        f"[npu_trans_quant_param] expected scale of rank 1 or 2, got {list(scale.shape)}",
    )
    if offset is not None:
        one_of_many = scale.dim() == offset.dim() == 1 and 1 in (scale.shape[0], offset.shape[0])
        check(
            offset.shape == scale.shape or one_of_many,
            f"[npu_trans_quant_param] expected offset of scale's shape {list(scale.shape)}, or "
            f"one of both [1], got {list(offset.shape)}",
        )
    return pack_scale(scale, offset, rounds=mode == 1)


@op.samples
def samples(make):
    yield Sample(make.tensor([0.1, 2.5]), id="catalogue", expect=[[70369781006336, 70369820016640]])
    yield Sample(
        make.tensor([2.5]), make.tensor([-3.0]), id="catalogue_offset", expect=[[140326247333888]]
    )
    yield Sample(make(17), make(17, scale=200.0))
    yield Sample(make(17), make(1, scale=200.0), 1, id="one_offset")
    yield Sample(make(1), make(17, scale=200.0), None, id="one_scale")
    yield Sample(make(3, 5), make(3, 5), 1, id="rank_2")
    mark = 1 << 46
    # Halfway between two neighbours: to the even one.
    ties = make.tensor([1 + 2**-11, 1 + 3 * 2**-11, 1 + 2**-11 + 2**-23])
    yield Sample(
        ties, None, 1, id="ties", expect=[[mark + 0x3F800000, mark + 0x3F804000, mark + 0x3F802000]]
    )
    yield Sample(ties, id="cut", expect=[[mark + 0x3F800000, mark + 0x3F802000, mark + 0x3F800000]])
    special = make.tensor([float("inf"), float("-inf"), 0.0, -0.0])
    yield Sample(
        special,
        make.tensor([1e9, -1e9, 0.5, float("nan")]),
        1,
        id="special",
        expect=[
            [
                mark + 0x7F800000 + (255 << 37),
                mark + 0xFF800000 + (256 << 37),
                mark,
                mark + 0x80000000,
            ]
        ],
    )
    nan = make.tensor([float("nan")])
    yield Sample(nan, id="nan", expect=[[mark + 0x7FC00000]])
    yield Sample(make(0), id="empty")
    yield Sample(make(40000), make(40000, scale=100.0), id="threads")
    yield Sample(make(5, 3).t(), id="not_contiguous")


op.errors(
    lambda make: Sample(make(4), make(3)),
    match=r"\[npu_trans_quant_param\] expected offset of scale's shape \[4\], "
    r"or one of both \[1\], got \[3\]",
    id="offset_shape",
)
op.errors(
    lambda make: Sample(make(4, 4), make(4)),
    match=r"\[npu_trans_quant_param\] expected offset of scale's shape \[4, 4\], .* got \[4\]",
    id="offset_rank",
)
op.errors(
    lambda make: Sample(make(2, 2, 4)),
    match=r"\[npu_trans_quant_param\] expected scale of rank 1 or 2, got \[2, 2, 4\]",
    id="rank",
)
op.errors(
    lambda make: Sample(make(4, dtype="float16")),
    match=r"\[npu_trans_quant_param\] expected scale of dtype float32, got float16",
    id="dtype",
)
op.errors(
    lambda make: Sample(make(4), None, 2),
    match=r"\[npu_trans_quant_param\] expected round_mode 0 or 1, got 2",
    id="round_mode",
)
