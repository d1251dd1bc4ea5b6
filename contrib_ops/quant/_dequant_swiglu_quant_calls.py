"""Calls of npu_dequant_swiglu_quant: samples of every form, and what it refuses."""

from onnxruntime_npu.opdef import Sample


def samples_of(make):
    """Yield calls with x of make.dtype."""
    of_int32 = make.dtype == "int32"

    def values(*shape):
        return make.ints(*shape, low=-100, high=100, dtype="int32") if of_int32 else make(*shape)

    def scales(*shape):
        return make.uniform(*shape, low=0.01, high=0.05, dtype="float32")

    def weights(*shape):
        return {"weight_scale": scales(*shape)} if of_int32 else {}

    def quants(*shape, dtype="float32"):
        return make.uniform(*shape, low=0.01, high=0.1, dtype=dtype)

    counts = make.tensor([2, 0, 3], "int64")
    if of_int32:
        small = {
            "weight_scale": make.tensor([[0.1, 0.1, 0.2, 0.05]], "float32"),
            "activation_scale": make.tensor([[2.0]], "float32"),
        }
        ten = make.tensor([[10, 20, -10, 40]])
        yield Sample(ten, **small, quant_mode=1, id="catalogue", expect=[[[-1, 127]], [0.123718]])
        yield Sample(
            ten,
            **small,
            quant_scale=make.tensor([[0.5, 2.0]], "float32"),
            quant_offset=make.tensor([[1.0, 0.0]], "float32"),
            id="catalogue_static",
            expect=[[[1, 8]], [0.0]],
        )
        tokens = scales(7, 1) * 20
        yield Sample(
            values(7, 30),
            weight_scale=scales(30),
            activation_scale=tokens.reshape(7),
            bias=make(30),
            quant_scale=quants(15, dtype="float16"),
            quant_mode=1,
            id="bias_of_int32",
        )
        yield Sample(
            values(7, 30),
            weight_scale=scales(1, 30),
            activation_scale=tokens,
            bias=make(30, dtype="bfloat16"),
            quant_scale=quants(1),
            swiglu_mode=1,
            id="bias_of_floats",
        )
        yield Sample(
            values(7, 30),
            weight_scale=scales(3, 30),
            bias=make(3, 30, dtype="float32"),
            group_index=counts,
            quant_scale=quants(3),
            quant_offset=make(3, 15, dtype="float16"),
            id="groups_static_bias",
        )
    yield Sample(make.tensor([[0] * 8] * 2), quant_mode=1, id="zeros")
    x = values(2, 4, 70)
    for mode in (0, 1, 2):
        options = {**weights(70), "swiglu_mode": mode, "clamp_limit": 1.5, "glu_bias": 0.5}
        yield Sample(x, **options, quant_mode=1, glu_alpha=1.1, id=f"dynamic_{mode}")
        yield Sample(x, **options, quant_scale=quants(35), activate_left=True, id=f"static_{mode}")
        yield Sample(
            x,
            **{**options, **weights(3, 70)},
            group_index=counts,
            quant_scale=quants(3, 35),
            quant_mode=1,
            id=f"groups_{mode}",
        )
    yield Sample(
        x, **weights(1, 70), group_index=make.tensor([5], "int64"), dst_type=1, id="one_group"
    )
    for mode in range(5):
        yield Sample(
            x, **weights(70), quant_scale=quants(1, 35), round_mode=mode, id=f"round_{mode}"
        )
        yield Sample(x, **weights(70), quant_mode=1, round_mode=mode, id=f"dynamic_round_{mode}")
    yield Sample(x, **weights(70), quant_offset=quants(1), activate_dim=2, id="offset_alone")
    yield Sample(values(40, 1400), **weights(1400), quant_mode=1, id="threads")
    yield Sample(values(3, 1026), **weights(1026), quant_mode=1, swiglu_mode=1, id="blocks")
    yield Sample(values(0, 8), **weights(8), quant_mode=1, id="no_rows")
    yield Sample(values(30, 7).t(), **weights(30), quant_mode=1, id="not_contiguous")


def refusals(op):
    """Add the calls that the operator refuses."""

    def refuse(id, match, make_sample, **options):
        op.errors(make_sample, match=rf"\[{op.schema.name}\] {match}", id=id, **options)

    refuse("rank", r"expected x \[.., 2 H\] with H > 0, got \[8\]", lambda make: Sample(make(8)))
    refuse(
        "odd", r"expected x \[.., 2 H\] with H > 0, got \[2, 7\]", lambda make: Sample(make(2, 7))
    )
    refuse(
        "no_columns",
        r"expected x \[.., 2 H\] with H > 0, got \[2, 0\]",
        lambda make: Sample(make(2, 0)),
    )
    for name, wrong, match in (
        ("quant_mode", 2, "expected quant_mode 0 or 1, got 2"),
        ("round_mode", 5, r"expected round_mode in \[0, 4\], got 5"),
        ("swiglu_mode", 3, "expected swiglu_mode 0, 1 or 2, got 3"),
        ("activate_dim", 0, "expected activate_dim to be the last axis, -1 or 1, got 0"),
    ):
        refuse(
            name,
            match,
            lambda make, name=name, wrong=wrong: Sample(make(2, 8), **{name: wrong}),
        )
    for number, described in ((291, "float8_e5m2"), (292, "float8_e4m3fn"), (297, "float4_e1m2")):
        refuse(
            described,
            rf"expected dst_type to name int8, got (ext_)?{described}",
            lambda make, number=number: Sample(make(2, 8), dst_type=number),
        )
    refuse(
        "weight_scale_of_floats",
        "expected weight_scale only with x of int32, got x of",
        lambda make: Sample(make(2, 8, dtype="float16"), weight_scale=make(8, dtype="float32")),
    )
    refuse(
        "weight_scale_shape",
        r"expected weight_scale of shape \[8\] or \[1, 8\], got \[4\]",
        lambda make: Sample(make(2, 8, dtype="int32"), weight_scale=make(4, dtype="float32")),
    )
    refuse(
        "bias_shape",
        r"expected bias of shape \[1, 8\], got \[8\]",
        lambda make: Sample(
            make(2, 8, dtype="int32"),
            bias=make(8, dtype="int32"),
            group_index=make.tensor([2], "int64"),
        ),
    )
    refuse(
        "bias_of_groups",
        "expected no bias with group_index and quant_mode 1, got one",
        lambda make: Sample(
            make(2, 8, dtype="int32"),
            bias=make(1, 8, dtype="int32"),
            group_index=make.tensor([2], "int64"),
            quant_mode=1,
        ),
    )
    refuse(
        "activation_scale_shape",
        r"expected activation_scale of shape \[6\] or \[6, 1\], got \[2, 3\]",
        lambda make: Sample(
            make(2, 3, 8, dtype="int32"), activation_scale=make(2, 3, dtype="float32")
        ),
    )
    refuse(
        "quant_scale_shape",
        r"expected quant_scale of shape \[4\] or \[1, 4\], got \[1\]",
        lambda make: Sample(make(2, 8), quant_scale=make(1, dtype="float32"), quant_mode=1),
    )
    refuse(
        "quant_offset_of_dynamic",
        "expected quant_offset only with quant_mode 0, got quant_mode 1",
        lambda make: Sample(make(2, 8), quant_offset=make(4, dtype="float32"), quant_mode=1),
    )
    refuse(
        "no_groups",
        r"expected group_index \[G\] with G > 0, got \[0\]",
        lambda make: Sample(make(2, 8), group_index=make.tensor([], "int64")),
    )
    for case, counts, match in (
        ("negative", (1, -1), r"entry 1 in \[0, 2\], got -1"),
        ("beyond_the_rows", (2, 2), r"entry 1 in \[0, 1\], got 2"),
        ("overflows", (2, 2**63 - 1), r"entry 1 in \[0, 1\], got 9223372036854775807"),
    ):
        refuse(
            f"group_index_{case}",
            rf"expected group_index to count up to the 3 rows, {match}",
            lambda make, counts=counts: Sample(
                make(3, 8), group_index=make.tensor(list(counts), "int64")
            ),
            needs_values=True,
        )
