"""What each rank of an operator that communicates should compute, from single-rank calls alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import rank_experts
import torch
from onnxruntime_npu.opdef import Maker, Op, Sample
from op_paths import eager

Bound = Mapping[str, Any]


def _alone(op: Op, bound: Bound) -> list[torch.Tensor]:
    alone = {"hcom": "", **({"world_size": 1} if "world_size" in bound else {})}
    return eager(op, Sample.of({**bound, **alone}))


def _sum(op: Op, ranks: list[Bound]) -> torch.Tensor:
    """The ranks' terms, added in the order of ranks in float32 and rounded once."""
    terms = [_alone(op, bound)[0] for bound in ranks]
    total = terms[0].float()
    for term in terms[1:]:
        total = total + term.float()
    return total.to(terms[0].dtype)


def _all_reduce(op: Op, ranks: list[Bound], rank: int) -> list[torch.Tensor]:
    if ranks[rank]["comm_quant_scale_1"] is None:
        return [_sum(op, ranks)]
    sent, sums = (ranks[0][f"comm_quant_scale_{i}"].float() for i in (1, 2))
    terms = [_alone(op, bound)[0] for bound in ranks]
    total = sum((t.float() / sent).round().clamp(-128, 127) for t in terms)
    y = (total * sent / sums).round().clamp(-128, 127) * sums
    return [y.to(terms[0].dtype)]


def _reduce_scatter(op: Op, ranks: list[Bound], rank: int) -> list[torch.Tensor]:
    def block(bound: Bound) -> dict[str, Any]:
        """This rank's rows: the rounding of a product may depend on the number of rows."""
        divided = {name: bound[name] for name in ("self", "x1_scale") if bound[name] is not None}
        return {**bound, **{n: x.chunk(len(ranks))[rank] for n, x in divided.items()}}

    return [_sum(op, [block(bound) for bound in ranks])]


def _all_gather(op: Op, ranks: list[Bound], rank: int) -> list[torch.Tensor]:
    mine = dict(ranks[rank])
    each = [_alone(op, {**mine, "self": b["self"], "x1_scale": b["x1_scale"]}) for b in ranks]
    return [torch.cat(parts) for parts in zip(*each, strict=True)]


def _blocks(bound: Bound, rows: torch.Tensor, name: str, experts: int) -> dict[Any, torch.Tensor]:
    """Rows by (rank, expert), of a tensor ordered by rank and expert."""
    parts = rows.split(list(bound[name]))
    return {divmod(at, experts): part for at, part in enumerate(parts)}


def _all_to_all_product(op: Op, ranks: list[Bound], rank: int) -> list[torch.Tensor]:
    mine, experts = ranks[rank], len(ranks[rank]["gmm_weight"])
    sent = [_blocks(b, b["gmm_x"], "send_counts", experts) for b in ranks]
    rows = [torch.cat([s[rank, j] for s in sent]) for j in range(experts)]
    counts = [len(block) for block in rows]
    alone = {"gmm_x": torch.cat(rows), "send_counts": counts, "recv_counts": counts}
    return _alone(op, {**mine, "hcom": "", "ep_world_size": 1, **alone})


def _product_all_to_all(op: Op, ranks: list[Bound], rank: int) -> list[torch.Tensor]:
    experts = len(ranks[rank]["gmm_weight"])
    results, shared = [], []
    for bound in ranks:
        counts = [sum(bound["send_counts"][j::experts]) for j in range(experts)]
        alone = {"send_counts": counts, "recv_counts": counts, "ep_world_size": 1, "hcom": ""}
        y, *rest = _alone(op, {**bound, **alone})
        shared.append(rest)
        by_expert = iter(
            y.split(
                [
                    bound["send_counts"][r * experts + j]
                    for j in range(experts)
                    for r in range(len(ranks))
                ]
            )
        )
        results.append({(r, j): next(by_expert) for j in range(experts) for r in range(len(ranks))})
    mine = [results[r][rank, j] for r in range(len(ranks)) for j in range(experts)]
    return [torch.cat(mine), *shared[rank]]


def _sent(bound: Bound, rank: int, size: int) -> list[list[int]]:
    """How many rows each rank sends to each rank and expert: other numbers for each pair."""
    experts = len(bound["gmm_weight"])
    return [
        [(3 * r + 5 * to + 2 * j) % 4 for to in range(size) for j in range(experts)]
        for r in range(size)
    ]


def _of_experts(bound: Bound, group: str, rank: int, size: int) -> dict[str, Any]:
    experts, sent = len(bound["gmm_weight"]), _sent(bound, rank, size)
    made = Maker("float32", seed=rank)(sum(sent[rank]), bound["gmm_x"].shape[1], scale=0.2)
    received = [sent[r][rank * experts + j] for r in range(size) for j in range(experts)]
    return {
        "hcom": group,
        "ep_world_size": size,
        "gmm_x": made.to(bound["gmm_x"].dtype),
        "send_counts": sent[rank],
        "recv_counts": received,
    }


_DISPATCHES = ("npu_moe_distribute_dispatch", "npu_moe_distribute_dispatch_v2")
_COMBINATIONS = (
    "npu_moe_distribute_combine",
    "npu_moe_distribute_combine_v2",
    "npu_moe_distribute_combine_add_rms_norm",
)
# A kernel may fuse the multiplications by weights with the additions: then it rounds less often.
FUSED_SUMS = _COMBINATIONS
# These multiply no matrices: they have nothing to exchange beside.
WITHOUT_PRODUCTS = (*_DISPATCHES, *_COMBINATIONS)

EXPECTED: dict[str, Callable[[Op, list[Bound], int], list[torch.Tensor | None]]] = {
    "npu_mm_all_reduce_base": _all_reduce,
    "npu_mm_reduce_scatter_base": _reduce_scatter,
    "npu_all_gather_base_mm": _all_gather,
    "npu_alltoallv_gmm": _all_to_all_product,
    "npu_gmm_alltoallv": _product_all_to_all,
    **dict.fromkeys(_DISPATCHES, rank_experts.dispatched),
    **dict.fromkeys(_COMBINATIONS, rank_experts.combined),
}


def _of_group(bound: Bound, group: str, rank: int, size: int) -> dict[str, Any]:
    if bound.get("comm_quant_scale_1") is not None:  # the same on all ranks
        n, dtype = bound["x2"].shape[1], bound["comm_quant_scale_1"].dtype
        scales = [torch.linspace(0.02, 0.04, n).to(dtype), torch.linspace(0.05, 0.03, n).to(dtype)]
        bound = {f"comm_quant_scale_{i}": s for i, s in enumerate(scales, 1)}
        return {"hcom": group, **bound}
    return {"hcom": group, **({"world_size": size} if "world_size" in bound else {})}


def _of_divided_rows(bound: Bound, group: str, rank: int, size: int) -> dict[str, Any] | None:
    return _of_group(bound, group, rank, size) if len(bound["self"]) % size == 0 else None


# The arguments that make a single-rank call one of a group; None where the group cannot make it.
GROUP_ARGUMENTS: dict[str, Callable[[Bound, str, int, int], dict[str, Any] | None]] = {
    "npu_mm_all_reduce_base": _of_group,
    "npu_mm_reduce_scatter_base": _of_divided_rows,
    "npu_all_gather_base_mm": _of_group,
    "npu_alltoallv_gmm": _of_experts,
    "npu_gmm_alltoallv": _of_experts,
    **dict.fromkeys(_DISPATCHES, rank_experts.dispatch_arguments),
    **dict.fromkeys(_COMBINATIONS, rank_experts.combine_arguments),
}

# The axis of each tensor that has the width of the rows which travel.
TRAVELLING: dict[str, dict[str, int]] = {
    "npu_mm_all_reduce_base": {"x2": 1, "bias": 0},
    "npu_mm_reduce_scatter_base": {"x2": 1, "bias": 0},
    "npu_all_gather_base_mm": {"self": 1, "x2": 0},
    "npu_alltoallv_gmm": {"gmm_x": 1, "gmm_weight": 1},
    "npu_gmm_alltoallv": {"gmm_weight": 2},
    **{name: {"x": 1} for name in _DISPATCHES},
    **{name: {"expand_x": 1} for name in _COMBINATIONS},
    "npu_moe_distribute_combine_add_rms_norm": {"expand_x": 1, "residual_x": 2, "gamma": 0},
}
