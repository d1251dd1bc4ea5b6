"""Calls of npu_ffn: samples of every form, and what it refuses."""

from onnxruntime_npu.opdef import FLOATS, Sample, torch

from ..quant._packed_scale import pack_scale


def samples_of(make):
    """Yield calls with x of make.dtype."""
    if make.dtype in FLOATS:
        yield from _floats(make)
        yield from _weight_only(make)
    else:
        yield from _integers(make)


def _floats(make):
    yield Sample(
        make.tensor([[1.0, -1.0]]), make.tensor([[1.0, 0.0], [0.0, 1.0]]),
        make.tensor([[1.0, 1.0], [1.0, -1.0]]), "relu", id="catalogue", expect=[[[1.0, 1.0]]],
    )  # fmt: skip
    layers = make(40, 72, scale=0.2), make(72, 33, scale=0.2)
    biases = {"bias1": make(72), "bias2": make(33)}
    yield Sample(make(1, 40), *layers, "gelu", **biases, id="gelu")
    yield Sample(make(2, 5, 40), *layers, "FastGelu", id="leading_axes")
    gated = make(40, 144, scale=0.2), layers[1]
    yield Sample(make(9, 40), *gated, "swiglu", bias1=make(144), id="swiglu")
    yield Sample(make(9, 40), *gated, "geglu", id="geglu")
    yield Sample(make(300, 40), *gated, "reglu", bias2=make(33), id="reglu")
    experts = make(3, 40, 72, scale=0.2), make(3, 72, 33, scale=0.2)
    of_experts = {"bias1": make(3, 72), "bias2": make(3, 33)}
    yield Sample(
        make(37, 40), *experts, "silu", expert_tokens=[12, 0, 25], **of_experts, id="experts"
    )
    yield Sample(
        make(37, 40), *experts, "relu", expert_tokens_index=[0, 30, 37], id="ends_of_experts"
    )
    yield Sample(make(0, 40), *layers, "relu", id="no_rows")
    yield Sample(make(3, 4), make(4, 0), make(0, 5), "silu", bias2=make(5), id="nothing_hidden")


def _bytes(make, *shape):
    return make.ints(*shape, low=-128, high=128, dtype="int8")


def _weight_only(make):
    weights = _bytes(make, 40, 72), _bytes(make, 72, 33)
    scales = {"antiquant_scale1": make(72, scale=0.003), "antiquant_scale2": make(33, scale=0.003)}
    offsets = {
        "antiquant_offset1": make(72, scale=3.0), "antiquant_offset2": make(33, scale=3.0)
    }  # fmt: skip
    yield Sample(make(4, 40), *weights, "silu", **scales, **offsets, id="weights_of_int8")
    yield Sample(
        make(9, 40), _bytes(make, 2, 40, 72), _bytes(make, 2, 36, 33), "geglu",
        expert_tokens=[4, 5], bias1=make(2, 72), antiquant_scale1=make(2, 72, scale=0.003),
        antiquant_scale2=make(2, 33, scale=0.003), antiquant_offset2=make(2, 33, scale=3.0),
        id="experts_of_int8",
    )  # fmt: skip


def _integers(make):
    def scale(*shape, low=0.0005, high=0.002):
        return make.uniform(*shape, low=low, high=high, dtype="float32")

    def bias(*shape):
        return make.ints(*shape, low=-999, high=999, dtype="int32")

    yield Sample(
        make.tensor([[2, -3]]), make.tensor([[1, 0], [0, 1]]), make.tensor([[1, 1], [1, -1]]),
        "relu", scale=make.tensor([4.0], "float32"), offset=make.tensor([1.0], "float32"),
        deq_scale1=make.tensor([0.5, 0.5], "float32"),
        deq_scale2=make.tensor([2.0, 1.0], "float32"), id="by_hand", expect=[[[12.0, 4.0]]],
    )  # fmt: skip
    weights = _bytes(make, 40, 72), _bytes(make, 72, 33)
    one = scale(1, low=8, high=9)
    yield Sample(
        _bytes(make, 21, 40), *weights, "gelu", bias1=bias(72), bias2=bias(33), scale=one,
        offset=make.tensor([-3.0], "float32"), deq_scale1=scale(72), deq_scale2=scale(33),
        id="int8",
    )  # fmt: skip
    yield Sample(
        _bytes(make, 21, 40), *weights, "silu", scale=scale(72, low=5, high=9),
        deq_scale1=scale(72).bfloat16(), deq_scale2=scale(33).bfloat16(),
        output_dtype=torch.bfloat16, id="int8_to_bfloat16",
    )  # fmt: skip
    yield Sample(
        _bytes(make, 9, 40), _bytes(make, 3, 40, 72), _bytes(make, 3, 72, 33), "fastgelu",
        expert_tokens=[2, 3, 4], bias1=bias(3, 72), scale=scale(3, low=8, high=9),
        offset=make.tensor([[1.0], [0.0], [-4.0]], "float32"),
        deq_scale1=pack_scale(scale(3, 72)), deq_scale2=pack_scale(scale(3, 33)),
        id="int8_experts",
    )  # fmt: skip
    yield Sample(
        _bytes(make, 5, 40), _bytes(make, 2, 40, 72), _bytes(make, 2, 72, 33), "relu",
        expert_tokens_index=[2, 5], scale=scale(2, 72, low=8, high=9), deq_scale1=scale(2, 72),
        deq_scale2=scale(2, 33), id="int8_scale_per_column",
    )  # fmt: skip


def refusals(op):
    """Add the calls that the operator refuses."""

    def refuse(identifier, message, *sizes, activation="relu", dtype=None, **options):
        def call(make):
            tensors = (make(*size) if dtype is None else make(*size, dtype=dtype) for size in sizes)
            given = {n: make(*o) if isinstance(o, tuple) else o for n, o in options.items()}
            return Sample(*tensors, activation, **given)

        op.errors(call, match=rf"\[npu_ffn\] {message}", id=identifier)

    x, layers, experts = (6, 8), ((8, 4), (4, 3)), ((2, 8, 4), (2, 4, 3))
    refuse(
        "activation",
        "expected activation to be one of fastgelu, gelu, relu, silu, geglu, swiglu, reglu, "
        "got 'tanh'",
        x,
        *layers,
        activation="tanh",
    )
    refuse("inner_precise", "expected inner_precise 0 or 1, got 2", x, *layers, inner_precise=2)
    refuse(
        "ranks",
        r"expected x of rank 2 or more and weights of rank 2, or 3 with experts, "
        r"got \[8\], \[8, 4\] and \[4, 3\]",
        (8,),
        *layers,
    )
    refuse("depth", r"expected weight1 \[.., 8, N1\], got \[7, 4\]", x, (7, 4), (4, 3))
    refuse(
        "columns",
        r"expected weight1 with 8 columns for weight2 \[4, 3\] and 'swiglu', got \[8, 4\]",
        x,
        *layers,
        activation="swiglu",
    )
    refuse("bias", r"expected bias1 of shape \[4\], got \[3\]", x, *layers, bias1=(3,))
    refuse(
        "both_lists",
        "expected expert_tokens or expert_tokens_index, got both of them",
        x,
        *experts,
        expert_tokens=[2, 4],
        expert_tokens_index=[2, 6],
    )
    refuse(
        "too_few_rows",
        r"expected the experts to share 6 rows of x, got \[2, 3\]",
        x,
        *experts,
        expert_tokens=[2, 3],
    )
    refuse(
        "negative_count",
        r"expected the experts to share 6 rows of x, got \[-1, 7\]",
        x,
        *experts,
        expert_tokens=[-1, 7],
    )
    refuse(
        "descending_ends",
        r"expected the experts to share 6 rows of x, got \[7, 6\]",
        x,
        *experts,
        expert_tokens_index=[7, 6],
    )
    refuse(
        "number_of_experts",
        "expected at most 256 experts and weights of each, got 1 numbers and weights of 2",
        x,
        *experts,
        expert_tokens=[6],
    )
    refuse(
        "no_experts",
        "expected weights of rank 2 without expert_tokens, got rank 3",
        x,
        *experts,
    )
    refuse(
        "experts_of_one_layer",
        r"expected weight2 of 2 experts, got \[3, 4, 3\]",
        x,
        (2, 8, 4),
        (3, 4, 3),
        expert_tokens=[2, 4],
    )
    refuse(
        "scale_of_floats",
        "expected no deq_scale1 with x and weights of floats, got one",
        x,
        *layers,
        deq_scale1=(4,),
    )

    def of_bytes(make, activation="relu", **options):
        weights = torch.ones(8, 4, dtype=torch.int8), torch.ones(4, 3, dtype=torch.int8)
        given = {n: o and torch.ones(o) for n, o in options.items()}
        return Sample(torch.ones(6, 8, dtype=torch.int8), *weights, activation, **given)

    complete = {"scale": 1, "deq_scale1": 4, "deq_scale2": 3}  # sizes: a build has no torch
    for identifier, message, options in (
        ("no_scale", "expected scale with x and weights of int8, got none", {"scale": None}),
        (
            "gated_integers",
            "expected fastgelu, gelu, relu or silu with x and weights of int8, got 'swiglu'",
            {"activation": "swiglu"},
        ),
        (
            "scale_shape",
            r"expected scale of shape \[1\] or \[4\], got \[2\]",
            {"scale": 2},
        ),
        (
            "bias_of_floats",
            "expected bias1 of int32 with x and weights of int8, got float32",
            {"bias1": 4},
        ),
    ):
        given = {**complete, **options}
        op.errors(
            lambda make, given=given: of_bytes(make, **given),
            match=rf"\[npu_ffn\] {message}",
            id=identifier,
        )
    op.errors(
        lambda make: Sample(
            make(6, 8, dtype="float16"),
            torch.ones(8, 4, dtype=torch.int8),
            torch.ones(4, 3, dtype=torch.int8),
            "relu",
        ),
        match=r"\[npu_ffn\] expected antiquant_scale1 with x of floats and weights of int8, "
        "got none",
        id="no_antiquant_scale",
    )
