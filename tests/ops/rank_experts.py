"""What ranks with experts should exchange, told row by row from the tokens of all ranks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import torch
from onnxruntime_npu.opdef import Maker, Op

Bound = Mapping[str, Any]
NOTE_WORDS = 128


class Row(NamedTuple):
    """A row that a rank gets: where it comes from, for which of its experts; slot -1: shared."""

    source: int
    token: int
    slot: int
    expert: int


class Tokens(NamedTuple):
    """The experts that the tokens of a rank have chosen, and which of them count."""

    ids: list[list[int]]
    active: list[list[bool]]


def _tokens(bound: Bound) -> Tokens:
    ids, mask = bound["expert_ids"], bound["x_active_mask"]
    if mask is None:
        mask = torch.ones_like(ids, dtype=torch.bool)
    if mask.dim() == 1:
        mask = mask[:, None].repeat(1, ids.shape[1])
    return Tokens(ids.tolist(), mask.tolist())


def _rows_of(bound: Bound, tokens: list[Tokens], rank: int) -> list[Row]:
    """Return what a rank gets, by expert, then by rank, then by token."""
    size, shared_ranks = bound["ep_world_size"], bound["shared_expert_rank_num"]
    if rank < shared_ranks:
        copies = shared_ranks // bound["shared_expert_num"]
        return [
            Row(source, token, -1, 0)
            for source, given in enumerate(tokens)
            if source % copies == rank % copies
            for token, active in enumerate(given.active)
            if any(active)
        ]
    each = bound["moe_expert_num"] // (size - shared_ranks)
    first = (rank - shared_ranks) * each
    return [
        Row(source, token, slot, expert)
        for expert in range(each)
        for source, given in enumerate(tokens)
        for token, chosen in enumerate(given.ids)
        for slot, number in enumerate(chosen)
        if given.active[token][slot] and number == first + expert
    ]


def _room(bound: Bound, rank: int) -> int:
    size, (tokens, slots) = bound["ep_world_size"], bound["expert_ids"].shape
    shared_ranks, batch = bound["shared_expert_rank_num"], bound["global_bs"] or tokens * size
    if rank < shared_ranks:
        copies = shared_ranks // bound["shared_expert_num"]
        return batch // size * -(-size // copies)
    return batch * min(bound["moe_expert_num"] // (size - shared_ranks), slots)


def _ends(bound: Bound, rows: list[Row], rank: int) -> list[int]:
    size, shared_ranks = bound["ep_world_size"], bound["shared_expert_rank_num"]
    here = 1 if rank < shared_ranks else bound["moe_expert_num"] // (size - shared_ranks)
    pairs = [(expert, source) for expert in range(here) for source in range(size)]
    return [sum((row.expert, row.source) <= pair for row in rows) for pair in pairs]


def _notes(rows: list[Row], room: int) -> torch.Tensor:
    notes = torch.zeros(room, NOTE_WORDS, dtype=torch.int32)
    for i, row in enumerate(rows):
        notes[i, :3] = torch.tensor([row.source, row.token, row.slot])
    return notes.flatten()


def _places(tokens: Tokens, routed: int) -> torch.Tensor:
    """Return the places of a rank's slots among those that it sends to the same expert."""
    sent: dict[int, int] = {}
    places = []
    for chosen, active in zip(*tokens, strict=True):
        for number, counts in zip(chosen, active, strict=True):
            goes = counts and number < routed
            places.append(sent.get(number, 0) if goes else -1)
            if goes:
                sent[number] = sent.get(number, 0) + 1
    return torch.tensor(places, dtype=torch.int32)


def _quantised(values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    scale = values.abs().max() / 127
    return (values / scale).round().nan_to_num(0).clamp(-128, 127), scale


def dispatched(op: Op, ranks: list[Bound], rank: int) -> list[torch.Tensor]:
    """Return the results of a dispatch."""
    mine, tokens = ranks[rank], [_tokens(bound) for bound in ranks]
    rows, room = _rows_of(mine, tokens, rank), _room(mine, rank)
    quantised, carries = mine["quant_mode"] == 2, mine["expert_scales"] is not None
    width, own = mine["x"].shape[1], mine["x"].dtype
    expand_x = torch.zeros(room, width, dtype=torch.int8 if quantised else own)
    scales, weights = torch.zeros(room), torch.zeros(room if carries else 0)
    shared = mine["shared_expert_num"] if mine["shared_expert_rank_num"] else 0
    for i, row in enumerate(rows):
        sender = ranks[row.source]
        values = sender["x"][row.token]
        if quantised:
            values = values.float()
            if sender["scales"] is not None:
                number = tokens[row.source].ids[row.token][row.slot] + shared
                if row.slot < 0:
                    number = rank // (mine["shared_expert_rank_num"] // shared)
                values = values * sender["scales"][number]
            values, scales[i] = _quantised(values)
        elif sender["scales"] is not None:
            scales[i] = sender["scales"][row.token]
        expand_x[i] = values.to(expand_x.dtype)
        if carries:
            weights[i] = 1 if row.slot < 0 else sender["expert_scales"][row.token, row.slot]
    ends = _ends(mine, rows, rank)
    until = ends[mine["ep_world_size"] - 1 :: mine["ep_world_size"]]
    counts = [end - start for start, end in zip([0, *until], until, strict=False)]
    second = op.name.endswith("_v2")
    return [
        expand_x,
        scales,
        _notes(rows, room) if second else _places(tokens[rank], mine["moe_expert_num"]),
        torch.tensor(counts if mine["expert_token_nums_type"] else until),
        torch.tensor(ends, dtype=torch.int32),
        torch.zeros(mine["tp_world_size"], dtype=torch.int32),
        weights,
    ]


def _results(ranks: list[Bound], rank: int) -> Iterator[tuple[int, int, torch.Tensor]]:
    """Yield the results for this rank's tokens, of each its token and slot."""
    tokens = [_tokens(bound) for bound in ranks]
    for other, bound in enumerate(ranks):
        for i, row in enumerate(_rows_of(bound, tokens, other)):
            if row.source != rank:
                continue
            values = bound["expand_x"][i].float()
            if bound["comm_quant_mode"] == 2:
                values, scale = _quantised(values)
                values = values * scale
            yield row.token, row.slot, values


def combined(op: Op, ranks: list[Bound], rank: int) -> list[torch.Tensor]:
    """Return the sums of a combination, normalised for the operator that does."""
    mine = ranks[rank]
    ids, active = _tokens(mine)
    x = torch.zeros(len(ids), mine["expand_x"].shape[1])
    for token, slot, values in _results(ranks, rank):
        x[token] += values if slot < 0 else values * mine["expert_scales"][token, slot]
    special = [mine.get(f"{name}_expert_num", 0) for name in ("zero", "copy", "const")]
    for token, (chosen, counts) in enumerate(zip(ids, active, strict=True)):
        for slot, number in enumerate(chosen):
            kind = number - mine["moe_expert_num"] - special[0]
            if not counts[slot] or kind < 0:
                continue
            values = mine["ori_x"][token].float()
            if kind >= special[1]:
                names = ("alpha_1", "alpha_2", "v")
                a, b, v = (mine[f"const_expert_{n}"][kind - special[1]].float() for n in names)
                values = a * values + b * v
            x[token] += values * mine["expert_scales"][token, slot]
        if mine["shared_expert_x"] is not None and any(counts):
            x[token] += mine["shared_expert_x"].reshape(x.shape)[token].float()
    x = x.to(mine["expand_x"].dtype)
    if "residual_x" not in mine:
        return [x]
    x = x[:, None] + mine["residual_x"]
    rstd = (x.float().pow(2).mean(2, keepdim=True) + mine["norm_eps"]).rsqrt()
    return [(x.float() * rstd * mine["gamma"].float()).to(x.dtype), rstd, x]


def _among(bound: Bound, group: str, rank: int, size: int) -> dict[str, Any]:
    """Return the arguments of a group, which has as many experts as the ranks divide."""
    mask = bound["x_active_mask"]
    shared_ranks = size // 2 if mask is not None and mask.dim() == 1 else 0
    # One shared expert with a copy on each of its ranks, or one for each of these ranks.
    several = bound.get("scales") is not None or "ori_x" in bound
    routed = bound["moe_expert_num"]
    more = -routed % (size - shared_ranks)
    ids = torch.where(bound["expert_ids"] < routed, 0, more) + bound["expert_ids"]
    return {
        "group_ep": group,
        "ep_world_size": size,
        "ep_rank_id": rank,
        "moe_expert_num": routed + more,
        "shared_expert_rank_num": shared_ranks,
        "shared_expert_num": shared_ranks
        if several and shared_ranks
        else bound["shared_expert_num"],
        "expert_ids": ids.to(torch.int32),
    }


def dispatch_arguments(bound: Bound, group: str, rank: int, size: int) -> dict[str, Any]:
    """Return the arguments that make a dispatch of one rank one of a group."""
    given = _among(bound, group, rank, size)
    if bound["scales"] is not None and bound["quant_mode"]:
        shared = given["shared_expert_num"] if given["shared_expert_rank_num"] else 0
        rows = given["moe_expert_num"] + shared
        numbers = torch.arange(rows) % len(bound["scales"])
        given["scales"] = bound["scales"][numbers]
    if bound["global_bs"]:  # the ranks have different numbers of tokens
        tokens = len(bound["x"]) - rank % 2
        of_tokens = {name: bound[name] for name in ("x", "x_active_mask", "expert_scales")}
        of_tokens["expert_ids"] = given["expert_ids"]
        given |= {name: t[:tokens] for name, t in of_tokens.items() if t is not None}
        given["global_bs"] = bound["global_bs"] * size
    return given


def combine_arguments(bound: Bound, group: str, rank: int, size: int) -> dict[str, Any]:
    """Return the arguments that make a combination of one rank one of a group."""
    second = "assist_info_for_combine" in bound or "residual_x" in bound
    name = "assist_info_for_combine" if "assist_info_for_combine" in bound else "expand_idx"
    given = _among(bound, group, rank, size)
    shape, numbers = bound["expert_ids"].shape, given["moe_expert_num"]
    numbers += sum(bound.get(f"{n}_expert_num", 0) for n in ("zero", "copy", "const"))
    tokens = []
    for other in range(size):  # every rank knows what the others have chosen
        make = Maker("float32", seed=other)
        ids = [make.permutation(numbers, "int32")[: shape[1]] for _ in range(shape[0])]
        mask = bound["x_active_mask"]
        if mask is not None and mask.dim() == 2:
            mask = make.bools(*shape)
        chosen = {"expert_ids": torch.stack(ids) if ids else bound["expert_ids"]}
        tokens.append((chosen, mask))
    given |= tokens[rank][0] | {"x_active_mask": tokens[rank][1]}
    mine = {**bound, **given}
    all_tokens = [_tokens({**ids, "x_active_mask": mask}) for ids, mask in tokens]
    rows, room = _rows_of(mine, all_tokens, rank), _room(mine, rank)
    values = Maker("float32", seed=rank)(room, bound["expand_x"].shape[1])
    given["expand_x"] = values.to(bound["expand_x"].dtype)
    routed = mine["moe_expert_num"]
    given[name] = _notes(rows, room) if second else _places(all_tokens[rank], routed)
    given["ep_send_counts"] = torch.tensor(_ends(mine, rows, rank), dtype=torch.int32)
    if bound["expand_scales"] is not None:
        given["expand_scales"] = torch.ones(room)
    return given
