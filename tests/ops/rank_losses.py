"""Cases of an operator that loses rank 1 in a call: stopped, late or killed, it is named."""

from __future__ import annotations

import contextlib
import datetime
import os
import re
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
from onnxruntime_npu.opdef import Op
from op_paths import NPU, eager_npu, make_model, run_session
from rank_calls import RANK, SIZE, TIMEOUT, first_call, group_name, provider_session


class Doomed:
    """An operator's calls in groups of their own, eagerly and in a session, which lose rank 1."""

    SECONDS = 4  # the groups' limit of time

    def __init__(self, op: Op, how: str) -> None:
        self.op = op
        limit, name = datetime.timedelta(seconds=self.SECONDS), f"{how} {op.name}"
        self.group = group = dist.new_group()
        mine, of_session = first_call(op, group_name(group)), first_call(op, name)
        session = provider_session(
            make_model(op, of_session, body=False),
            communication_timeout=str(self.SECONDS),
            groups=name,
        )
        self.calls = [
            lambda: run_session(session, NPU, op, of_session),
            lambda: eager_npu(op, mine),
        ]
        for call in self.calls:
            call()  # connects the ranks
        group.set_timeout(limit)

    def begin(self) -> list[threading.Thread]:
        """Make both calls in threads, and return once they wait for the other ranks.

        The group tells so of the eager call, which begins last and is told of after a tenth of a
        second. The calls may succeed: the others may have sent all they need.
        """

        def attempt(call: Callable[[], object]) -> None:
            with contextlib.suppress(Exception):
                call()

        before = self._place_of_waiting()
        threads = [threading.Thread(target=attempt, args=(call,)) for call in self.calls]
        for thread in threads:
            thread.start()
        wait_until(lambda: self._place_of_waiting() != before)
        return threads

    def _place_of_waiting(self) -> bytes:
        """Return where a rank said last that it waits in the group; empty if none has."""
        store = dist.PrefixStore("npu/", dist.distributed_c10d._world.pg_map[self.group][1])
        return store.get("hccl_waiting") if store.check(["hccl_waiting"]) else b""

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


def wait_until(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + TIMEOUT
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.02)


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
        os.kill(os.getpid(), lost)
        for thread in threads:
            thread.join()
        return
    wait_until(lambda: state_of(processes[1]) in ("T", "Z", ""))
    try:
        doomed.lose_rank_1()
        others = [f"{lost.name} {doomed.op.name} {rank}" for rank in range(SIZE) if rank != 1]
        store = dist.distributed_c10d._get_default_store()
        store.set(f"{lost.name} {doomed.op.name} {RANK}", "")
        store.wait(others)  # rank 1 would answer those that still wait for it
    finally:
        if lost == signal.SIGSTOP:
            os.kill(processes[1], signal.SIGCONT)


def a_stopped_rank_is_named(op: Op) -> None:
    lose_inside(Doomed(op, "stopped"), signal.SIGSTOP)
    dist.barrier()
    eager_npu(op, first_call(op, group_name()))


def a_late_rank_is_named(op: Op) -> None:
    doomed = Doomed(op, "late")
    dist.barrier()
    if RANK == 1:
        doomed.come_late()
    else:
        doomed.lose_rank_1()
    dist.barrier()
    eager_npu(op, first_call(op, group_name()))


def a_killed_rank_is_named(op: Op) -> None:  # the last
    lose_inside(Doomed(op, "killed"), signal.SIGKILL)


CASES = (a_stopped_rank_is_named, a_late_rank_is_named, a_killed_rank_is_named)
