"""Cases of calls that one rank, or all, refuse: each rank reports it, and the group goes on."""

from __future__ import annotations

import functools
import time
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from onnxruntime_npu.opdef import Op, Sample
from op_paths import NPU, bind, eager_npu, make_model, run_session
from rank_calls import (
    OPS,
    RANK,
    SIZE,
    TIMEOUT,
    compare,
    fails,
    first_call,
    group_name,
    of_ranks,
    provider_session,
)
from rank_expectations import TRAVELLING

# Attributes that no call may have.
ONLY_REFUSED = {
    "npu_mm_all_reduce_base": {"comm_turn": 1},
    "npu_all_gather_base_mm": {"comm_turn": 1},
    "npu_mm_reduce_scatter_base": {"comm_turn": 1},
    "npu_moe_distribute_dispatch": {"moe_expert_num": 1},
    "npu_moe_distribute_combine": {"moe_expert_num": 1},
}


def what_one_rank_alone_refuses_fails_on_every_rank() -> None:
    """Attributes and names of groups: the others do not wait for a call that is never made."""
    for op in OPS.values():
        mine = bind(op, first_call(op, group_name()))
        name = "hcom" if "hcom" in mine else "group_ep"
        refused = {name: "nobody"}, ONLY_REFUSED.get(op.name, {})
        for changed in filter(None, refused):
            call = Sample.of(mine | (changed if RANK == 1 else {}))
            fails(lambda op=op, call=call: eager_npu(op, call), f"[{op.name}] expected ", "got ")
        for calls, again in of_ranks(op, op.sample_dtypes[0], group_name()):
            compare(op, eager_npu(op, again), calls)  # the group is as good as before
            break


def what_the_session_of_one_rank_refuses_fails_on_every_rank() -> None:
    for op in (OPS[name] for name in ONLY_REFUSED):
        mine = bind(op, first_call(op, "world"))
        call = Sample.of(mine | (ONLY_REFUSED[op.name] if RANK == 1 else {}))
        session = provider_session(make_model(op, call, body=False))
        fails(
            lambda o=op, s=session, c=call: run_session(s, NPU, o, c),
            f"[{op.name}] expected ",
            "got ",
        )
        for calls, again in of_ranks(op, op.sample_dtypes[0], "world"):
            session = provider_session(make_model(op, again, body=False))
            compare(
                op, run_session(session, NPU, op, again), calls
            )  # the group is as good as before
            break


def a_group_that_is_none_of_several_fails_on_every_rank() -> None:
    """In whichever group the others call, eagerly and in sessions; and if nobody calls."""
    _, second = [group_name(dist.new_group()) for _ in range(2)]
    options = {"groups": "first;second"}
    for op in OPS.values():
        for group in (second, "second"):

            def run(call: Sample, op: Op = op, eagerly: bool = group == second) -> Any:
                if eagerly:
                    return eager_npu(op, call)
                session = provider_session(make_model(op, call, body=False), **options)
                return run_session(session, NPU, op, call)

            mine = bind(op, first_call(op, group))
            name = "hcom" if "hcom" in mine else "group_ep"
            stated = {"world_size", "ep_world_size"} & set(mine)
            for unknown in ("nobody", "") if stated else ("nobody",):
                for wrong in ((1,), range(SIZE)):
                    call = Sample.of(mine | ({name: unknown} if RANK in wrong else {}))
                    told = f"[{op.name}] expected the name of a group"
                    begin = time.monotonic()
                    fails(functools.partial(run, call), told)
                    assert time.monotonic() - begin < TIMEOUT
            for calls, again in of_ranks(op, op.sample_dtypes[0], group):
                compare(op, run(again), calls)  # the group is as good as before
                break


def ranks_that_disagree_fail_on_every_rank() -> None:
    x2 = torch.ones(8, 4, device="npu")
    ops, group = torch.ops.npu, group_name()

    def all_reduce(rows: int, dtype: torch.dtype = torch.float32, depth: int = 8) -> None:
        x1 = torch.ones(rows, depth, device="npu", dtype=dtype)
        ops.npu_mm_all_reduce_base(x1, x2.to(dtype), group).cpu()

    odd = RANK == 1
    same = "expected the same call on all ranks"
    fails(lambda: all_reduce(3 if odd else 2), same, "[2, 4]", "[3, 4]", "on rank 1")
    dtype = torch.float16 if odd else torch.float32
    fails(lambda: all_reduce(2, dtype), same, "float16", "float32")
    # A rank that refuses its own arguments tells the others.
    told = "expected x1 [.., M, K] and x2 [K, N], got [2, 7] and [8, 4]"
    fails(lambda: all_reduce(2, depth=7 if odd else 8), told)

    def gather(size: int = SIZE, name: str = group) -> None:
        ops.npu_all_gather_base_mm(torch.ones(2, 8, device="npu"), x2, name, size)[0].cpu()

    def mixed() -> None:
        gather() if odd else all_reduce(2)

    fails(mixed, "npu_all_gather_base_mm", "npu_mm_all_reduce_base")
    fails(lambda: gather(SIZE + 1), f"expected a world size of {SIZE}", f"got {SIZE + 1}")
    fails(lambda: gather(name="nobody"), "expected the name of a group", "got 'nobody'")
    fails(
        lambda: ops.npu_mm_reduce_scatter_base(
            torch.ones(SIZE + 1, 8, device="npu"), x2, group, SIZE
        ),
        f"rows that {SIZE} ranks divide",
    )

    def reduce_scatter(rows: int) -> None:
        ops.npu_mm_reduce_scatter_base(torch.ones(rows, 8, device="npu"), x2, group, SIZE)
        torch.npu.synchronize()

    fails(lambda: reduce_scatter(0 if odd else SIZE), same, "[0, 4]", "[1, 4]")
    blocks, experts = [1] * SIZE, torch.ones(1, 8, 4, device="npu")
    fewer = [1] * (SIZE - 1) + [0] if odd else blocks
    x = torch.ones(SIZE, 8, device="npu")
    told = f"expected rank 1 to receive from rank {SIZE - 1}, of expert 0, the 1 rows"
    fails(lambda: ops.npu_alltoallv_gmm(x, experts, group, SIZE, blocks, fewer)[0].cpu(), told)
    fails(lambda: ops.npu_gmm_alltoallv(x, experts, group, SIZE, blocks, fewer)[0].cpu(), told)
    ones = torch.ones(2, 8, device="npu")
    y = ops.npu_mm_all_reduce_base(ones, x2, group)  # the group is as good as before
    assert torch.equal(y.cpu(), torch.full((2, 4), 8.0 * SIZE))


def experts_that_do_not_fit_fail_on_every_rank() -> None:
    ops, group, odd = torch.ops.npu, group_name(), RANK == 1
    chosen = [[0, 2], [2 * SIZE - 1, 1]]  # rank 1 has expert 2

    def places(name: str = group, size: int = SIZE, rank: int = RANK) -> tuple[Any, ...]:
        return name, size, rank, 2 * size

    def dispatch(
        ids: list[list[int]] = chosen, width: int = 4, **of_group: Any
    ) -> list[torch.Tensor]:
        x = torch.full((2, width), float(RANK), device="npu")
        numbers = torch.tensor(ids, dtype=torch.int32, device="npu")
        results = ops.npu_moe_distribute_dispatch(x, numbers, *places(**of_group))
        results[0].cpu()
        return results

    def combine(shift: int = 0, notes: int = 0, **of_group: Any) -> torch.Tensor:
        numbers = torch.tensor(chosen, dtype=torch.int32, device="npu")
        ends = (sent[4] - shift).clamp(min=0)
        weights = torch.tensor([[0.25, 0.75], [0.5, 0.5]], device="npu")
        own = places(**of_group)
        return ops.npu_moe_distribute_combine(
            sent[0], numbers, sent[2] + notes, ends, weights, *own
        ).cpu()

    same = "expected the same call on all ranks"
    fails(lambda: dispatch(width=5 if odd else 4), same, "of 4 elements", "of 5 elements")
    three = [[0, 1, 2], [2, 1, 0]]
    fails(lambda: dispatch(three if odd else chosen), same, "for 2 of", "for 3 of")
    # A rank that refuses its own values tells the others.
    fails(lambda: dispatch([[0, 99], [1, 0]] if odd else chosen), "expert_ids in [0, ", "got 99")
    fails(lambda: dispatch([[0, 0], [1, 0]] if odd else chosen), "to differ, got 0 twice")
    fails(lambda: dispatch(rank=0 if odd else RANK), "expected ep_rank_id 1, ", "got 0")
    fails(lambda: dispatch(size=SIZE + 1), f"expected a world size of {SIZE}", f"got {SIZE + 1}")
    fails(lambda: dispatch(name="nobody"), "expected the name of a group", "got 'nobody'")
    sent = dispatch()
    fails(lambda: combine(shift=int(odd)), "expected ep_send_counts to return", "has sent so many")
    fails(lambda: combine(notes=int(odd)), "expected expand_idx of the dispatch of these tokens")
    fails(lambda: combine() if odd else dispatch(), same, "_combine: ", "_dispatch: ")
    assert torch.equal(combine(), torch.full((2, 4), float(RANK)))  # the group is as good as before


def wrong_arguments(op: Op, mine: dict[str, Any]) -> Iterator[tuple[dict[str, Any], str]]:
    """Yield what a rank changes of its call, and a part of the error that every rank reports."""
    size = "ep_world_size" if "ep_world_size" in mine else "world_size"
    if size in mine:
        experts = {"moe_expert_num": SIZE + 1} if "moe_expert_num" in mine else {}
        yield {size: SIZE + 1, **experts}, f"expected a world size of {SIZE}, "
    same = "expected the same call on all ranks"
    yield bind(op, first_call(op, group_name(), op.sample_dtypes[1])), same
    travelling = TRAVELLING[op.name].items()
    grown = {name: (mine[name], axis) for name, axis in travelling if mine.get(name) is not None}
    yield {n: torch.cat([x, x.narrow(axis, 0, 1)], axis) for n, (x, axis) in grown.items()}, same
    if "recv_counts" in mine:
        *others, last = mine["recv_counts"]
        yield {"recv_counts": [*others, last + 1]}, "expected rank 1 to receive from rank "
    if "ep_send_counts" in mine:
        fewer = (mine["ep_send_counts"] - 1).clamp(min=0)
        # The notes of rows tell of it before the ranks compare their counts.
        with_notes = op.name != "npu_moe_distribute_combine"
        told = (
            "of the dispatch of these rows" if with_notes else "expected ep_send_counts to return"
        )
        yield {"ep_send_counts": fewer}, told


def wrong_calls_of_each_operator_fail_on_every_rank() -> None:
    for op in OPS.values():
        mine = bind(op, first_call(op, group_name()))
        for changed, told in wrong_arguments(op, mine):
            call = Sample.of(mine | (changed if RANK == 1 else {}))
            fails(lambda op=op, call=call: eager_npu(op, call), op.name, told)
        unknown = Sample.of(mine | {"hcom" if "hcom" in mine else "group_ep": "nobody"})
        fails(lambda op=op, call=unknown: eager_npu(op, call), "of a group", "got 'nobody'")
        for calls, again in of_ranks(op, op.sample_dtypes[0], group_name()):
            compare(op, eager_npu(op, again), calls)  # the group is as good as before
            break


def sessions_refuse_what_mpi_contradicts() -> None:
    op = OPS["npu_mm_all_reduce_base"]
    model = make_model(op, first_call(op, "pair"), body=False)
    fails(lambda: provider_session(model, world_size="7"), "'world_size' expected", "got '7'")
    fails(lambda: provider_session(model, rank=str(SIZE)), f"'rank' expected {RANK}")
    fails(lambda: provider_session(model, groups="a=0,9"), "'groups' expected ranks", "got 9")
    provider_session(model, rank=str(RANK), world_size=str(SIZE), groups="world;pair=1,0")
    pair = first_call(op, "pair")
    if RANK < 2:
        y = run_session(provider_session(model, groups="pair=1,0"), NPU, op, pair)
        compare(op, y, [first_call(op, "")] * 2)


CASES = (
    what_one_rank_alone_refuses_fails_on_every_rank,
    what_the_session_of_one_rank_refuses_fails_on_every_rank,
    a_group_that_is_none_of_several_fails_on_every_rank,
    ranks_that_disagree_fail_on_every_rank,
    experts_that_do_not_fit_fail_on_every_rank,
    wrong_calls_of_each_operator_fail_on_every_rank,
    sessions_refuse_what_mpi_contradicts,
)
