"""The experts of each token by softmax or sigmoid, from the best groups, with their weights.

Source: torch_npu.npu_moe_gating_top_k.
"""

from onnxruntime_npu.opdef import FLOATS, INDICES, Sample, check, check_indices, npu_op, torch

from ._gating import best, body_best, check_k
from ._rows import body_numbers

op = npu_op(
    "npu_moe_gating_top_k(Tensor x, int k, *, Tensor? bias=None, Tensor? input_ids=None,"
    " Tensor? tid2eid=None, int k_group=1, int group_count=1, int group_select_mode=0,"
    " int renorm=0, int norm_type=0, bool out_flag=False, float routed_scaling_factor=1.0,"
    " float eps=1e-20) -> (Tensor, Tensor, Tensor)",
    onnx="NPUMoeGatingTopK",
    outputs=["y", "expert_idx", "norm_out"],
    dtypes={
        "x": FLOATS,
        "bias": FLOATS,
        "input_ids": INDICES,
        "tid2eid": INDICES,
        "y": FLOATS,
        "expert_idx": ["int32"],
        "norm_out": ["float32"],
    },
)
_SOFTMAX, _SIGMOID = 0, 1
_MAX, _TOP_2 = 0, 1


def _check(condition, message):
    check(condition, f"[npu_moe_gating_top_k] expected {message}")


@op.reference
def reference(
    x,
    k,
    bias=None,
    input_ids=None,
    tid2eid=None,
    k_group=1,
    group_count=1,
    group_select_mode=0,
    renorm=0,
    norm_type=0,
    out_flag=False,
    routed_scaling_factor=1.0,
    eps=1e-20,
):
    """y = the scores of the k best experts of each token, times routed_scaling_factor.

    x: [T, E]; the scores are softmax(x) for norm_type 0 and sigmoid(x) for 1, in float32; bias:
    [E], added to choose only. The experts are group_count groups of neighbours, which divide E;
    a token's are those of the k_group best groups. A group is as good as its best expert for
    group_select_mode 0, as the sum of its best two for 1. Best are the greatest scores with their
    bias, without bias the greatest of x, which the scores follow; of equal ones the lower group and
    expert is first, and NaN is above every number. For norm_type 1 the chosen scores are divided
    by their sum plus eps. y, expert_idx: [T, k], x's dtype and int32, the best first; norm_out: [T,
    E] float32, the scores if out_flag is set, else zeros. k: in [1, k_group * E / group_count];
    renorm: 0.

    With input_ids [T] and tid2eid [V, k], expert_idx = tid2eid[input_ids]: the token decides, and
    the scores of these experts are weighted as above.
    """
    _check(x.dim() == 2, f"x [T, E], got {list(x.shape)}")
    tokens, experts = x.shape
    _check(norm_type in (0, 1), f"norm_type 0 or 1, got {norm_type}")
    _check(group_select_mode in (0, 1), f"group_select_mode 0 or 1, got {group_select_mode}")
    _check(renorm == 0, f"renorm 0, got {renorm}")
    _check(
        group_count >= 1 and experts % group_count == 0,
        f"group_count that divides the {experts} experts, got {group_count}",
    )
    _check(1 <= k_group <= group_count, f"k_group in [1, {group_count}], got {k_group}")
    size = experts // group_count
    _check(
        group_select_mode == _MAX or group_count == 1 or size >= 2,
        f"groups of at least 2 experts for group_select_mode 1, got {size}",
    )
    check_k("npu_moe_gating_top_k", k, k_group * size)
    _check(
        bias is None or list(bias.shape) == [experts],
        f"bias [{experts}], got {bias is not None and list(bias.shape)}",
    )
    _check((input_ids is None) == (tid2eid is None), "input_ids and tid2eid both or neither")
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    scores = wide.softmax(-1) if norm_type == _SOFTMAX else wide.sigmoid()
    if tid2eid is None:
        keys = wide if bias is None else scores + bias.to(wide.dtype)
        sums = scores if bias is None else keys
        chosen = _chosen(keys, sums, k, k_group, group_count, group_select_mode)
    else:
        _check(
            list(input_ids.shape) == [tokens],
            f"input_ids [{tokens}], got {list(input_ids.shape)}",
        )
        _check(
            tid2eid.dim() == 2 and tid2eid.shape[1] == k,
            f"tid2eid [V, {k}], got {list(tid2eid.shape)}",
        )
        what = "[npu_moe_gating_top_k] expected "
        check_indices(input_ids, 0, tid2eid.shape[0], what + "input_ids")
        chosen = tid2eid.index_select(0, input_ids.to(torch.int64)).to(torch.int64)
        check_indices(chosen, 0, experts, what + "experts of tid2eid")
    y = scores.gather(1, chosen)
    if norm_type == _SIGMOID:
        y = y / (y.sum(1, keepdim=True) + eps)
    norm_out = scores.float() if out_flag else torch.zeros_like(scores, dtype=torch.float32)
    return (y * routed_scaling_factor).to(x.dtype), chosen.to(torch.int32), norm_out


def _chosen(keys, sums, k, k_group, group_count, mode):
    if group_count == 1:
        return best(keys, k)
    tokens, size = keys.shape[0], keys.shape[1] // group_count

    def grouped(values):
        return values.reshape(tokens, group_count, size)

    if mode == _MAX:
        goodness = grouped(keys).gather(2, best(grouped(keys), 1)).squeeze(2)
    else:
        goodness = grouped(sums).gather(2, best(grouped(sums), 2)).sum(2)
    groups = best(goodness, k_group).sort(dim=1).values
    members = groups[:, :, None] * size + torch.arange(size, device=keys.device)
    members = members.reshape(tokens, k_group * size)
    return members.gather(1, best(keys.gather(1, members), k))


@op.function
def body(b, call, x, bias, input_ids, tid2eid):
    attrs = call.attrs
    wide = b.Cast(x, to="float32")
    scores = b.Softmax(wide, axis=-1) if attrs["norm_type"] == _SOFTMAX else b.Sigmoid(wide)
    if tid2eid is None:
        keys = wide if bias is None else b.Add(scores, b.Cast(bias, to="float32"))
        chosen = _body_chosen(b, attrs, keys, scores if bias is None else keys)
    else:
        chosen = b.Cast(b.Gather(tid2eid, input_ids, axis=0), to="int64")
    y = b.GatherElements(scores, chosen, axis=1)
    if attrs["norm_type"] == _SIGMOID:
        total = b.Add(b.ReduceSum(y, [1], keepdims=1), attrs["eps"])
        # The CPU provider's reductions keep the shape of an empty tensor.
        total = b.Reshape(total, b.Concat(b.Slice(b.Shape(x), [0], [1]), [1], axis=0), allowzero=1)
        y = b.Div(y, total)
    y = b.Cast(b.Mul(y, attrs["routed_scaling_factor"]), to=call.dtype("x"))
    norm_out = scores if attrs["out_flag"] else b.ConstantOfShape(b.Shape(x))
    return y, b.Cast(chosen, to="int32"), norm_out


def _body_chosen(b, attrs, keys, sums):
    k, k_group, count = attrs["k"], attrs["k_group"], attrs["group_count"]
    if count == 1:
        return body_best(b, keys, k)
    shape = b.Shape(keys)
    tokens = b.Slice(shape, [0], [1])
    size = b.Div(b.Slice(shape, [1], [2]), b.const([count], "int64"))
    grid = b.Concat(tokens, b.const([count], "int64"), size, axis=0)

    def best_of(values, n):
        grouped = b.Reshape(values, grid, allowzero=1)
        return b.GatherElements(grouped, body_best(b, grouped, n), axis=2)

    if attrs["group_select_mode"] == _MAX:
        goodness = b.Squeeze(best_of(keys, 1), [2])
    else:
        both = best_of(sums, 2)
        goodness = b.Squeeze(b.Add(b.Slice(both, [0], [1], [2]), b.Slice(both, [1], [2], [2])), [2])
    groups = body_best(b, goodness, k_group)
    groups = b.TopK(groups, b.const([k_group], "int64"), axis=1, largest=0, sorted=1)[0]
    first = b.Mul(b.Unsqueeze(groups, [2]), size)
    members = b.Add(first, body_numbers(b, b.Squeeze(size, [0])))
    width = b.Mul(size, b.const([k_group], "int64"))
    members = b.Reshape(members, b.Concat(tokens, width, axis=0), allowzero=1)
    chosen = body_best(b, b.GatherElements(keys, members, axis=1), k)
    return b.GatherElements(members, chosen, axis=1)


@op.samples
def samples(make):
    exact = make.dtype == "float32"
    yield Sample(
        make.tensor([[1.0, 2.0, 3.0, 4.0, 0.0, 0.0, 5.0, 1.0]]),
        2,
        bias=make.tensor([0.0, 0.0, 0.0, 0.0, 0.5, 0.5, 0.0, 0.0]),
        k_group=2,
        group_count=4,
        norm_type=1,
        out_flag=True,
        id="catalogue",
        expect=[
            [[0.5, 0.5]],
            [[4, 5]],
            [[0.731059, 0.880797, 0.952574, 0.982014, 0.5, 0.5, 0.993307, 0.731059]]
            if exact
            else None,
        ],
    )
    yield Sample(
        make.tensor([[1.0, 2.0, 2.0, 0.0, 1.0, 2.0]]),
        5,
        id="equal_experts_in_their_order",
        expect=[None, [[1, 2, 5, 0, 4]], None],
    )
    yield Sample(
        make.tensor([[9.0, 0.0, 1.0, 1.0, 5.0, 5.0, 1.0, 1.0]]),
        2,
        k_group=1,
        group_count=4,
        group_select_mode=1,
        norm_type=1,
        id="best_two_of_a_group",
        expect=[[[0.5, 0.5]], [[4, 5]], None],
    )
    yield Sample(make(7, 64), 6)
    yield Sample(make(7, 64), 6, bias=make(64), out_flag=True, id="softmax_bias")
    yield Sample(make(9, 60), 8, norm_type=1, eps=0.5, routed_scaling_factor=2.5, id="sigmoid")
    groups = {"k_group": 4, "group_count": 8, "norm_type": 1}
    yield Sample(
        make(20, 256), 8, bias=make(256), group_select_mode=1, **groups, id="groups_by_two"
    )
    yield Sample(
        make(20, 256), 8, bias=make(256, dtype="float32"), **groups, id="groups_float32_bias"
    )
    yield Sample(make(20, 40), 5, group_select_mode=1, **groups, id="groups_without_bias")
    yield Sample(make(5, 24), 3, k_group=2, group_count=3, id="groups_by_softmax")
    yield Sample(
        make.tensor([[60.0, 30.0, 40.0, 20.0, 50.0, 10.0]]),
        3,
        norm_type=1,
        k_group=2,
        group_count=3,
        id="scores_that_round_to_1",
        expect=[None, [[0, 4, 1]], None],
    )
    yield Sample(make(6, 12), 12, norm_type=1, id="every_expert")
    yield Sample(make(3, 300), 100, norm_type=1, id="many_experts")
    yield Sample(make(900, 64), 8, bias=make(64), norm_type=1, out_flag=True, id="threads")
    table = make.ints(11, 4, high=16, dtype="int32")
    yield Sample(
        make(6, 16),
        4,
        input_ids=make.ints(6, high=11),
        tid2eid=table,
        norm_type=1,
        id="experts_of_token_ids",
    )
    yield Sample(
        make(6, 16),
        4,
        input_ids=make.ints(6, high=11, dtype="int32"),
        tid2eid=table.to(torch.int64),
        out_flag=True,
        id="experts_of_token_ids_by_softmax",
    )
    yield Sample(make(0, 8), 2, k_group=1, group_count=2, norm_type=1, id="no_tokens")
    yield Sample(make(16, 6).t(), 2, bias=make(32)[::2], norm_type=1, id="not_contiguous")


def _refuse(id, match, *, needs_values=False, x=(3, 12), k=2, **arguments):
    def call(make):
        given = {name: v(make) if callable(v) else v for name, v in arguments.items()}
        return Sample(make(*x), k, **given)

    match = rf"\[npu_moe_gating_top_k\] expected {match}"
    op.errors(call, match=match, needs_values=needs_values, id=id)


def _ids(*values):
    return lambda make: make.tensor(values, "int64")


_refuse("rank", r"x \[T, E\], got \[12\]", x=(12,))
_refuse("norm_type", "norm_type 0 or 1, got 2", norm_type=2)
_refuse("mode", "group_select_mode 0 or 1, got 2", group_select_mode=2)
_refuse("renorm", "renorm 0, got 1", renorm=1)
_refuse("groups", "group_count that divides the 12 experts, got 5", group_count=5)
_refuse("no_groups", "group_count that divides the 12 experts, got 0", group_count=0)
_refuse("k_group", r"k_group in \[1, 3\], got 4", k_group=4, group_count=3)
_refuse(
    "small_groups",
    "groups of at least 2 experts for group_select_mode 1, got 1",
    group_count=12,
    k_group=4,
    group_select_mode=1,
)
_refuse("k_zero", r"k in \[1, 12\], got 0", k=0)
_refuse("k_of_groups", r"k in \[1, 8\], got 9", k=9, k_group=2, group_count=3)
_refuse("bias", r"bias \[12\], got \[3\]", bias=lambda make: make(3))
_refuse("ids_alone", "input_ids and tid2eid both or neither", input_ids=_ids(0, 1, 2))
_refuse(
    "ids_shape",
    r"input_ids \[3\], got \[2\]",
    input_ids=_ids(0, 1),
    tid2eid=lambda make: make.ints(5, 2),
)
_refuse(
    "table_shape",
    r"tid2eid \[V, 2\], got \[5, 3\]",
    input_ids=_ids(0, 1, 2),
    tid2eid=lambda make: make.ints(5, 3),
)
_refuse(
    "id_too_large",
    r"input_ids in \[0, 5\), got 5",
    needs_values=True,
    input_ids=_ids(0, 5, 2),
    tid2eid=lambda make: make.ints(5, 2),
)
_refuse(
    "negative_expert",
    r"experts of tid2eid in \[0, 12\), got -1",
    needs_values=True,
    input_ids=_ids(0, 1, 1),
    tid2eid=lambda make: make.tensor([[0, 1], [-1, 3]], "int64"),
)
_refuse(
    "expert_too_large",
    r"experts of tid2eid in \[0, 12\), got 12",
    needs_values=True,
    input_ids=_ids(0, 1, 1),
    tid2eid=lambda make: make.tensor([[0, 1], [3, 12]], "int32"),
)
