"""Packs int4 values that are held as int32. Source: torch_npu.npu_convert_weight_to_int4pack."""

from onnxruntime_npu.opdef import Sample, check, npu_op

from ._integers import body_pack, check_packable, pack

op = npu_op(
    "npu_convert_weight_to_int4pack(Tensor weight, int inner_k_tiles=0) -> Tensor",
    onnx="NPUConvertWeightToInt4pack",
    dtypes={"weight": ["int32"], "y": ["int32"]},
)


@op.reference
def reference(weight, inner_k_tiles=0):
    """y[.., j] holds weight[.., 8 j] to weight[.., 8 j + 7], the first in the lowest four bits.

    weight: [k, n] or [g, k, n], n a multiple of 8; y: the same with n / 8. Only the low four bits
    of a value are kept, so that values outside of [-8, 7] wrap; inner_k_tiles is reserved.
    """
    check(
        weight.dim() in (2, 3),
        f"[npu_convert_weight_to_int4pack] expected weight of rank 2 or 3, "
        f"got {list(weight.shape)}",
    )
    check_packable("npu_convert_weight_to_int4pack", "weight", weight.shape)
    return pack(weight)


@op.function
def body(b, call, weight):
    return body_pack(b, b.Cast(weight, to="int64"))


@op.samples
def samples(make):
    yield Sample(
        make.tensor([[1, 2, 3, 4, 5, 6, 7, -8], [-1, 0, 0, 0, 0, 0, 0, 0]]),
        id="catalogue",
        expect=[[[-2023406815], [15]]],
    )
    yield Sample(make.ints(5, 24, low=-8, high=8, dtype="int32"), 2)
    yield Sample(make.ints(2, 3, 16, low=-8, high=8, dtype="int32"), id="groups")
    yield Sample(
        make.tensor([[8, -9, 16, 2**31 - 1, -(2**31), 255, 7, 0]]),
        id="beyond_int4",
        expect=[[[0x07F0F078]]],
    )
    yield Sample(make.ints(300, 808, low=-8, high=8, dtype="int32"), id="threads")
    yield Sample(make.ints(0, 8, dtype="int32"), id="no_rows")
    yield Sample(make.ints(3, 0, dtype="int32"), id="no_columns")
    yield Sample(make.ints(16, 3, low=-8, high=8, dtype="int32").t(), id="not_contiguous")


op.errors(
    lambda make: Sample(make(4, 12)),
    match=r"\[npu_convert_weight_to_int4pack\] expected weight whose last axis is a multiple of 8 "
    r"for int4, got \[4, 12\]",
    id="width",
)
op.errors(
    lambda make: Sample(make(8)),
    match=r"\[npu_convert_weight_to_int4pack\] expected weight of rank 2 or 3, got \[8\]",
    id="rank",
)
op.errors(
    lambda make: Sample(make(4, 8, dtype="float32")),
    match=r"\[npu_convert_weight_to_int4pack\] expected weight of dtype int32, got float32",
    id="dtype",
)
