"""npu_moe_distribute_combine and its variants: arguments, results, samples and refusals."""

from onnxruntime_npu.opdef import FLOATS, Sample, all_ops, check, is_traced, npu_op, torch, wide

from ._dispatch import NOTE_WORDS, taken
from ._expert_ranks import (
    GROUP,
    PLACES,
    QUANTISED,
    SENT,
    check_slots,
    experts_of,
    most_tokens,
    quantised,
    slots_of,
)
from ._ranks import check_no_tensors, check_unused, empty

# Of other devices: refused here.
_RESERVED = {
    "activation_scale": "float32",
    "weight_scale": "float32",
    "group_list": "int64",
    "elastic_info": "int32",
    "performance_info": "int64",
}
_CONSTANTS = ("const_expert_alpha_1", "const_expert_alpha_2", "const_expert_v")
SPECIAL_TENSORS = ("ori_x", *_CONSTANTS)


def define(op, onnx, outputs, *, notes, required=(), optional, numbers):
    """Define a variant of the operator but for its reference.

    ``required`` are tensors behind those of all variants, ``optional`` those behind x_active_mask,
    ``numbers`` the last arguments.
    """
    first = ["expand_x", "expert_ids", notes, "ep_send_counts", "expert_scales", *required]
    results = ", ".join(["Tensor"] * len(outputs))
    given = dict.fromkeys(optional, FLOATS)
    given |= {name: [dtype] for name, dtype in _RESERVED.items() if name in optional}
    return npu_op(
        f"{op}({', '.join(f'Tensor {name}' for name in first)}, {GROUP}, *,"
        " Tensor? tp_send_counts=None, Tensor? x_active_mask=None,"
        f"{''.join(f' Tensor? {name}=None,' for name in optional)}{PLACES} int global_bs=0,"
        f"{numbers}) -> {f'({results})' if len(outputs) > 1 else results}",
        onnx=onnx,
        outputs=outputs,
        dtypes={
            "expand_x": FLOATS,
            **{x: ["int32"] for x in ("expert_ids", notes, "ep_send_counts", "tp_send_counts")},
            **dict.fromkeys(required, FLOATS),
            **given,
            **{x: ["float32"] for x in ("expert_scales", "expand_scales")},
            "x_active_mask": ["bool"],
            **{name: ["float32"] if name == "rstd" else FLOATS for name in outputs},
        },
        not_portable=SENT,
    )


def combined(op, given, *, notes, of_rows):
    """Return the sums of a rank that is alone, [BS, H]; with others, their shape and dtype."""
    rows, expert_ids, mask = given["expand_x"], given["expert_ids"], given["x_active_mask"]
    experts = experts_of(op, rows, given)
    mode = given["comm_quant_mode"]
    check(mode in (0, QUANTISED), f"[{op}] expected comm_quant_mode 0 or 2, got {mode}")
    check_unused(op, {name: (given.get(name, 0), 0) for name in ("out_dtype", "group_list_type")})
    check_no_tensors(op, {name: given.get(name) for name in _RESERVED})
    check(rows.dim() == 2, f"[{op}] expected expand_x [A, H], got {list(rows.shape)}")
    check_slots(op, expert_ids, mask, None)
    most_tokens(op, experts, given["global_bs"], expert_ids.shape[0])
    _check_shapes(op, given, experts, notes, of_rows)
    tokens, slots = expert_ids.shape
    if given["group_ep"]:
        return empty([tokens, rows.shape[1]], rows.dtype, rows)
    found = slots_of(op, expert_ids, mask, experts)
    if not is_traced(rows):
        _check_values(op, given, found, notes, of_rows)
    terms = _results(given, found).reshape(tokens, slots, rows.shape[1])
    terms = _with_special(given, experts, expert_ids, terms)
    weighted = terms * given["expert_scales"].unsqueeze(2)
    sums = torch.where(found.active.unsqueeze(2), weighted, torch.zeros_like(weighted)).sum(1)
    if given["shared_expert_x"] is not None:
        sums = sums + wide(given["shared_expert_x"]).reshape(sums.shape)
    return torch.where(found.active.any(1, keepdim=True), sums, torch.zeros_like(sums)).to(
        rows.dtype
    )


def check_like(op, name, tensor, dtype, shape):
    """Refuse a tensor of another type or shape."""
    check(
        tensor.dtype == dtype and list(tensor.shape) == shape,
        f"[{op}] expected {name} {dtype} {shape}, got {tensor.dtype} {list(tensor.shape)}",
    )


def _check_shapes(op, given, experts, notes, of_rows):
    rows, shape = given["expand_x"], list(given["expert_ids"].shape)
    (count, width), tokens = rows.shape, shape[0]
    carried = given["expand_scales"]
    expected = {
        notes: [count * NOTE_WORDS if of_rows else tokens * shape[1]],
        "ep_send_counts": [experts.here * experts.ranks],
        "expert_scales": shape,
        **({} if carried is None or list(carried.shape) == [0] else {"expand_scales": [count]}),
    }
    for name, wanted in expected.items():
        got = list(given[name].shape)
        check(got == wanted, f"[{op}] expected {name} {wanted}, got {got}")
    shared = given["shared_expert_x"]
    if shared is not None:
        joined = shared.dim() == 3 and shared.shape[0] * shared.shape[1] == tokens
        of_token = [*shared.shape[:2], width] if joined else [tokens, width]
        check_like(op, "shared_expert_x", shared, rows.dtype, of_token)
    _, copies, constants = experts.special
    original = given.get("ori_x")
    check(
        original is not None or copies + constants == 0,
        f"[{op}] expected ori_x with copy and constant experts, got none",
    )
    if original is not None:
        check_like(op, "ori_x", original, rows.dtype, [tokens, width])
    for name in _CONSTANTS:
        tensor = given.get(name)
        check(
            tensor is not None or constants == 0,
            f"[{op}] expected {name} with constant experts, got none",
        )
        if tensor is not None:
            check_like(op, name, tensor, rows.dtype, [constants, width])


def _check_values(op, given, found, notes, of_rows):
    rows, slots = given["expand_x"].shape[0], given["expert_ids"].shape[1]
    noted, before = given[notes].tolist(), 0
    counts = []
    for end in given["ep_send_counts"].tolist():
        check(
            before <= end <= rows,
            f"[{op}] expected ep_send_counts that rise from 0 to at most {rows}, the rows of "
            f"expand_x, got {end} after {before}",
        )
        counts.append(end - before)
        before = end
    if of_rows:
        for row, rank in enumerate(noted[: before * NOTE_WORDS : NOTE_WORDS]):
            check(
                rank == 0,
                f"[{op}] expected {notes} of the dispatch of these rows, rank 0 for row {row}, "
                f"got {rank}",
            )
    else:
        for i, (place, want) in enumerate(zip(noted, found.places.tolist(), strict=True)):
            check(
                place == want,
                f"[{op}] expected {notes} of the dispatch of these tokens, {want} for slot "
                f"{i % slots} of token {i // slots}, got {place}",
            )
    for expert, (got, want) in enumerate(zip(counts, found.counts.tolist(), strict=True)):
        check(
            got == want,
            f"[{op}] expected ep_send_counts to return {want} rows of expert {expert} of this rank "
            f"to rank 0, which has sent so many, got {got}",
        )
    for row in range(before if of_rows else 0):
        of_row = divmod(int(found.order[row]), slots)
        token, slot = noted[row * NOTE_WORDS + 1], noted[row * NOTE_WORDS + 2]
        check(
            (token, slot) == of_row,
            f"[{op}] expected expert_ids and {notes} of one dispatch, got for slot {of_row[1]} of "
            f"token {of_row[0]} the result of slot {slot} of token {token}",
        )


def _results(given, found):
    """Return the result of each slot, or zeros."""
    rows = wide(given["expand_x"])
    if given["comm_quant_mode"] == QUANTISED:
        values, scales = quantised(rows.float())
        rows = values * scales.unsqueeze(1)
    starts = found.counts.cumsum(0) - found.counts
    keys = given["expert_ids"].flatten().clamp(0, starts.shape[0] - 1)
    row = starts.index_select(0, keys) + found.places
    return taken(rows, torch.where(found.places >= 0, row, rows.shape[0]))


def _with_special(given, experts, expert_ids, terms):
    """Return the results with those of copy and constant experts."""
    zeros, copies, constants = experts.special
    kind = expert_ids - experts.routed - zeros
    if copies or constants:
        original = wide(given["ori_x"]).unsqueeze(1)
        copied = ((kind >= 0) & (kind < copies)).unsqueeze(2)
        terms = torch.where(copied, original.to(terms.dtype), terms)
    if constants:
        which = (kind - copies).clamp(0, constants - 1).flatten()
        alpha_1, alpha_2, v = (
            wide(given[name]).index_select(0, which).reshape(terms.shape) for name in _CONSTANTS
        )
        made = alpha_1 * original + alpha_2 * v
        constant = ((kind >= copies) & (kind < copies + constants)).unsqueeze(2)
        terms = torch.where(constant, made.to(terms.dtype), terms)
    return terms


def samples_of(make, *, notes, second=False, **more):
    """Yield calls of one rank, behind a dispatch.

    ``more`` are functions that make other arguments for so many tokens of so many features.
    """

    dispatch = all_ops()[f"npu_moe_distribute_dispatch{'_v2' if second else ''}"]

    def call(x, ids, experts, weights=None, **rest):
        places = {"group_ep": "", "ep_world_size": 1, "ep_rank_id": 0, "moe_expert_num": experts}
        of_dispatch = {n: v for n, v in rest.items() if n == "x_active_mask" or "_num" in n}
        bound = dispatch.bind((x, ids), {**places, **of_dispatch})
        sent = dispatch.call_reference(**bound)
        if weights is None:
            weights = make.uniform(*ids.shape, dtype="float32")
        given = {"expand_x": sent[0], "expert_ids": ids, notes: sent[2], "ep_send_counts": sent[4]}
        others = {name: made(*x.shape) for name, made in more.items()}
        return Sample.of({**given, "expert_scales": weights, **places, **others, **rest})

    x = make.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
    ids = make.tensor([[2, 0], [1, 2], [0, 1]], dtype="int32")
    weights = make.tensor([[0.5, 0.25], [1.0, 1.0], [2.0, 0.0]], dtype="float32")
    yield call(x, ids, 3, weights)
    tokens, width, experts, slots = 7, 33, 6, 3
    ids = torch.stack([make.permutation(experts, "int32")[:slots] for _ in range(tokens)])
    x = make(tokens, width)
    mask = torch.arange(tokens) < 5
    yield call(x, ids, experts, x_active_mask=mask, shared_expert_x=make(tokens, width))
    mask, joined = make.bools(tokens, slots), make(1, tokens, width)
    carried = make.uniform(tokens * slots, dtype="float32")
    given = {"shared_expert_x": joined, "expand_scales": carried}
    yield call(x, ids, experts, x_active_mask=mask, tp_send_counts=ids[0, :1], **given)
    yield call(make(tokens, 300), ids, experts, comm_quant_mode=QUANTISED)
    yield call(make(0, 4), ids[:0], experts)
    if not second:
        return
    ids = make.tensor([[2, 0, 4], [1, 3, 3], [5, 4, 1]], dtype="int32")
    special = {"zero_expert_num": 1, "copy_expert_num": 1, "const_expert_num": 2}
    tensors = {name: make(2, 5) for name in _CONSTANTS}
    yield call(make(3, 5), ids, 2, ori_x=make(3, 5), **tensors, **special)


def refusals(op, samples, *, notes, of_rows):
    """State what all variants refuse, by changes of the first sample."""

    def changed(name, change):
        def made(make):
            given = next(iter(samples(make))).kwargs
            return Sample.of({**given, name: change(make, given.get(name))})

        return made

    for name, change, match in (
        ("expert_scales", lambda make, _: make(3, 1, dtype="float32"), r"expert_scales \[3, 2\], "),
        ("comm_quant_mode", lambda make, _: 1, r"comm_quant_mode 0 or 2, got 1"),
        (
            "shared_expert_x",
            lambda make, _: make(3, 3),
            r"shared_expert_x .* \[3, 2\], got .* \[3, 3\]",
        ),
        (
            "x_active_mask",
            lambda make, _: make.bools(2, 2),
            r"x_active_mask \[3\] or \[3, 2\], got \[2, 2\]",
        ),
    ):
        op.errors(changed(name, change), match=rf"expected {match}", id=name)
    for name, change, match in (
        ("ep_send_counts", lambda _, ends: ends + 1, r"rise from 0 to at most 6, .* got 7 after 5"),
        (
            "ep_send_counts",
            lambda _, ends: ends.clamp(max=5),
            r"return 2 rows of expert 2 .* got 1",
        ),
        (
            notes,
            lambda _, words: words + 1,
            r"rank 0 for row 0, got 1" if of_rows else r"0 for slot 0 of token 0, got 1",
        ),
    ):
        op.errors(
            changed(name, change),
            match=match,
            id=f"{name}_{match.split()[1]}",
            needs_values=True,
        )
