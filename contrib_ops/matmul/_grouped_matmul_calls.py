"""Calls of npu_grouped_matmul: samples of every form, and what it refuses."""

from onnxruntime_npu.opdef import Sample, torch

from ..quant._integers import pack
from ..quant._packed_scale import pack_scale

_FLOATS = ("float32", "float16", "bfloat16")


def samples_of(make):
    """Yield calls with x of make.dtype."""
    if make.dtype in _FLOATS:
        yield from _floats(make)
        yield from _weight_only(make)
    elif make.dtype == "int8":
        yield from _bytes(make)
    else:
        yield from _words(make)


def _list(make, *values):
    return make.tensor(list(values), "int64")


def _integers(make, *shape):
    return make.ints(*shape, low=-128, high=128, dtype="int8")


def _packed(make, *shape):
    return pack(make.ints(*shape, low=-8, high=8))


def _scale(make, *shape, dtype="float32"):
    return make.uniform(*shape, low=0.001, high=0.01, dtype=dtype)


def _floats(make):
    x = make.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0], [2.0, -1.0]])
    weight = make.tensor([[[1.0, 2.0], [3.0, 4.0]], [[0.0, 1.0], [1.0, 0.0]]])
    yield Sample(
        x, weight, group_list=_list(make, 1, 4), group_type=0, id="catalogue",
        expect=[[[1.0, 2.0], [1.0, 0.0], [1.0, 1.0], [-1.0, 2.0]]],
    )  # fmt: skip
    yield Sample(
        make.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]),
        make.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]]),
        group_list=_list(make, 1, 3), group_type=2, id="catalogue_depth",
        expect=[[[[1.0, 0.0], [4.0, 0.0]], [[3.0, 5.0], [6.0, 11.0]]]],
    )  # fmt: skip
    yield Sample(
        make(37, 65), make(5, 65, 33), make(5, 33), group_list=_list(make, 0, 12, 0, 25, 0),
        group_type=0, group_list_type=1, id="counts_and_empty_groups",
    )  # fmt: skip
    yield Sample(
        make(20, 40), make(3, 40, 70), group_list=make.tensor([[2, 7], [0, 4]], "int64"),
        group_type=0, group_list_type=2, id="pairs_and_rows_of_no_group",
    )  # fmt: skip
    yield Sample(
        make(6, 8), make(2, 8, 40), make(2, 40, dtype="float32"), group_list=_list(make, 2, 6),
        group_type=0, act_type=5, output_dtype=torch.float32, id="silu",
    )  # fmt: skip
    yield Sample(make(3, 5, 24), make(24, 40), make(40), act_type=2, id="one_weight")
    yield Sample(
        make(7, 30), make(30, 9), group_list=_list(make, 11, 0, 12), group_type=2,
        group_list_type=1, id="depth_counts",
    )  # fmt: skip
    yield Sample(
        make(0, 8), make(2, 8, 4), group_list=_list(make, 0, 0), group_type=0, id="no_rows"
    )


def _weight_only(make):
    if make.dtype == "float32":
        return
    yield Sample(
        make(20, 64), _integers(make, 3, 64, 40), antiquant_scale=make(3, 40, scale=0.01),
        antiquant_offset=make(3, 40), group_list=_list(make, 4, 4, 20), group_type=0,
        id="weight_of_int8",
    )  # fmt: skip
    yield Sample(
        make(9, 64), _packed(make, 2, 64, 40), make(2, 40, dtype="float32"),
        antiquant_scale=make(2, 4, 40, scale=0.1), antiquant_offset=make(2, 4, 40),
        group_list=_list(make, 2, 9), group_type=0, id="weight_of_int4_in_blocks",
    )  # fmt: skip
    yield Sample(
        make(5, 64), _packed(make, 40, 64).t(), antiquant_scale=make(2, 40, scale=0.1),
        id="one_weight_of_int4",
    )  # fmt: skip


def _bytes(make):
    groups = {"group_list": _list(make, 5, 5, 19), "group_type": 0}
    yield Sample(
        make.tensor([[1, -2, 3], [4, 5, -6]]), make.tensor([[1, 2], [-1, 0], [2, 1]]),
        make.tensor([1, -1], "int32"), make.tensor([0.5, 0.25], "float32"),
        per_token_scale=make.tensor([2.0, 0.5], "float32"), output_dtype=torch.float16,
        id="by_hand", expect=[[[10.0, 2.0], [-3.0, 0.125]]],
    )  # fmt: skip
    x, weight = _integers(make, 20, 70), _integers(make, 3, 70, 40)
    yield Sample(
        x, weight, make.ints(3, 40, low=-999, high=999, dtype="int32"), _scale(make, 3, 40),
        **groups, id="int8",
    )  # fmt: skip
    yield Sample(
        x, weight, None, pack_scale(_scale(make, 3, 1), make.ints(3, 1, low=-9, high=9).float()),
        **groups, id="packed_scale_with_offset",
    )  # fmt: skip
    yield Sample(
        x, weight, make(3, 40, dtype="float32"), _scale(make, 3, 40).bfloat16(),
        per_token_scale=_scale(make, 20, 1), output_dtype=torch.bfloat16, act_type=1, **groups,
        id="per_token",
    )  # fmt: skip
    yield Sample(
        x, weight, make.ints(3, 40, low=-(2**31), high=2**31, dtype="int32"), _scale(make, 3),
        output_dtype=torch.int32, **groups, id="sums",
    )  # fmt: skip
    yield Sample(
        _integers(make, 6, 64), _packed(make, 3, 64, 40), make(3, 40, dtype="float32"),
        pack_scale(_scale(make, 3, 2, 40)), per_token_scale=_scale(make, 6),
        output_dtype=torch.float16, group_list=_list(make, 1, 4, 6), group_type=0,
        id="weight_of_int4_in_blocks",
    )  # fmt: skip


def _words(make):
    yield Sample(
        _packed(make, 6, 64), _packed(make, 3, 64, 40), None, _scale(make, 3, 40),
        per_token_scale=_scale(make, 6), output_dtype=torch.float16,
        group_list=_list(make, 1, 4, 6), group_type=0, id="int4",
    )  # fmt: skip
    yield Sample(
        _packed(make, 6, 64), _packed(make, 40, 64).t(), None, _scale(make, 4, 40),
        output_dtype=torch.bfloat16, id="one_weight_in_blocks",
    )  # fmt: skip


def refusals(op):
    """Add the calls that the operator refuses."""

    def refuse(identifier, message, make, **options):
        op.errors(make, match=rf"\[npu_grouped_matmul\] {message}", id=identifier, **options)

    def call(*sizes, **options):
        return lambda make: Sample(
            *(make(*size) for size in sizes),
            **{name: value(make) if callable(value) else value for name, value in options.items()},
        )

    def ends(*values):
        return lambda make: _list(make, *values)

    x, weight = (6, 8), (2, 8, 4)
    refuse("group_type", r"The group type must be -1, 0 or 2, got 1", call(x, weight, group_type=1))
    refuse(
        "act_type",
        r"expected act_type 0, 1, 2, 4 or 5, got 3",
        call(x, weight, group_type=0, group_list=ends(2, 6), act_type=3),
    )
    refuse(
        "no_group_list",
        r"expected group_list with group_type 0, got none",
        call(x, weight, group_type=0),
    )
    refuse(
        "group_list_shape",
        r"expected group_list of shape \[2\], got \[3\]",
        call(x, weight, group_type=0, group_list=ends(1, 2, 6)),
    )
    refuse(
        "descending",
        r"expected group_list to divide 6 rows in order, entry 1 in \[4, 6\], got 2",
        call(x, weight, group_type=0, group_list=ends(4, 2)),
        needs_values=True,
    )
    refuse(
        "beyond_the_rows",
        r"expected group_list to divide 6 rows in order, entry 1 in \[0, 2\], got 3",
        call(x, weight, group_type=0, group_list=ends(4, 3), group_list_type=1),
        needs_values=True,
    )
    refuse(
        "index",
        r"expected indices of group_list in \[0, 2\), entry 0, got 2",
        call(
            x,
            weight,
            group_type=0,
            group_list=lambda make: make.tensor([[2, 1]], "int64"),
            group_list_type=2,
        ),
        needs_values=True,
    )
    refuse(
        "depth",
        r"expected weight \[.., 8, N\], got \[2, 7, 4\]",
        call(x, (2, 7, 4), group_type=0, group_list=ends(2, 6)),
    )
    refuse(
        "bias_shape",
        r"expected bias of shape \[2, 4\], got \[4\]",
        call(x, weight, (4,), group_type=0, group_list=ends(2, 6)),
    )
    refuse(
        "ranks",
        r"expected x of rank 2 and weight of rank 3 with group_type 0, got \[6, 8\] and \[8, 4\]",
        call(x, (8, 4), group_type=0, group_list=ends(2, 6)),
    )
    refuse(
        "blocks",
        r"expected antiquant_scale with a number of blocks that divides 8, got 3",
        lambda make: Sample(
            make(3, 8, dtype="float16"),
            make.ints(8, 4, low=-9, high=9, dtype="int8"),
            antiquant_scale=make(3, 4, dtype="float16"),
        ),
    )
    refuse(
        "no_scale",
        r"expected scale with x and weight of int8, got none",
        lambda make: Sample(_integers(make, 3, 8), _integers(make, 8, 4)),
    )
    refuse(
        "superfluous",
        r"expected no scale with x and weight of floats, got one",
        lambda make: Sample(make(3, 8), make(8, 4), scale=make(4, dtype="float32")),
    )
