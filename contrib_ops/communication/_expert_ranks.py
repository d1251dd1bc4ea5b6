"""What the operators share that send tokens to the experts of other ranks, and bring results back.

The experts are spread evenly over the ranks, the lowest numbers first. Shared experts, which
compute every token, may have ranks of their own: the first ones, as many for each.
"""

from __future__ import annotations

from typing import NamedTuple

from onnxruntime_npu.opdef import check, check_indices, is_traced, torch

from ..quant._integers import saturated
from ._ranks import check_group, check_unused

MOST_EXPERTS = 10240
_MOST_ROWS = 2**31 - 1
_ALGORITHMS = ("", "fullmesh", "fullmesh_v1", "fullmesh_v2", "hierarchy")

QUANTISED = 2  # the mode in which rows travel as int8

# Not even for a rank alone, whose model has no use for these operators: npu_moe_init_routing_v2 and
# npu_moe_finalize_routing, which have bodies, compute the same without room for others' rows.
SENT = "rows go to other ranks: ONNX has no operator that communicates"

# Arguments that all of them have.
GROUP = "str group_ep, int ep_world_size, int ep_rank_id, int moe_expert_num"
PLACES = (
    ' str group_tp="", int tp_world_size=0, int tp_rank_id=0, int expert_shard_type=0,'
    " int shared_expert_num=1, int shared_expert_rank_num=0,"
)
SPECIAL = " int zero_expert_num=0, int copy_expert_num=0, int const_expert_num=0"


class Experts(NamedTuple):
    """How many experts there are, and where."""

    ranks: int
    rank: int
    routed: int  # on the ranks behind those of the shared ones
    shared: int  # that have ranks of their own
    shared_ranks: int
    special: tuple[int, int, int]  # zero, copy and constant, which have no rank

    @property
    def here(self) -> int:
        """The number of this rank's experts."""
        if self.rank < self.shared_ranks:
            return 1
        return self.routed // (self.ranks - self.shared_ranks)

    @property
    def numbers(self) -> int:
        """The number of experts that a token may choose."""
        return self.routed + sum(self.special)

    def most_rows(self, op, batch, slots):
        """Return the most rows that this rank may get of ``batch`` tokens of each rank."""
        if self.rank < self.shared_ranks:
            copies = self.shared_ranks // self.shared
            rows = batch * -(-self.ranks // copies)
        else:
            rows = batch * self.ranks * min(self.here, slots)
        few = not isinstance(rows, int) or rows <= _MOST_ROWS
        check(few, f"[{op}] expected at most {_MOST_ROWS} rows for a rank, got {rows}")
        return rows


def experts_of(op, tensor, given):
    """Refuse arguments that all of these operators have and that cannot be; return the experts."""
    ranks, rank = given["ep_world_size"], given["ep_rank_id"]
    check_group(op, given["group_ep"], ranks, tensor)
    check(0 <= rank < ranks, f"[{op}] expected ep_rank_id in [0, {ranks}), got {rank}")
    shared, on = given["shared_expert_num"], given["shared_expert_rank_num"]
    check(0 <= on < ranks, f"[{op}] expected shared_expert_rank_num in [0, {ranks}), got {on}")
    if on == 0:
        check(
            shared in (0, 1),
            f"[{op}] expected shared_expert_num 0 or 1 without ranks for them, got {shared}",
        )
    else:
        check(
            shared > 0 and on % shared == 0,
            f"[{op}] expected shared_expert_num to divide the {on} ranks for them, got {shared}",
        )
    routed = given["moe_expert_num"]
    check(
        1 <= routed <= MOST_EXPERTS and routed % (ranks - on) == 0,
        f"[{op}] expected moe_expert_num from 1 to {MOST_EXPERTS} that {ranks - on} ranks divide, "
        f"got {routed}",
    )
    names = ("zero_expert_num", "copy_expert_num", "const_expert_num")
    special = tuple(given.get(name, 0) for name in names)
    for name, count in zip(names, special, strict=True):
        check(
            0 <= count <= MOST_EXPERTS,
            f"[{op}] expected {name} from 0 to {MOST_EXPERTS}, got {count}",
        )
    tp_ranks = given["tp_world_size"]
    check(tp_ranks in (0, 1), f"[{op}] expected tp_world_size 0 or 1, got {tp_ranks}")
    check_unused(op, {name: (given[name], 0) for name in ("tp_rank_id", "expert_shard_type")})
    algorithm = given.get("comm_alg", "")
    check(
        algorithm in _ALGORITHMS,
        f"[{op}] expected comm_alg '' or {', '.join(map(repr, _ALGORITHMS[1:]))}, "
        f"got '{algorithm}'",
    )
    return Experts(ranks, rank, routed, shared if on else 0, on, special)


def check_slots(op, expert_ids, mask, tokens):
    """Refuse the experts of tokens, and a mask of them, that have no such shape."""
    check(
        expert_ids.dim() == 2
        and (tokens is None or expert_ids.shape[0] == tokens)
        and expert_ids.shape[1] > 0,
        f"[{op}] expected expert_ids [{'BS' if tokens is None else tokens}, K] with K of 1 or "
        f"more, got {list(expert_ids.shape)}",
    )
    if mask is None:
        return
    shape = list(expert_ids.shape)
    check(
        list(mask.shape) in (shape[:1], shape),
        f"[{op}] expected x_active_mask {shape[:1]} or {shape}, got {list(mask.shape)}",
    )


def most_tokens(op, experts, global_bs, tokens):
    """Return the most tokens that a rank of the group has."""
    if global_bs == 0:
        return tokens
    check(
        global_bs % experts.ranks == 0 and tokens * experts.ranks <= global_bs <= _MOST_ROWS,
        f"[{op}] expected global_bs of 0 or {experts.ranks} times a number of tokens from {tokens} "
        f"to {_MOST_ROWS // experts.ranks}, got {global_bs}",
    )
    return global_bs // experts.ranks


def active_slots(op, expert_ids, mask):
    """Return the active slots of the tokens, [BS, K]; refuse a mask of tokens with gaps."""
    if mask is None:
        return torch.ones_like(expert_ids, dtype=torch.bool)
    if mask.dim() == 2:
        return mask
    if not is_traced(mask) and mask.numel():
        gaps = (~mask[:-1] & mask[1:]).nonzero()
        check(
            not len(gaps),
            f"[{op}] expected x_active_mask of true for the first tokens and false for the others, "
            f"got true for token {int(gaps[0]) + 1 if len(gaps) else 0} after false",
        )
    return mask.unsqueeze(1).expand_as(expert_ids)


class Slots(NamedTuple):
    """The slots of one rank's tokens that go to experts of this rank, which is alone."""

    order: torch.Tensor  # [BS * K], slots by expert; those that go nowhere behind the others
    counts: torch.Tensor  # [moe_expert_num] of each expert
    places: torch.Tensor  # [BS * K], of each slot among those of its expert, or -1
    active: torch.Tensor  # [BS, K]


def slots_of(op, expert_ids, mask, experts):
    """Return where the slots go; refuse experts that do not exist, and one twice in a token."""
    active = active_slots(op, expert_ids, mask)
    check_indices(expert_ids, 0, experts.numbers, f"[{op}] expected expert_ids", where=active)
    goes = active & (expert_ids >= 0) & (expert_ids < experts.routed)
    keys = torch.where(goes, expert_ids, experts.routed).to(torch.int64)
    if not is_traced(expert_ids):
        _check_distinct(op, keys, experts.routed)
    flat = keys.flatten()
    order = torch.argsort(flat, stable=True)
    numbers = torch.arange(experts.routed, device=flat.device)
    counts = (flat.unsqueeze(1) == numbers).sum(0)
    starts = torch.cat([counts.cumsum(0) - counts, counts.sum().reshape(1)])
    places = torch.argsort(order) - starts.index_select(0, flat)
    return Slots(order, counts, torch.where(flat < experts.routed, places, -1), active)


def quantised(values):
    """Return float32 rows as int8, and the scale of each."""
    scales = values.abs().amax(1) / 127.0
    return saturated(values / scales.unsqueeze(1), "int8"), scales


def _check_distinct(op, keys, routed):
    for token, chosen in enumerate(keys.tolist()):
        own = [key for key in chosen if key < routed]
        twice = next((key for i, key in enumerate(own) if key in own[:i]), None)
        check(
            twice is None,
            f"[{op}] expected the experts of a token to differ, got {twice} twice for token "
            f"{token}",
        )
