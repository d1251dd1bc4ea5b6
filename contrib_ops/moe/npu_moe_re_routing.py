"""Moves received tokens from the order of their ranks to that of their experts.

Source: torch_npu.npu_moe_re_routing.
"""

from onnxruntime_npu.opdef import (
    FLOATS,
    INDICES,
    Sample,
    TypeCodes,
    check,
    is_traced,
    npu_op,
    torch,
)

from ._rows import body_numbers, body_order_of, body_size, check_rows, order_of

_TOKENS = [*FLOATS, "int8", "uint8"]

op = npu_op(
    "npu_moe_re_routing(Tensor tokens, Tensor expert_token_num_per_rank, *,"
    " Tensor? per_token_scales=None, int expert_token_num_type=1, int idx_type=0,"
    " int? tokens_dtype=None) -> (Tensor, Tensor, Tensor, Tensor)",
    onnx="NPUMoeReRouting",
    outputs=[
        "permute_tokens",
        "permute_per_token_scales",
        "permute_token_idx",
        "expert_token_num",
    ],
    dtypes={
        "tokens": _TOKENS,
        "expert_token_num_per_rank": INDICES,
        "per_token_scales": ["float32"],
        "permute_tokens": _TOKENS,
        "permute_per_token_scales": ["float32"],
        "permute_token_idx": ["int32"],
        "expert_token_num": INDICES,
    },
    # Types of one byte that torch has no tensors of; their codes are torch_npu's numbers.
    type_codes={
        "tokens_dtype": TypeCodes({"hifloat8": 290, "float4_e2m1": 296, "float4_e1m2": 297})
    },
)


def _check(condition, message):
    check(condition, f"[npu_moe_re_routing] expected {message}")


def _check_counts(counts, tokens):
    if is_traced(counts):
        return
    total = 0
    for count in counts.reshape(-1).tolist():
        _check(
            0 <= count <= tokens - total,
            f"expert_token_num_per_rank of numbers that add up to at most the {tokens} tokens, "
            f"got {count} behind {total}",
        )
        total += count


@op.reference
def reference(
    tokens,
    expert_token_num_per_rank,
    per_token_scales=None,
    expert_token_num_type=1,
    idx_type=0,
    tokens_dtype=None,
):
    """Sort tokens by expert, those of one expert by the rank that they come from.

    tokens: [A, H], those of rank 0 first, of a rank those of its first expert first;
    expert_token_num_per_rank: [N, E], how many of each rank are for each expert, at most A
    together; per_token_scales: [A] float32. permute_tokens and permute_per_token_scales: the tokens
    and their scales, sorted; zeros for scales without per_token_scales. permute_token_idx: [A]
    int32, the token at each place for idx_type 0, the place of each token for 1.
    expert_token_num: [E], the tokens of each expert, like expert_token_num_per_rank. Tokens beyond
    the numbers are dropped: the last places hold zeros, and -1 stands for them and for their place.
    expert_token_num_type: 1; tokens_dtype: None, or for uint8 the type of one byte that it holds,
    which makes no difference.
    """
    counts, scales = expert_token_num_per_rank, per_token_scales
    _check(tokens.dim() == 2, f"tokens [A, H], got {list(tokens.shape)}")
    _check(counts.dim() == 2, f"expert_token_num_per_rank [N, E], got {list(counts.shape)}")
    total = tokens.shape[0]
    check_rows("npu_moe_re_routing", total)
    _check(
        scales is None or list(scales.shape) == [total],
        f"per_token_scales [{total}], got {scales is not None and list(scales.shape)}",
    )
    _check(expert_token_num_type == 1, f"expert_token_num_type 1, got {expert_token_num_type}")
    _check(idx_type in (0, 1), f"idx_type 0 or 1, got {idx_type}")
    _check(
        tokens_dtype is None or tokens.dtype == torch.uint8,
        f"tokens of uint8 for tokens_dtype {tokens_dtype}, got {tokens.dtype}",
    )
    _check_counts(counts, total)
    experts = counts.shape[1]
    numbers = torch.arange(total, device=tokens.device)
    ends = counts.reshape(-1).to(torch.int64).cumsum(0)
    block = (numbers[:, None] >= ends).sum(1)
    is_routed = block < ends.shape[0]
    # Blocks repeat the experts rank by rank; those of no block come last.
    keys = torch.where(is_routed, block % experts if experts else block, experts)
    order = order_of(keys)
    is_filled = is_routed.index_select(0, order)
    moved = torch.where(is_filled[:, None], tokens.index_select(0, order), 0).to(tokens.dtype)
    if scales is None:
        moved_scales = torch.zeros(total, dtype=torch.float32, device=tokens.device)
    else:
        moved_scales = torch.where(is_filled, scales.index_select(0, order), 0)
    if idx_type == 0:
        idx = torch.where(is_filled, order, -1)
    else:
        idx = torch.empty_like(order).scatter(0, order, torch.where(is_filled, numbers, -1))
    return moved, moved_scales, idx.to(torch.int32), counts.sum(0).to(counts.dtype)


@op.function
def body(b, call, tokens, counts, scales):
    def integer(value):
        return b.const(value, "int64")

    total, experts = body_size(b, tokens, 0), body_size(b, counts, 1)
    wide = b.Cast(counts, to="int64")
    ends = b.CumSum(b.Reshape(wide, [-1]), integer(0))
    numbers = body_numbers(b, total)
    # One end more, which no token passes: the CPU provider's reductions keep an empty shape.
    passed = b.GreaterOrEqual(b.Unsqueeze(numbers, [1]), b.Concat(ends, integer([2**62]), axis=0))
    block = b.Reshape(b.ReduceSum(b.Cast(passed, to="int64"), [1], keepdims=0), [-1])
    is_routed = b.Less(block, body_size(b, ends, 0))
    keys = b.Where(is_routed, b.Mod(block, b.Max(experts, integer(1))), experts)
    order = body_order_of(b, keys)
    source = b.Where(b.Gather(is_routed, order, axis=0), order, total)
    # A row of zeros behind the tokens is what places without one have.
    zeros = b.ConstantOfShape(b.Concat(integer([1]), b.Slice(b.Shape(tokens), [1], [2]), axis=0))
    padded = b.Concat(tokens, b.Cast(zeros, to=call.dtype("tokens")), axis=0)
    moved = b.Gather(padded, source, axis=0)
    if scales is None:
        moved_scales = b.ConstantOfShape(b.Shape(order))
    else:
        moved_scales = b.Gather(b.Concat(scales, b.const([0.0], "float32"), axis=0), source, axis=0)
    none = integer(-1)
    if call.attrs["idx_type"] == 0:
        idx = b.Where(b.Less(source, total), order, none)
    else:
        places = b.Where(b.Less(source, total), numbers, none)
        idx = b.ScatterElements(numbers, order, places, axis=0)
    # A row of no tokens more, for a sum without ranks.
    row = b.ConstantOfShape(b.Concat(integer([1]), b.Slice(b.Shape(counts), [1], [2]), axis=0))
    ranks = b.Concat(wide, b.Cast(row, to="int64"), axis=0)
    sums = b.Reshape(
        b.ReduceSum(ranks, [0], keepdims=0), b.Slice(b.Shape(counts), [1], [2]), allowzero=1
    )
    return (
        moved,
        moved_scales,
        b.Cast(idx, to="int32"),
        b.Cast(sums, to=call.dtype("expert_token_num_per_rank")),
    )


@op.samples
def samples(make):
    x = make.tensor([[10], [11], [20], [30], [31], [40]])
    yield Sample(
        x,
        make.tensor([[2, 1], [2, 1]], "int32"),
        id="catalogue",
        expect=[[[10], [11], [30], [31], [20], [40]], [0.0] * 6, [0, 1, 3, 4, 2, 5], [4, 2]],
    )
    yield Sample(
        x,
        make.tensor([[1, 0, 2], [2, 0, 0]], "int64"),
        per_token_scales=make.tensor([0.0, 1.0, 2.0, 3.0, 4.0, 5.0], "float32"),
        idx_type=1,
        id="dropped_tokens",
        expect=[
            [[10], [30], [31], [11], [20], [0]],
            [0.0, 3.0, 4.0, 1.0, 2.0, 0.0],
            [0, 3, 4, 1, 2, -1],
            [3, 0, 2],
        ],
    )
    counts = make.ints(5, 7, high=4)
    total = int(counts.sum())
    scales = make(total, dtype="float32")
    yield Sample(make(total, 33), counts, per_token_scales=scales)
    yield Sample(make(total + 3, 33), counts.int(), idx_type=1, id="places_of_tokens")
    yield Sample(make(total, 5), counts.reshape(1, 35), id="one_rank")
    yield Sample(make(total, 5), counts.reshape(35, 1), id="one_expert")
    many = make.ints(16, 40, high=12)
    yield Sample(make(int(many.sum()), 60), many.int(), id="threads")
    yield Sample(make(4, 6), make.ints(2, 3, high=1), id="no_tokens_sent")
    yield Sample(make(0, 6), make.ints(2, 3, high=1), per_token_scales=scales[:0], id="no_tokens")
    yield Sample(make(3, 6), make.ints(0, 3), id="no_ranks")
    yield Sample(make(3, 0), make.tensor([[1, 1], [0, 1]], "int64"), id="no_features")
    yield Sample(
        make(6, total).t(),
        counts.t().contiguous().t(),
        per_token_scales=make(2 * total, dtype="float32")[::2],
        id="not_contiguous",
    )
    if make.dtype == "uint8":
        yield Sample(make(total, 6), counts, tokens_dtype=296, id="float4")
        yield Sample(make(total, 6), counts, tokens_dtype=290, id="hifloat8")


for _dtype in _TOKENS:
    op.tolerance(_dtype, rtol=0, atol=0, reason="values are only moved")


def _refuse(id, match, tokens=(6, 4), counts=((2, 1), (2, 1)), needs_values=False, **arguments):
    def call(make):
        given = {name: v(make) if callable(v) else v for name, v in arguments.items()}
        return Sample(make(*tokens), make.tensor(counts, "int64"), **given)

    match = rf"\[npu_moe_re_routing\] expected {match}"
    op.errors(call, match=match, needs_values=needs_values, id=id)


_refuse("rank", r"tokens \[A, H\], got \[6\]", tokens=(6,))
_refuse("counts_rank", r"expert_token_num_per_rank \[N, E\], got \[2\]", counts=(2, 1))
_refuse(
    "scales", r"per_token_scales \[6\], got \[5\]", per_token_scales=lambda m: m(5, dtype="float32")
)
_refuse("cumulative", "expert_token_num_type 1, got 0", expert_token_num_type=0)
_refuse("idx_type", "idx_type 0 or 1, got 2", idx_type=2)
_refuse(
    "tokens_dtype",
    "tokens of uint8 for tokens_dtype float4_e2m1, got .*float32",
    tokens_dtype=296,
)
_refuse(
    "int4",
    "tokens_dtype to name hifloat8, float4_e2m1 or float4_e1m2, got int4",
    tokens_dtype=285,
)
_refuse(
    "too_many",
    "expert_token_num_per_rank of numbers that add up to at most the 6 tokens, got 2 behind 5",
    counts=((2, 1), (2, 2)),
    needs_values=True,
)
_refuse(
    "negative",
    "expert_token_num_per_rank of numbers that add up to at most the 6 tokens, got -1 behind 4",
    counts=((2, 2), (-1, 1)),
    needs_values=True,
)
