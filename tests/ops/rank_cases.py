"""What each rank of test_ranks.py does; writes the outcome of each case as JSON.

Run by ``mpiexec -n N python rank_cases.py FOLDER OPERATOR [CASE...]``: eager calls exchange data
over torch's group "hccl", sessions over MPI. The operator is the one in which a rank is lost. Each
rank makes the samples of all ranks and computes what is expected of it without communication.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import re
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import onnxruntime as ort
import onnxruntime_npu
import torch
import torch.distributed as dist
from onnxruntime_npu.opdef import Maker, Op, Sample, all_ops
from op_paths import (
    NPU,
    bind,
    eager,
    eager_npu,
    fake_call,
    make_model,
    run_session,
)
from rank_expectations import (
    EXPECTED,
    FUSED_SUMS,
    GROUP_ARGUMENTS,
    TRAVELLING,
    WITHOUT_PRODUCTS,
)

RANK, SIZE = int(os.environ["PMI_RANK"]), int(os.environ["PMI_SIZE"])
CASES: dict[str, Callable[[], None]] = {}
OPS = {name: all_ops()[name] for name in EXPECTED}
LOSING = OPS[sys.argv[2]]  # in which a rank is stopped, late or killed
# Attributes that no call may have.
ONLY_REFUSED = {
    "npu_mm_all_reduce_base": {"comm_turn": 1},
    "npu_all_gather_base_mm": {"comm_turn": 1},
    "npu_mm_reduce_scatter_base": {"comm_turn": 1},
    "npu_moe_distribute_dispatch": {"moe_expert_num": 1},
    "npu_moe_distribute_combine": {"moe_expert_num": 1},
}
TIMEOUT = 60  # seconds; ranks share two cores with whatever else runs


def case(function: Callable[[], None]) -> Callable[[], None]:
    CASES[function.__name__] = function
    return function


def group_name(group: dist.ProcessGroup | None = None) -> str:
    group = group or dist.distributed_c10d._get_default_group()
    return group._get_backend(torch.device("npu")).get_hccl_comm_name(dist.get_rank(group))


def of_ranks(op: Op, dtype: str, group: str) -> Iterator[tuple[list[Sample], Sample]]:
    """Yield every sample call of all ranks, and this rank's with the group."""
    makers = [op.sample_function(Maker(dtype, seed=rank)) for rank in range(SIZE)]
    for alone in zip(*makers, strict=True):
        calls = []
        for rank, sample in enumerate(alone):
            bound = bind(op, sample)
            of_group = GROUP_ARGUMENTS[op.name](bound, group, rank, SIZE)
            calls.append(None if of_group is None else Sample.of(bound | of_group))
        if calls[RANK] is not None:
            yield calls, calls[RANK]


def compare(op: Op, got: list[torch.Tensor], calls: list[Sample], atol: float = 0.0) -> None:
    """Compare with what the ranks compute alone, bit for bit but for sums of products."""
    expected = EXPECTED[op.name](op, [bind(op, sample) for sample in calls], RANK)
    for name, mine, want in zip((o.name for o in op.outputs), got, expected, strict=True):
        if want is None:
            continue
        assert mine.dtype == want.dtype and mine.shape == want.shape, (op.name, name, mine, want)
        rtol = 0.0
        if op.name in FUSED_SUMS:
            tolerance = op.tolerance_for(str(want.dtype).removeprefix("torch."))
            rtol, atol = tolerance.rtol, tolerance.atol
        torch.testing.assert_close(
            mine, want, rtol=rtol, atol=atol, msg=f"{op.name}.{name}: {want}"
        )


def provider_session(model: Any, **options: str) -> ort.InferenceSession:
    settings = {"communicator": "mpi", "communication_timeout": str(TIMEOUT), **options}
    made = ort.SessionOptions()
    made.log_severity_level = 3
    made.intra_op_num_threads = 1
    return ort.InferenceSession(model.SerializeToString(), made, providers=[(NPU, settings)])


def fails(call: Callable[[], object], *parts: str) -> None:
    try:
        call()
    except Exception as error:
        assert all(part in str(error) for part in parts), str(error)
    else:
        raise AssertionError(f"expected an error with {parts}")


def first_call(op: Op, group: str, dtype: str = "") -> Sample:
    return next(mine for _, mine in of_ranks(op, dtype or op.sample_dtypes[0], group))


@case
def what_one_rank_alone_refuses_fails_on_every_rank() -> None:
    """Attributes and names of groups: the others do not wait for a call that is never made.

    The first case: this process has one group only, which a wrong name must mean.
    """
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


@case
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


@case
def eager_calls_equal_those_of_one_rank() -> None:
    for op in OPS.values():
        for i, dtype in enumerate(op.sample_dtypes):
            for calls, mine in of_ranks(op, dtype, group_name()):
                got = eager_npu(op, mine)
                compare(op, got, calls)
                if i == 0:
                    compare(op, eager(op, mine), calls)
                    fakes = [(tuple(f.shape), f.dtype) for f in fake_call(op, mine)]
                    assert fakes == [(tuple(g.shape), g.dtype) for g in got], op.name


@case
def sessions_equal_calls_of_one_rank() -> None:
    for op in OPS.values():
        for dtype in op.sample_dtypes:
            for calls, mine in of_ranks(op, dtype, "world"):
                session = provider_session(make_model(op, mine, body=False))
                compare(op, run_session(session, NPU, op, mine), calls)


@case
def many_pieces() -> None:
    """So many rows that each exchange runs beside the next product."""
    ranks = [Maker("float32", seed=rank) for rank in range(SIZE)]
    shapes = [(make(2048, 512), make(512, 1024, scale=0.04)) for make in ranks]
    for name in ("npu_mm_all_reduce_base", "npu_mm_reduce_scatter_base", "npu_all_gather_base_mm"):
        op = OPS[name]
        world = () if name == "npu_mm_all_reduce_base" else (1,)
        alone = [Sample(x1, x2, "", *world) for x1, x2 in shapes]
        mine = bind(op, alone[RANK])
        mine |= GROUP_ARGUMENTS[name](mine, group_name(), RANK, SIZE)
        # The sums of a product depend on the number of its rows: values near 1, of float32.
        compare(op, eager_npu(op, Sample.of(mine)), alone, atol=1e-5)
    experts = 2
    counts = [
        [400 + 60 * ((rank + 2 * to + j) % 3) for to in range(SIZE) for j in range(experts)]
        for rank in range(SIZE)
    ]
    calls = []
    for rank, make in enumerate(ranks):
        received = [sent[rank * experts + j] for sent in counts for j in range(experts)]
        x, weight = make(sum(counts[rank]), 512), make(experts, 512, 1024, scale=0.04)
        calls.append(Sample(x, weight, group_name(), SIZE, counts[rank], received))
    for name in ("npu_alltoallv_gmm", "npu_gmm_alltoallv"):
        compare(OPS[name], eager_npu(OPS[name], calls[RANK]), calls, atol=1e-5)


def large_call(op: Op, group: str) -> Sample:
    """Return a call of this rank that is cut into pieces, whose products take milliseconds."""
    make = Maker("float32", seed=RANK)
    experts = 4
    if "gmm_weight" in bind(op, next(op.sample_function(make))):
        rows = [256] * (SIZE * experts)
        x = make(sum(rows), 2048)
        return Sample(x, make(experts, 2048, 1024, scale=0.02), group, SIZE, rows, rows)
    world = () if op.name == "npu_mm_all_reduce_base" else (SIZE,)
    return Sample(make(2048, 2048), make(2048, 1024, scale=0.02), group, *world)


def spans(call: Callable[[], object], folder: Path) -> dict[str, list[tuple[float, float]]]:
    """Return when the parts of the launches ran, by their names in torch's profile."""
    call()  # connects the ranks and packs weights
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.PrivateUse1]
    with torch.profiler.profile(activities=activities) as profile:
        dist.barrier()  # a profile may begin a second later on one rank than on another
        call()
    path = folder / f"profile{RANK}.json"
    profile.export_chrome_trace(str(path))
    found: dict[str, list[tuple[float, float]]] = {"exchange": [], "product": []}
    for event in json.loads(path.read_text())["traceEvents"]:
        if event["name"] in found and event.get("ph") == "X":
            found[event["name"]].append((event["ts"], event["ts"] + event["dur"]))
    return {name: sorted(times) for name, times in found.items()}


@case
def a_profile_shows_exchanges_beside_products() -> None:
    """Of each operator of products, eagerly and in sessions; how much is for the benchmark."""
    with tempfile.TemporaryDirectory() as folder:
        for op in (op for name, op in OPS.items() if name not in WITHOUT_PRODUCTS):
            mine, of_world = large_call(op, group_name()), large_call(op, "world")
            session = provider_session(make_model(op, of_world, body=False))
            calls = {
                "eager": lambda op=op, mine=mine: eager_npu(op, mine),
                "session": lambda op=op, s=session, m=of_world: run_session(s, NPU, op, m),
            }
            for path, call in calls.items():
                seen = spans(call, Path(folder))
                # The first exchange is the ranks' agreement on the call.
                exchanges, products = seen["exchange"][1:], seen["product"]
                assert len(exchanges) >= 4 and len(products) >= 4, (op.name, path, seen)
                beside = [
                    begin < product_end and product_begin < end
                    for begin, end in exchanges
                    for product_begin, product_end in products
                ]
                assert any(beside), (op.name, path, seen)


@case
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
    blocks, experts = [1] * SIZE, torch.ones(1, 8, 4, device="npu")
    fewer = [1] * (SIZE - 1) + [0] if odd else blocks
    x = torch.ones(SIZE, 8, device="npu")
    told = f"expected rank 1 to receive from rank {SIZE - 1}, of expert 0, the 1 rows"
    fails(lambda: ops.npu_alltoallv_gmm(x, experts, group, SIZE, blocks, fewer)[0].cpu(), told)
    fails(lambda: ops.npu_gmm_alltoallv(x, experts, group, SIZE, blocks, fewer)[0].cpu(), told)
    ones = torch.ones(2, 8, device="npu")
    y = ops.npu_mm_all_reduce_base(ones, x2, group)  # the group is as good as before
    assert torch.equal(y.cpu(), torch.full((2, 4), 8.0 * SIZE))


@case
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


@case
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


@case
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


class Doomed:
    """An operator's calls in groups of their own, eagerly and in a session, which lose rank 1."""

    SECONDS = 4  # the groups' limit of time

    def __init__(self, op: Op, how: str) -> None:
        self.op = op
        limit, name = datetime.timedelta(seconds=self.SECONDS), f"{how} {op.name}"
        group = dist.new_group()
        mine, of_session = first_call(op, group_name(group)), first_call(op, name)
        session = provider_session(
            make_model(op, of_session, body=False),
            communication_timeout=str(self.SECONDS),
            groups=name,
        )
        self.calls = [
            lambda: eager_npu(op, mine),
            lambda: run_session(session, NPU, op, of_session),
        ]
        for call in self.calls:
            call()  # connects the ranks
        group.set_timeout(limit)

    def begin(self) -> list[threading.Thread]:
        """Make both calls in threads. They may succeed: the others may have sent all they need."""

        def attempt(call: Callable[[], object]) -> None:
            with contextlib.suppress(Exception):
                call()

        threads = [threading.Thread(target=attempt, args=(call,)) for call in self.calls]
        for thread in threads:
            thread.start()
        return threads

    def _fails(self, call: Callable[[], object], reason: str = "") -> None:
        try:
            call()
        except Exception as error:
            told = str(error)
            assert f"[{self.op.name}] on rank {RANK} of {SIZE}" in told, told
            assert re.search(reason, told), told
        else:
            raise AssertionError(f"expected an error of {self.op.name}")

    def lose_rank_1(self) -> None:
        """Make both calls without it: errors name it, and no rank that waits for it as this one.

        The process, its device and other groups go on.
        """
        for call in self.calls:
            self._fails(call, "no report of it from rank 1, which ended|; rank 1 was late")
            self._fails(call, "an earlier operator failed")
        y = torch.ones(2, device="npu") + 1
        assert torch.equal(y.cpu(), torch.full((2,), 2.0))

    def come_late(self) -> None:
        for call in self.calls:
            time.sleep(self.SECONDS + 1)
            self._fails(call)


def state_of(process: int) -> str:
    """Return Linux' letter for the state of a process; none of one that has ended."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""


def lose_inside(doomed: Doomed, lost: signal.Signals) -> None:
    """Let rank 1 get a signal while it is in both calls, and the others make them then."""
    processes: list[int] = [0] * SIZE
    dist.all_gather_object(processes, os.getpid())
    if RANK == 1:
        threads = doomed.begin()
        time.sleep(0.5)  # by then it has told the others of its calls, and waits for them
        os.kill(os.getpid(), lost)
        for thread in threads:
            thread.join()
        return
    end = time.monotonic() + TIMEOUT
    while state_of(processes[1]) not in ("T", "Z", ""):
        assert time.monotonic() < end
        time.sleep(0.05)
    try:
        doomed.lose_rank_1()
        others = [f"{lost.name} {doomed.op.name} {rank}" for rank in range(SIZE) if rank != 1]
        store = dist.distributed_c10d._get_default_store()
        store.set(f"{lost.name} {doomed.op.name} {RANK}", "")
        store.wait(others)  # rank 1 would answer those that still wait for it
    finally:
        if lost == signal.SIGSTOP:
            os.kill(processes[1], signal.SIGCONT)


@case
def a_stopped_rank_is_named() -> None:
    lose_inside(Doomed(LOSING, "stopped"), signal.SIGSTOP)
    dist.barrier()
    eager_npu(LOSING, first_call(LOSING, group_name()))


@case
def a_late_rank_is_named() -> None:
    doomed = Doomed(LOSING, "late")
    dist.barrier()
    if RANK == 1:
        doomed.come_late()
    else:
        doomed.lose_rank_1()
    dist.barrier()
    eager_npu(LOSING, first_call(LOSING, group_name()))


@case
def a_killed_rank_is_named() -> None:  # the last
    lose_inside(Doomed(LOSING, "killed"), signal.SIGKILL)


def tell(outcomes: Path, name: str, function: Callable[[], None]) -> None:
    try:
        function()
        outcome = ""
    except Exception:
        outcome = traceback.format_exc()
    with outcomes.open("a") as file:
        file.write(json.dumps({"case": name, "rank": RANK, "outcome": outcome}) + "\n")


def main(folder: Path, names: list[str]) -> None:
    onnxruntime_npu.torch_device.register()
    timeout = datetime.timedelta(seconds=TIMEOUT)
    store = f"file://{folder / 'store'}"
    dist.init_process_group("hccl", init_method=store, rank=RANK, world_size=SIZE, timeout=timeout)
    for name in names or CASES:
        tell(folder / f"rank{RANK}", name, CASES[name])
    os._exit(0)  # without a farewell to the groups: some are lost


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[3:])
