"""Calls of npu_moe_init_routing_v2: samples of every form, and what it refuses."""

from onnxruntime_npu.opdef import Sample


def samples_of(make):
    """Yield calls with x of make.dtype."""
    x = make.tensor([[1.0, 1.0], [2.0, 2.0], [3.0, 3.0]])
    experts = make.tensor([[2, 0], [1, 2], [0, 1]], "int32")
    sorted_x = [[1.0, 1.0], [3.0, 3.0], [2.0, 2.0], [3.0, 3.0], [1.0, 1.0], [2.0, 2.0]]
    zero = [0.0, 0.0]
    yield Sample(
        x,
        experts,
        expert_num=3,
        active_expert_range=[0, 3],
        expert_tokens_num_type=1,
        expert_tokens_num_flag=True,
        id="catalogue",
        expect=[sorted_x, [4, 0, 2, 5, 1, 3], [2, 2, 2], [0.0] * 6],
    )
    yield Sample(
        x,
        experts,
        expert_num=3,
        expert_tokens_num_flag=True,
        row_idx_type=1,
        id="catalogue_scatter",
        expect=[sorted_x, [1, 4, 2, 5, 0, 3], [2, 4, 6], None],
    )
    yield Sample(
        x,
        experts,
        active_expert_range=[1, 2],
        expert_tokens_num_flag=True,
        active_num=3,
        id="one_expert_of_three",
        expect=[[[2.0, 2.0], [3.0, 3.0], zero], [-1, -1, 0, -1, -1, 1], [2], [0.0] * 3],
    )
    yield Sample(
        x,
        make.tensor([[2, 0], [0, 2], [0, 7]], "int32"),
        expert_num=4,
        drop_pad_mode=1,
        expert_capacity=2,
        expert_tokens_num_flag=True,
        scale=None if make.dtype == "int8" else make.tensor([1.0, 2.0, 3.0], "float32"),
        id="drop_pad",
        expect=[
            [[[1.0, 1.0], [2.0, 2.0]], [zero, zero], [[1.0, 1.0], [2.0, 2.0]], [zero, zero]],
            [4, 0, 1, 5, -1, -1],
            [3, 0, 2, 0],
            None if make.dtype == "int8" else [1.0, 2.0, 0.0, 0.0, 1.0, 2.0, 0.0, 0.0],
        ],
    )
    yield Sample(
        x,
        make.tensor([[4, 2], [2, 9], [4, 2]], "int32"),
        active_expert_range=[2, 5],
        expert_num=6,
        expert_tokens_num_type=2,
        expert_tokens_num_flag=True,
        id="pairs",
        expect=[None, None, [[2, 3], [4, 2], [0, 0], [0, 0], [0, 0], [0, 0]], None],
    )
    many = make.ints(11, 4, high=9, dtype="int32")
    wide = make(11, 40)
    yield Sample(wide, many, expert_num=8, scale=make(11, dtype="float32"), id="scales_of_tokens")
    yield Sample(wide, many, expert_num=20, active_num=13, expert_tokens_num_type=2, id="capped")
    yield Sample(
        wide,
        many,
        expert_num=8,
        drop_pad_mode=1,
        expert_capacity=5,
        row_idx_type=1,
        expert_tokens_num_type=2,
        expert_tokens_num_flag=True,
        id="drop_pad_scatter",
    )
    yield Sample(
        make(600, 60),
        make.ints(600, 8, low=-3, high=4000, dtype="int32"),
        active_expert_range=[5, 3900],
        expert_tokens_num_type=1,
        expert_tokens_num_flag=True,
        id="threads",
    )
    yield Sample(make(0, 8), make.ints(0, 2, dtype="int32"), expert_num=4, id="no_tokens")
    yield Sample(make(5, 0), many[:5], expert_num=4, id="no_features")
    yield Sample(make(40, 11).t(), many.t().contiguous().t(), expert_num=8, id="not_contiguous")
    if make.dtype == "int8":
        return
    scale, offset = make.tensor([20.0], "float32"), make.tensor([3.3], "float32")
    yield Sample(wide, many, expert_num=8, scale=scale, offset=offset, quant_mode=0, id="static")
    yield Sample(
        wide * 3000,
        many,
        scale=scale,
        offset=offset,
        expert_num=9,
        drop_pad_mode=1,
        expert_capacity=7,
        quant_mode=0,
        id="static_drop_pad",
    )
    yield Sample(wide, many, expert_num=8, scale=scale, quant_mode=0, id="static_without_offset")
    yield Sample(
        make(0, 8),
        many[:0],
        expert_num=8,
        scale=scale[:0],
        offset=offset[:0],
        quant_mode=0,
        expert_tokens_num_flag=True,
        id="static_no_tokens",
    )
    yield Sample(wide, many, expert_num=8, quant_mode=1, id="dynamic")
    smooth = make(7, 40, dtype="float32")
    yield Sample(
        wide,
        many,
        active_expert_range=[1, 8],
        scale=smooth,
        quant_mode=1,
        active_num=30,
        id="dynamic_scales_of_experts",
    )
    yield Sample(wide, many, expert_num=8, scale=smooth[:1], quant_mode=1, id="dynamic_one_scale")
    yield Sample(
        wide,
        many,
        expert_num=7,
        scale=smooth,
        drop_pad_mode=1,
        expert_capacity=6,
        quant_mode=1,
        id="dynamic_drop_pad",
    )
    yield Sample(
        make.tensor([[7.0, -7.0, 2.0, 0.0, 3.0, -1.0], [0.0] * 6]),
        make.tensor([[1], [0]], "int32"),
        expert_num=2,
        quant_mode=13,
        x_dtype=285,
        id="int4",
        expect=[[[0, 0, 0], [0x97, 0x02, 0xF3]], [1, 0], [0, 0], [0.0, 1.0]],
    )
    yield Sample(
        make(9, 518),
        many[:9],
        expert_num=8,
        scale=make(1, 518, dtype="float32"),
        quant_mode=13,
        id="int4_one_scale",
    )
    yield Sample(
        make(300, 700), many[:1].repeat(300, 1), expert_num=8, quant_mode=1, id="quant_threads"
    )
    inf, nan = float("inf"), float("nan")
    yield Sample(
        make.tensor([[1.0, inf], [nan, 2.0], [-inf, 0.0], [0.0, 0.0]]),
        make.tensor([[0], [1], [0], [1]], "int32"),
        expert_num=2,
        quant_mode=1,
        id="extremes",
    )
    yield Sample(
        make.tensor([[1.0, inf], [nan, 2.0], [-inf, 0.0], [3e4, -3e4]]),
        make.tensor([[0], [1], [0], [1]], "int32"),
        expert_num=2,
        scale=scale,
        quant_mode=0,
        id="static_extremes",
    )


def _floats(*shape):
    return lambda make: make(*shape, dtype="float32")


def refusals(op):
    """Add the calls that the operator refuses."""

    def refuse(id, match, x=(3, 4), dtype="float32", slots=2, **arguments):
        def call(make):
            given = {name: v(make) if callable(v) else v for name, v in arguments.items()}
            experts = make.ints(3, slots, high=4, dtype="int32")
            return Sample(make(*x, dtype=dtype), experts, **{"expert_num": 4, **given})

        op.errors(call, match=rf"\[{op.schema.name}\] expected {match}", id=id)

    refuse("rank", r"x \[T, H\], got \[3\]", x=(3,))
    refuse("tokens", r"expert_idx \[2, K\] with K >= 1, got \[3, 2\]", x=(2, 4))
    refuse("slots", r"expert_idx \[3, K\] with K >= 1, got \[3, 0\]", slots=0)
    refuse("drop_pad_mode", "drop_pad_mode 0 or 1, got 2", drop_pad_mode=2)
    refuse("histogram", "expert_tokens_num_type 0, 1 or 2, got 3", expert_tokens_num_type=3)
    refuse("row_idx_type", "row_idx_type 0 or 1, got 2", row_idx_type=2)
    refuse("quant_mode", "quant_mode -1, 0, 1 or 13, got 2", quant_mode=2)
    refuse(
        "int4_mode", "quant_mode=13 for x_dtype int4, got quant_mode=1", quant_mode=1, x_dtype=285
    )
    refuse("x_dtype", "x_dtype to name int4, got int8", quant_mode=1, x_dtype=1)
    refuse("int8", "quant_mode -1 for x of int8, got 1", dtype="int8", quant_mode=1)
    refuse("active_num", "active_num >= -1, got -2", active_num=-2)
    refuse("expert_num", r"expert_num in \[1, 10240\], or -1, got 10241", expert_num=10241)
    refuse("no_expert_num", "expert_num without active_expert_range, .* got -1", expert_num=-1)
    refuse(
        "range_descends",
        r"active_expert_range \[\] or an ascending range within \[0, 4\], got \[2, 2\]",
        active_expert_range=[2, 2],
    )
    refuse(
        "range_beyond",
        r"active_expert_range \[\] or an ascending range within \[0, 10240\], got \[0, 10241\]",
        expert_num=-1,
        active_expert_range=[0, 10241],
    )
    refuse(
        "pad_range",
        r"active_expert_range \[\] or \[0, 4\] with drop_pad_mode 1, got \[0, 3\]",
        active_expert_range=[0, 3],
        drop_pad_mode=1,
        expert_capacity=2,
    )
    refuse(
        "capacity",
        r"expert_capacity in \[1, 3\] with drop_pad_mode 1, got 4",
        drop_pad_mode=1,
        expert_capacity=4,
    )
    refuse(
        "features", r"x with features to take a scale from, got \[3, 0\]", x=(3, 0), quant_mode=1
    )
    refuse(
        "int4_features",
        r"x with an even number of features for int4, got \[3, 5\]",
        x=(3, 5),
        quant_mode=13,
    )
    refuse("no_scale", "scale with quant_mode 0", quant_mode=0)
    refuse("token_scale", r"scale \[3\] with quant_mode -1, got \[4\]", scale=_floats(4))
    refuse(
        "static_scale", r"scale \[1\] with quant_mode 0, got \[4\]", scale=_floats(4), quant_mode=0
    )
    refuse(
        "dynamic_scale",
        r"scale \[1, 4\] or \[4, 4\] with quant_mode 1, got \[3, 4\]",
        scale=_floats(3, 4),
        quant_mode=1,
    )
    refuse("offset", "no offset with quant_mode 1, got one", offset=_floats(1), quant_mode=1)
    refuse(
        "offset_shape",
        r"offset \[1\], got \[2\]",
        scale=_floats(1),
        offset=_floats(2),
        quant_mode=0,
    )
