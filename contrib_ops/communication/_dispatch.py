"""npu_moe_distribute_dispatch and its second version: arguments, results, samples and refusals."""

from onnxruntime_npu.opdef import FLOATS, Sample, TypedBy, check, npu_op, torch

from ._expert_ranks import (
    GROUP,
    PLACES,
    QUANTISED,
    SENT,
    SPECIAL,
    check_slots,
    experts_of,
    most_tokens,
    quantised,
    slots_of,
)
from ._ranks import check_no_tensors, check_unused, empty

NOTE_WORDS = 128  # of a row's bookkeeping in the second version


def define(op, onnx, *, bookkeeping, second=False):
    """Define a version of the operator but for its reference."""
    given = " Tensor? elastic_info=None, Tensor? performance_info=None," if second else ""
    last = (
        f' str comm_alg="",{SPECIAL}, int? y_dtype=None, int? x_dtype=None, int? scales_dtype=None'
    )
    rows = [*FLOATS, "int32"] if second else FLOATS
    made = npu_op(
        f"{op}(Tensor x, Tensor expert_ids, {GROUP}, *, Tensor? scales=None,"
        f" Tensor? x_active_mask=None, Tensor? expert_scales=None,{given}{PLACES}"
        " int quant_mode=0, int global_bs=0, int expert_token_nums_type=1"
        f"{',' + last if second else ''})"
        " -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
        onnx=onnx,
        outputs=[
            "expand_x",
            "dynamic_scales",
            bookkeeping,
            "expert_token_nums",
            "ep_recv_counts",
            "tp_recv_counts",
            "expand_scales",
        ],
        dtypes={
            "x": rows,
            "expert_ids": ["int32"],
            "scales": ["float32"],
            "x_active_mask": ["bool"],
            "expert_scales": ["float32"],
            **({"elastic_info": ["int32"], "performance_info": ["int64"]} if second else {}),
            "expand_x": [*rows, "int8"],
            "dynamic_scales": ["float32"],
            bookkeeping: ["int32"],
            "expert_token_nums": ["int64"],
            "ep_recv_counts": ["int32"],
            "tp_recv_counts": ["int32"],
            "expand_scales": ["float32"],
        },
        typed_by={"expand_x": TypedBy("quant_mode", {QUANTISED: "int8"}, otherwise_input=True)},
        not_portable=SENT,
    )
    made.static("expert_ids", 1, reason="a rank has room for as many rows as its experts may get")
    return made


def dispatched(op, given, *, second=False):
    """Return the results of a rank that is alone; with others, their shapes and dtypes."""
    x, expert_ids, mask = given["x"], given["expert_ids"], given["x_active_mask"]
    experts = experts_of(op, x, given)
    mode, form = given["quant_mode"], given["expert_token_nums_type"]
    check(mode in (0, QUANTISED), f"[{op}] expected quant_mode 0 or 2, got {mode}")
    check(form in (0, 1), f"[{op}] expected expert_token_nums_type 0 or 1, got {form}")
    types = ("y_dtype", "x_dtype", "scales_dtype")
    check_unused(op, {name: (given.get(name), None) for name in types})
    reserved = ("elastic_info", "performance_info")
    check_no_tensors(op, {name: given.get(name) for name in reserved})
    check(x.dim() == 2, f"[{op}] expected x [BS, H], got {list(x.shape)}")
    check_slots(op, expert_ids, mask, x.shape[0])
    _check_scales(op, given, experts)
    tokens, slots = expert_ids.shape
    batch = most_tokens(op, experts, given["global_bs"], tokens)
    rows = experts.most_rows(op, batch, slots)
    of_tp = torch.zeros(given["tp_world_size"], dtype=torch.int32, device=x.device)
    if given["group_ep"]:
        return (
            empty([rows, x.shape[1]], torch.int8 if mode == QUANTISED else x.dtype, x),
            empty([rows], torch.float32, x),
            empty([rows * NOTE_WORDS if second else tokens * slots], torch.int32, x),
            empty([experts.here], torch.int64, x),
            empty([experts.here * experts.ranks], torch.int32, x),
            of_tp,
            empty([rows if given["expert_scales"] is not None else 0], torch.float32, x),
        )
    found = slots_of(op, expert_ids, mask, experts)
    made = _Rows(found, rows, tokens, slots)
    ends = found.counts.cumsum(0)
    return (
        *made.moved(given, mode),
        made.notes() if second else found.places.to(torch.int32),
        ends if form == 0 else found.counts,
        ends.to(torch.int32),
        of_tp,
        made.carried(given["expert_scales"]),
    )


def _check_scales(op, given, experts):
    x, scales, carried = given["x"], given["scales"], given["expert_scales"]
    is_quantised = given["quant_mode"] == QUANTISED
    check(
        not is_quantised or (x.dtype.is_floating_point and x.shape[1] > 0),
        f"[{op}] expected x of floats, with features to take a scale from, with quant_mode 2, "
        f"got {x.dtype} {list(x.shape)}",
    )
    if scales is not None and x.dtype == torch.int32:
        check(
            list(scales.shape) == [x.shape[0]],
            f"[{op}] expected scales [{x.shape[0]}], one of each token, with x of int32, got "
            f"{list(scales.shape)}",
        )
    elif scales is not None:
        check(is_quantised, f"[{op}] expected quant_mode 2 with scales, got {given['quant_mode']}")
        rows = experts.shared + experts.routed
        check(
            list(scales.shape) == [rows, x.shape[1]],
            f"[{op}] expected scales [{rows}, {x.shape[1]}], those of shared experts with ranks "
            f"first, got {list(scales.shape)}",
        )
    if carried is not None:
        shape = list(given["expert_ids"].shape)
        check(
            list(carried.shape) == shape,
            f"[{op}] expected expert_scales like expert_ids, {shape}, got {list(carried.shape)}",
        )


class _Rows:
    """The rows of a rank that is alone; those behind the last slot are zeros."""

    def __init__(self, found, rows, tokens, slots):
        order = torch.cat([found.order, found.order.new_zeros(rows)])[:rows]
        self.valid = torch.arange(rows, device=order.device) < found.counts.sum()
        self.slot = torch.where(self.valid, order, tokens * slots)
        self.token = torch.where(self.valid, order // slots, tokens)
        self.slots = slots

    def moved(self, given, mode):
        """Return expand_x and dynamic_scales."""
        x, scales = given["x"], given["scales"]
        rows = taken(x, self.token)
        if mode != QUANTISED and scales is None:
            return rows, torch.zeros(rows.shape[0], dtype=torch.float32, device=x.device)
        if mode != QUANTISED:  # of integers that have been quantised before
            return rows, taken(scales, self.token)
        values = rows.float()
        if scales is not None:
            values = values * taken(scales.float(), taken(given["expert_ids"].flatten(), self.slot))
        return quantised(values)

    def notes(self):
        """Return each row's source rank, token and slot, at the head of its words."""
        places = torch.stack([torch.zeros_like(self.token), self.token, self.slot % self.slots], 1)
        places = torch.where(self.valid.unsqueeze(1), places, 0)
        rest = places.new_zeros(places.shape[0], NOTE_WORDS - places.shape[1])
        return torch.cat([places, rest], 1).flatten().to(torch.int32)

    def carried(self, expert_scales):
        """Return expand_scales."""
        if expert_scales is None:
            return self.slot.new_zeros(0, dtype=torch.float32)
        return taken(expert_scales.flatten(), self.slot)


def taken(values, places):
    """Take from the first axis; behind its end there are zeros."""
    end = values.new_zeros([1, *values.shape[1:]])
    return torch.cat([values, end]).index_select(0, places)


def samples_of(make):
    """Yield calls of one rank, without a group; the experts of a token differ."""
    group = ("", 1, 0)
    x = make.tensor([[1, 2], [3, 4], [5, 6]])
    ids = make.tensor([[2, 0], [1, 2], [0, 1]], dtype="int32")
    weights = make.tensor([[1, 2], [3, 4], [5, 6]], dtype="float32")
    yield Sample(
        *(x, ids, *group, 3),
        expert_scales=weights,
        expert_token_nums_type=0,
        tp_world_size=1,
        id="by_hand",
        expect=[
            [[1, 2], [5, 6], [3, 4], [5, 6], [1, 2], [3, 4]],
            [0.0] * 6,
            None,
            [2, 4, 6],
            [2, 4, 6],
            [0],
            [2.0, 5.0, 3.0, 6.0, 1.0, 4.0],
        ],
    )
    tokens, width, experts, slots = 7, 33, 6, 3
    ids = torch.stack([make.permutation(experts, "int32")[:slots] for _ in range(tokens)])
    x = make(tokens, width)
    mask = torch.arange(tokens) < 5
    yield Sample(x, ids, *group, experts, x_active_mask=mask, id="first_tokens")
    yield Sample(x, ids, *group, experts, x_active_mask=make.bools(tokens, slots), id="some_slots")
    yield Sample(x, ids % 2 + 3 * (ids // 3), *group, 8, x_active_mask=mask & False, id="none")
    ids = make.permutation(5, "int32")[:4].unsqueeze(1)
    yield Sample(make(4, 8), ids, *group, 5, global_bs=9, shared_expert_num=0, id="more_room")
    yield Sample(make(0, 4), ids[:0], *group, 5, id="no_tokens")


def quantised_samples(make):
    """Yield calls whose rows are quantised."""
    tokens, width, experts, slots = 5, 300, 4, 2
    ids = torch.stack([make.permutation(experts, "int32")[:slots] for _ in range(tokens)])
    x = make(tokens, width)
    if make.dtype == "int32":
        scales = make.uniform(tokens, dtype="float32")
        mask = torch.arange(tokens) < 4
        yield Sample(x, ids, "", 1, 0, experts, scales=scales, x_active_mask=mask, id="int4_scaled")
        return
    x[3] = 0.0
    call = (x, ids, "", 1, 0, experts)
    yield Sample(*call, quant_mode=2, id="int8")
    scales = make.uniform(experts, width, low=0.5, high=2.0, dtype="float32")
    mask = torch.arange(tokens) < 4
    yield Sample(*call, scales=scales, x_active_mask=mask, quant_mode=2, id="int8_smooth")
    given = {"scales": scales, "x_active_mask": make.bools(tokens, slots)}
    given["expert_scales"] = make.uniform(tokens, slots, dtype="float32")
    ends = {"expert_token_nums_type": 0, "global_bs": tokens + 2}
    yield Sample(*call, **given, **ends, quant_mode=2, id="int8_carried")


def refusals(op):
    """State what both versions refuse."""

    def call(make, ids=((0, 1), (2, 0)), **rest):
        given = make.tensor(ids, dtype="int32")
        return Sample(make(2, 8), given, "", 1, 0, 4, **rest)

    for name, needs_values, change, match in (
        (
            *("unknown_expert", True, lambda _: {"ids": ((0, 1), (9, 0))}),
            r"expert_ids in \[0, 4\), got 9",
        ),
        (
            *("expert_twice", True, lambda _: {"ids": ((0, 1), (2, 2))}),
            r"the experts of a token to differ, got 2 twice",
        ),
        (
            *("mask_with_gaps", True),
            lambda make: {"x_active_mask": make.tensor([False, True], dtype="bool")},
            r"x_active_mask of true for the first tokens and false for the others, "
            r"got true for token 1",
        ),
        (
            *("scales_without_quantisation", False),
            lambda make: {"scales": make(4, 8, dtype="float32")},
            r"quant_mode 2 with scales, got 0",
        ),
        ("quant_mode", False, lambda _: {"quant_mode": 1}, r"quant_mode 0 or 2, got 1"),
        (
            *("global_bs", False, lambda _: {"global_bs": 1}),
            r"global_bs of 0 or 1 times a number of tokens from 2 to \d+, got 1",
        ),
        (
            *("shared", False, lambda _: {"shared_expert_num": 2}),
            r"shared_expert_num 0 or 1 without ranks for them, got 2",
        ),
    ):
        op.errors(
            lambda make, change=change: call(make, **change(make)),
            match=f"expected {match}",
            needs_values=needs_values,
            id=name,
        )
