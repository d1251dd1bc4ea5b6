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
