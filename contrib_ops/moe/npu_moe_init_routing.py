"""Sorts the rows of all tokens by expert and gathers their features.

Source: torch_npu.npu_moe_init_routing.
"""

from onnxruntime_npu.opdef import FLOATS, Sample, check, check_indices, is_traced, npu_op, torch

from ._rows import body_order_of, body_size, check_rows, order_of

op = npu_op(
    "npu_moe_init_routing(Tensor x, Tensor row_idx, Tensor expert_idx, int active_num)"
    " -> (Tensor, Tensor, Tensor)",
    onnx="NPUMoeInitRouting",
    outputs=["expanded_x", "expanded_row_idx", "expanded_expert_idx"],
    dtypes={
        "x": FLOATS,
        "row_idx": ["int32"],
        "expert_idx": ["int32"],
        "expanded_x": FLOATS,
        "expanded_row_idx": ["int32"],
        "expanded_expert_idx": ["int32"],
    },
)


def _check_permutation(row_idx, rows):
    what = "[npu_moe_init_routing] expected row_idx"
    check_indices(row_idx, 0, rows, what)
    if is_traced(row_idx):
        return
    found = torch.zeros(rows, dtype=torch.bool).scatter(0, row_idx.to(torch.int64).cpu(), True)
    absent = (~found).nonzero().flatten().tolist()
    check(not absent, f"{what} to be a permutation of [0, {rows}), got no {absent and absent[0]}")


@op.reference
def reference(x, row_idx, expert_idx, active_num):
    """Sort the T * K rows by expert, those of one expert in row-major order.

    x: [T, H]; expert_idx, row_idx: [T, K] int32, any experts and a permutation of the numbers
    below T * K, from npu_moe_gating_top_k_softmax k * T + t; row s is of token s % T.
    expanded_expert_idx: [T * K] the sorted experts; expanded_row_idx: [T * K], at s the place
    of row s among the sorted ones; expanded_x: [min(T, active_num) * K, H], the tokens of the
    first of them. active_num: 0 or more.
    """
    name = "npu_moe_init_routing"
    check(x.dim() == 2, f"[{name}] expected x [T, H], got {list(x.shape)}")
    check(
        expert_idx.dim() == 2 and expert_idx.shape[0] == x.shape[0],
        f"[{name}] expected expert_idx [{x.shape[0]}, K], got {list(expert_idx.shape)}",
    )
    check(
        row_idx.shape == expert_idx.shape,
        f"[{name}] expected row_idx of expert_idx's shape {list(expert_idx.shape)}, "
        f"got {list(row_idx.shape)}",
    )
    check(active_num >= 0, f"[{name}] expected active_num >= 0, got {active_num}")
    tokens, slots = expert_idx.shape
    rows = tokens * slots
    check_rows(name, rows)
    flat = row_idx.reshape(-1)
    _check_permutation(flat, rows)
    experts = expert_idx.reshape(-1)
    order = order_of(experts)
    source = flat.index_select(0, order).to(torch.int64)
    places = torch.arange(rows, dtype=torch.int32, device=x.device)
    kept = source[: torch.sym_min(tokens, active_num) * slots]
    return (
        x.index_select(0, kept % tokens if tokens else kept),
        torch.empty_like(places).scatter(0, source, places),
        experts.index_select(0, order),
    )


@op.function
def body(b, call, x, row_idx, expert_idx):
    experts = b.Reshape(expert_idx, [-1])
    order = body_order_of(b, b.Cast(experts, to="int64"))
    source = b.Cast(b.Gather(b.Reshape(row_idx, [-1]), order, axis=0), to="int64")
    tokens, slots = body_size(b, x, 0), body_size(b, expert_idx, 1)
    # The places of a permutation are its inverse, which sorting finds.
    places = body_order_of(b, source)
    count = b.Mul(b.Min(tokens, b.const(call.attrs["active_num"], "int64")), slots)
    kept = b.Slice(source, [0], b.Unsqueeze(count, [0]))
    return (
        b.Gather(x, b.Mod(kept, b.Max(tokens, b.const(1, "int64"))), axis=0),
        b.Cast(places, to="int32"),
        b.Gather(experts, order, axis=0),
    )


def _by_columns(tokens, slots):
    return torch.arange(tokens * slots, dtype=torch.int32).reshape(slots, tokens).t().contiguous()


@op.samples
def samples(make):
    experts = make.tensor([[2, 0], [1, 2], [0, 1]], "int32")
    x = make.tensor([[1.0, 1.0], [2.0, 2.0], [3.0, 3.0]])
    tokens = [[1.0, 1.0], [3.0, 3.0], [2.0, 2.0], [3.0, 3.0], [1.0, 1.0], [2.0, 2.0]]
    others = [[4, 2, 1, 0, 5, 3], [0, 0, 1, 1, 2, 2]]
    yield Sample(x, _by_columns(3, 2), experts, 3, id="catalogue", expect=[tokens, *others])
    yield Sample(
        x, _by_columns(3, 2), experts, 1, id="first_rows_only", expect=[tokens[:2], *others]
    )
    yield Sample(x, _by_columns(3, 2), experts, 0, id="no_active_tokens")
    yield Sample(make(9, 33), _by_columns(9, 4), make.ints(9, 4, high=8, dtype="int32"), 100)
    yield Sample(
        make(9, 5),
        make.permutation(27, "int32").reshape(9, 3),
        make.ints(9, 3, low=-(2**31), high=2**31, dtype="int32"),
        7,
        id="any_permutation_of_any_experts",
    )
    yield Sample(
        make(40, 6),
        _by_columns(40, 3),
        make.ints(40, 3, high=1, dtype="int32"),
        40,
        id="one_expert",
    )
    yield Sample(
        make(3000, 24),
        _by_columns(3000, 4),
        make.ints(3000, 4, high=5000, dtype="int32"),
        3000,
        id="threads",
    )
    yield Sample(
        make(0, 8),
        make.ints(0, 2, dtype="int32"),
        make.ints(0, 2, dtype="int32"),
        4,
        id="no_tokens",
    )
    yield Sample(
        make(8, 6).t(),
        _by_columns(6, 2),
        make.ints(2, 6, high=4, dtype="int32").t(),
        6,
        id="not_contiguous",
    )


for _dtype in FLOATS:
    op.tolerance(_dtype, rtol=0, atol=0, reason="values are only moved")


def _refuse(id, match, make_sample, **options):
    match = rf"\[npu_moe_init_routing\] expected {match}"
    op.errors(make_sample, match=match, id=id, **options)


def _call(make, rows=(0, 2, 1, 3), experts=(2, 2), active=2):
    row_idx = make.tensor(rows, "int32").reshape(2, 2)
    return Sample(make(2, 4), row_idx, make.ints(*experts, dtype="int32"), active)


_refuse(
    "row_too_large",
    r"row_idx in \[0, 4\), got 4",
    lambda make: _call(make, (0, 2, 1, 4)),
    needs_values=True,
)
_refuse(
    "negative_row",
    r"row_idx in \[0, 4\), got -1",
    lambda make: _call(make, (0, 2, -1, 3)),
    needs_values=True,
)
_refuse(
    "row_twice",
    r"row_idx to be a permutation of \[0, 4\), got no 1",
    lambda make: _call(make, (0, 2, 2, 3)),
    needs_values=True,
)
_refuse("active_num", "active_num >= 0, got -1", lambda make: _call(make, active=-1))
_refuse(
    "experts",
    r"expert_idx \[2, K\], got \[3, 2\]",
    lambda make: _call(make, experts=(3, 2)),
)
_refuse(
    "rows",
    r"row_idx of expert_idx's shape \[2, 3\], got \[2, 2\]",
    lambda make: _call(make, experts=(2, 3)),
)
_refuse(
    "rank",
    r"x \[T, H\], got \[4\]",
    lambda make: Sample(
        make(4), make.ints(4, 1, dtype="int32"), make.ints(4, 1, dtype="int32"), active_num=1
    ),
)
