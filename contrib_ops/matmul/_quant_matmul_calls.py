"""Calls of npu_quant_matmul: samples of every form, and what it refuses."""

from onnxruntime_npu.opdef import Sample, torch

from ..quant._integers import pack
from ..quant._packed_scale import pack_scale


def _makers(make):
    def scale(*shape):
        return make.uniform(*shape, low=0.001, high=0.01, dtype="float32")

    def floats(*shape, **options):
        return make(*shape, dtype="float32", **options)

    def words(*shape):
        return pack(make.ints(*shape, low=-8, high=8))

    return scale, floats, words


def samples_of_int8(make):
    """Yield calls with x1 of int8."""
    scale, floats, words = _makers(make)

    def bytes_(*shape):
        return make.ints(*shape, low=-128, high=128, dtype="int8")

    x1, x2 = make.tensor([[1, -2, 3], [4, 5, -6]]), make.tensor([[1, 2], [-1, 0], [2, 1]])
    factors, bias = make.tensor([0.5, 0.25], "float32"), make.tensor([1, -1], "int32")
    yield Sample(
        x1, x2, factors, bias=bias, output_dtype=torch.float16, id="catalogue",
        expect=[[[5.0, 1.0], [-6.0, 0.25]]],
    )  # fmt: skip
    yield Sample(
        x1, x2, factors, bias=bias, pertoken_scale=make.tensor([2.0, 0.5], "float32"),
        output_dtype=5, id="catalogue_per_token", expect=[[[10.0, 2.0], [-3.0, 0.125]]],
    )  # fmt: skip
    yield Sample(
        x1, x2, factors, offset=make.tensor([1.0, -1.0], "float32"), id="catalogue_offset",
        expect=[[[6, 0], [-6, 0]]],
    )  # fmt: skip
    yield Sample(x1, x2, factors, output_dtype=torch.int32, id="sums", expect=[[[9, 5], [-13, 2]]])
    yield Sample(
        bytes_(1, 576), bytes_(576, 192), scale(192).bfloat16(), pertoken_scale=scale(1),
        output_dtype=torch.bfloat16, id="decode",
    )  # fmt: skip
    yield Sample(
        bytes_(37, 65), bytes_(65, 33), scale(1), pertoken_scale=scale(37, 1), bias=floats(33),
        output_dtype=torch.bfloat16, id="odd_tails",
    )  # fmt: skip
    yield Sample(
        bytes_(3, 70), bytes_(70, 33), scale(33), bias=make(33, dtype="bfloat16"),
        output_dtype=torch.float16, id="bfloat16_bias",
    )  # fmt: skip
    yield Sample(
        bytes_(130, 200), bytes_(257, 200).t(), scale(1, 257),
        bias=make.ints(257, low=-(2**31), high=2**31, dtype="int32"),
        output_dtype=torch.int32, id="sums_wrap",
    )  # fmt: skip
    yield Sample(
        bytes_(9, 40), bytes_(40, 50), pack_scale(scale(50) / 10, floats(50, scale=20.0)),
        bias=make.ints(50, low=-999, high=999, dtype="int32"), id="packed_offset",
    )  # fmt: skip
    yield Sample(
        bytes_(9, 40), bytes_(40, 50), pack_scale(-scale(1) / 10), offset=floats(1, scale=9.0),
        id="packed_scale_and_offset",
    )  # fmt: skip
    yield Sample(
        bytes_(2, 3, 5, 8), bytes_(8, 4), scale(4), pertoken_scale=scale(5), bias=floats(4),
        output_dtype=torch.float16, id="leading_axes",
    )  # fmt: skip
    for lead in ([2, 3], [4, 1], [3, 0], [0, 3], [2, 3, 5]):
        yield Sample(
            bytes_(*lead, 8), bytes_(8, 4), scale(4), pertoken_scale=scale(*lead),
            bias=floats(4), output_dtype=torch.bfloat16, id=f"scales_of_{'_'.join(map(str, lead))}",
        )  # fmt: skip
    yield Sample(
        bytes_(2, 3, 8), bytes_(8, 4), scale(4), pertoken_scale=scale(2, 3),
        bias=floats(2, 1, 4), output_dtype=torch.float16, id="scales_of_rows_and_batch_bias",
    )  # fmt: skip
    yield Sample(
        bytes_(3, 5, 8), bytes_(3, 8, 4), scale(4), x1_dtype=torch.int8, x2_dtype=1,
        bias=make.ints(3, 1, 4, low=-999, high=999, dtype="int32"), id="batch",
    )  # fmt: skip
    yield Sample(
        bytes_(1, 5, 8), bytes_(3, 8, 4), scale(4), pertoken_scale=scale(5),
        bias=floats(3, 1, 4).half(), output_dtype=torch.float16, id="batch_of_weights",
    )  # fmt: skip
    yield Sample(bytes_(0, 8), bytes_(8, 4), scale(4), id="no_rows")
    yield Sample(
        bytes_(3, 0), bytes_(0, 4), scale(4), bias=floats(4), output_dtype=torch.float16,
        id="no_depth",
    )  # fmt: skip
    yield Sample(
        make.tensor([[1, 2, 3, 4, 5, 6, 7, 8]]), pack(torch.ones(8, 8, dtype=torch.int32)),
        make.tensor([[0.5] * 8], "float32"), offset=make.tensor([32.0] * 8, "float32"),
        group_sizes=[0, 0, 8], output_dtype=torch.float16, id="int4_by_hand", expect=[[[18.0] * 8]],
    )  # fmt: skip
    yield Sample(
        bytes_(5, 64), words(64, 40), pack_scale(scale(2, 40)), offset=floats(40),
        pertoken_scale=scale(5, 1), group_sizes=[0, 0, 32], output_dtype=torch.bfloat16, id="int4",
    )  # fmt: skip
    yield Sample(
        bytes_(2, 3, 64), words(64, 40), scale(2, 40), offset=floats(40),
        pertoken_scale=scale(2, 3), group_sizes=[0, 0, 32], output_dtype=torch.bfloat16,
        id="int4_scales_of_rows",
    )  # fmt: skip
    yield Sample(
        bytes_(2, 70, 64), words(33, 64).t(), scale(4, 33), offset=floats(33),
        group_sizes=[1, 1, 16], output_dtype=torch.float16, id="int4_along_columns",
    )  # fmt: skip


def samples_of_int4(make):
    """Yield calls with x1 of packed int4."""
    scale, floats, words = _makers(make)
    yield Sample(
        pack(torch.arange(8).repeat(2, 1) - 4), pack(torch.ones(8, 8, dtype=torch.int32)),
        make.tensor([0.5], "float32"), output_dtype=torch.float16, id="by_hand",
        expect=[[[-2.0] * 8] * 2],
    )  # fmt: skip
    yield Sample(
        words(37, 72), words(72, 40), scale(40), pertoken_scale=scale(37), x1_dtype=285,
        x2_dtype=torch.quint4x2, output_dtype=torch.bfloat16, id="per_channel",
    )  # fmt: skip
    yield Sample(
        words(3, 64), words(33, 64).t(), scale(33), bias=floats(33), output_dtype=torch.float16,
        id="along_columns",
    )  # fmt: skip
    yield Sample(
        words(1, 256), words(256, 32), scale(8, 32), pertoken_scale=scale(1),
        offset=make.ints(8, 32, low=-8, high=8).half(), group_sizes=[0, 0, 32],
        output_dtype=torch.float16, id="groups",
    )  # fmt: skip
    yield Sample(
        words(35, 72), words(40, 72).t(), scale(9, 40), offset=floats(9, 40), group_sizes=[0, 0, 8],
        output_dtype=torch.bfloat16, id="fractional_offsets",
    )  # fmt: skip
    yield Sample(
        words(2, 3, 5, 64), words(3, 64, 16), scale(2, 16), pertoken_scale=scale(5),
        group_sizes=[0, 0, 32], output_dtype=torch.float16, id="groups_of_batches",
    )  # fmt: skip
    yield Sample(words(9, 40), words(40, 48), scale(48), offset=floats(48, scale=9.0), id="offset")
    yield Sample(words(9, 40), words(40, 48), scale(48), output_dtype=torch.int32, id="sums")
    yield Sample(words(0, 8), words(8, 8), scale(8), id="no_rows")
    yield Sample(words(3, 5, 16).transpose(0, 1), words(16, 8), scale(8), id="not_contiguous")


def _ones(dtype, *shape):
    return lambda make: torch.ones(shape, dtype=getattr(torch, dtype))


_INT32, _FLOAT16, _FLOAT32, _INT4, _HIFLOAT8 = 3, 5, 6, 285, 290  # by torch's numbers


def refusals(op):
    """Add the refused calls to the definition."""

    def refuse(id, match, x1, x2, scale, **options):
        def make_sample(make):
            given = {n: v(make) if callable(v) else v for n, v in options.items()}
            tensors = [
                _ones(dtype, *shape)(make) for dtype, *shape in (x1, x2, ("float32", *scale))
            ]
            return Sample(*tensors, **given)

        op.errors(make_sample, match=rf"\[npu_quant_matmul\] {match}", id=id)

    bytes_, matrix, words, group = ("int8", 2, 8), ("int8", 8, 4), ("int32", 16, 1), [0, 0, 16]
    refuse(
        "rank",
        r"expected x1 \[.., M, K\] and x2 \[.., K, N\], got \[8\] and \[8, 4\]",
        ("int8", 8), matrix, [4],
    )  # fmt: skip
    refuse("depth", r"expected x2 \[.., 8, N\], got \[7, 4\]", bytes_, ("int8", 7, 4), [4])
    refuse(
        "words",
        r"expected x2 of packed int4 \[.., 16, N / 8\] or \[.., 16 / 8, N\], got \[3, 4\]",
        ("int32", 2, 2), ("int32", 3, 4), [4],
    )  # fmt: skip
    refuse(
        "batches",
        r"expected broadcastable shapes, got \[2\] and \[3\]",
        ("int8", 2, 2, 8), ("int8", 3, 8, 4), [4],
    )  # fmt: skip
    refuse(
        "int4_and_int8",
        r"expected x2 of .*int32 with x1 of .*int32 and groups of 0 rows, got .*int8",
        ("int32", 2, 1), matrix, [4],
    )  # fmt: skip
    refuse(
        "int8_and_int4_without_groups",
        r"expected x2 of .*int8 with x1 of .*int8 and groups of 0 rows, got .*int32",
        bytes_, ("int32", 8, 4), [32],
    )  # fmt: skip
    for id, match, options in (
        ("x1_dtype", r"x1 of .*int32 for x1_dtype int4, got .*int8", {"x1_dtype": _INT4}),
        (
            "x2_dtype",
            r"x2_dtype to name int8 or int4, got hifloat8; the host NPU has no float8",
            {"x2_dtype": _HIFLOAT8},
        ),
        (
            "output_dtype",
            r"output_dtype to name int8, float16, bfloat16 or int32, got float32",
            {"output_dtype": _FLOAT32},
        ),
        ("scale_dtype", r"no scale_dtype on this device, got 6", {"scale_dtype": _FLOAT32}),
        (
            "pertoken_scale_dtype",
            r"no pertoken_scale_dtype on this device, got 6",
            {"pertoken_scale_dtype": _FLOAT32},
        ),
        ("y_scale", r"no y_scale on this device, got one", {"y_scale": _ones("float32", 1)}),
        (
            "offset_of_floats",
            r"offset only with a result of int8 or groups, got float16",
            {"offset": _ones("float32", 4), "output_dtype": _FLOAT16},
        ),
        (
            "pertoken_scale_shape",
            r"pertoken_scale of shape \[2\], \[2, 1\] or, with a matrix x2, \[2\], got \[3\]",
            {"pertoken_scale": _ones("float32", 3)},
        ),
        (
            "pertoken_scale_of_sums",
            r"no pertoken_scale with a result of int32, got one",
            {"pertoken_scale": _ones("float32", 2), "output_dtype": _INT32},
        ),
        (
            "bias_of_sums",
            r"bias of int32 with a result of int32, got .*float32",
            {"bias": _ones("float32", 4), "output_dtype": _INT32},
        ),
    ):
        refuse(id, f"expected {match}", bytes_, matrix, [4], **options)
    refuse(
        "scale_shape",
        r"expected scale of shape \[1\], \[4\] or \[1, 4\], got \[3\]",
        bytes_, matrix, [3],
    )  # fmt: skip
    refuse(
        "bias_shape",
        r"expected bias of shape \[4\] or \[3, 1, 4\], got \[2, 1, 4\]",
        ("int8", 3, 2, 8), matrix, [4], bias=_ones("int32", 2, 1, 4),
    )  # fmt: skip
    refuse(
        "group_sizes",
        r"expected group_sizes \[0, 0, G\] with G a multiple of 8 or 0, got \[0, 0, 12\]",
        ("int32", 2, 2), words, [1, 8], group_sizes=[0, 0, 12],
    )  # fmt: skip
    refuse(
        "group_length",
        r"expected scale of shape \[24 / 16, 8\], groups of 16 rows, got \[2, 8\]",
        ("int32", 2, 3), ("int32", 24, 1), [2, 8], group_sizes=group, output_dtype=_FLOAT16,
    )  # fmt: skip
    refuse(
        "groups_to_int8",
        r"expected a result of float16 or bfloat16 with groups, got int8",
        ("int32", 2, 2), words, [1, 8], group_sizes=group,
    )  # fmt: skip
    refuse(
        "groups_with_bias",
        r"expected no bias with groups, got one",
        ("int32", 2, 2), words, [1, 8], group_sizes=group, output_dtype=_FLOAT16,
        bias=_ones("float32", 8),
    )  # fmt: skip
    refuse(
        "offset_of_groups",
        r"expected offset of scale's shape \[1, 8\], got \[8\]",
        ("int32", 2, 2), words, [1, 8], group_sizes=group, output_dtype=_FLOAT16,
        offset=_ones("float16", 8),
    )  # fmt: skip
    refuse(
        "no_offset_for_int8",
        r"expected offset of shape \[8\] with x1 of int8 and groups, got none",
        ("int8", 2, 16), words, [1, 8], group_sizes=group, output_dtype=_FLOAT16,
    )  # fmt: skip
