"""What each rank of an operator that communicates should compute, from single-rank calls alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from onnxruntime_npu.opdef import Op, Sample
from op_paths import eager

Bound = Mapping[str, Any]


def _alone(op: Op, bound: Bound) -> list[torch.Tensor]:
    return eager(op, Sample.of(bound))


def _sum(op: Op, ranks: list[Bound]) -> torch.Tensor:
    """The ranks' terms, added in the order of ranks in float32 and rounded once."""
    terms = [_alone(op, bound)[0] for bound in ranks]
    total = terms[0].float()
    for term in terms[1:]:
        total = total + term.float()
    return total.to(terms[0].dtype)


def _all_reduce(op: Op, ranks: list[Bound], rank: int) -> list[torch.Tensor]:
    return [_sum(op, ranks)]


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


EXPECTED: dict[str, Callable[[Op, list[Bound], int], list[torch.Tensor | None]]] = {
    "npu_mm_all_reduce_base": _all_reduce,
    "npu_mm_reduce_scatter_base": _reduce_scatter,
    "npu_all_gather_base_mm": _all_gather,
}


def _of_group(bound: Bound, group: str, rank: int, size: int) -> dict[str, Any]:
    return {"hcom": group, **({"world_size": size} if "world_size" in bound else {})}


def _of_divided_rows(bound: Bound, group: str, rank: int, size: int) -> dict[str, Any] | None:
    return _of_group(bound, group, rank, size) if len(bound["self"]) % size == 0 else None


# The arguments that make a single-rank call one of a group; None where the group cannot make it.
GROUP_ARGUMENTS: dict[str, Callable[[Bound, str, int, int], dict[str, Any] | None]] = {
    "npu_mm_all_reduce_base": _of_group,
    "npu_mm_reduce_scatter_base": _of_divided_rows,
    "npu_all_gather_base_mm": _of_group,
}
