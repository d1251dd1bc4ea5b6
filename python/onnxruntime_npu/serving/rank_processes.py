"""The ranks of a served model, as the process that leads them sees them."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import numpy as np

from ..generation.ranks import launcher
from .child_process import Failed, end

_LOOK_SECONDS = 1.0  # between looks whether the launcher has ended before all ranks are there


class RanksError(RuntimeError):
    """The ranks cannot go on."""


@dataclass(frozen=True)
class _Rank:
    connection: Connection
    process: int
    handle: int  # the process's id may be another one's, once it has ended


class RankProcesses:
    """Processes that open their parts of a model and make each step together.

    Used by one thread; whoever made them closes them.

    Attributes:
        block_size: tokens of a block, once they are open.
        vocabulary: number of logits, once they are open.
    """

    block_size: int
    vocabulary: int

    def __init__(self, directory: Path, ranks: int, provider: str, device: int) -> None:
        """Start the ranks of a directory; RanksError if they do not start."""
        self._count = ranks
        self._ranks: dict[int, _Rank] = {}
        self._first_ended: int | None = None
        with (
            tempfile.TemporaryDirectory(prefix="npu_ranks") as folder,
            socket.socket(socket.AF_UNIX) as listening,
        ):
            path = str(Path(folder) / "socket")
            listening.bind(path)
            listening.listen(ranks)
            module = f"{__package__}.rank_process"
            arguments = [path, str(directory), provider, str(device)]
            self._launcher = subprocess.Popen(
                [*launcher(ranks), sys.executable, "-m", module, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=sys.stderr.fileno(),  # the launcher's, of ranks that have ended
                start_new_session=True,  # Ctrl-C is for the server, which lets requests end
            )
            try:
                self._accept(listening)
            except BaseException:
                self.close()
                raise

    @property
    def processes(self) -> list[int]:
        """Their ids."""
        return [rank.process for rank in self._ranks.values()]

    def open(self, blocks: int) -> RankProcesses:
        """Let every rank open its part, with a cache of so many blocks; raises RanksError."""
        self.block_size, self.vocabulary = self._each(blocks)
        return self

    def step(
        self,
        new: Sequence[np.ndarray],
        past: np.ndarray,
        table: np.ndarray,
        wanted: np.ndarray,
        adapter: str | None = None,
    ) -> np.ndarray:
        """Add tokens to rows on every rank, as ``PagedCache.step``; raises RanksError."""
        assert adapter is None, "a model that is divided among ranks has no adapters"
        return self._each((new, past, table, wanted))

    def forget(self, block: int) -> None:
        """Do nothing: a model that is divided among ranks keeps no states."""

    def watch(self, on_end: Callable[[], None]) -> None:
        """Call a function, in a thread, when the first rank has ended."""

        def run() -> None:
            ended = wait(rank.handle for rank in self._ranks.values())
            self._first_ended = next(n for n, rank in self._ranks.items() if rank.handle in ended)
            on_end()

        threading.Thread(target=run, name="ranks", daemon=True).start()

    def check(self) -> None:
        """Raise RanksError if a rank is known to have ended."""
        if self._first_ended is not None:
            raise RanksError(f"rank {self._first_ended} of {self._count} ended")

    def close(self) -> None:
        """End the ranks: they leave when the connections are closed, or are killed."""
        for rank in self._ranks.values():
            rank.connection.close()
        end(self._launcher)
        for rank in self._ranks.values():  # one that stands still, for example
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(rank.handle, signal.SIGKILL)

    def _accept(self, listening: socket.socket) -> None:
        listening.settimeout(_LOOK_SECONDS)
        while len(self._ranks) < self._count:
            try:
                accepted, _ = listening.accept()
            except TimeoutError:
                if (code := self._launcher.poll()) is not None:
                    raise RanksError(f"the ranks do not start: code {code}") from None
                continue
            accepted.setblocking(True)
            connection = Connection(accepted.detach())
            try:
                rank, process = connection.recv()
                self._ranks[rank] = _Rank(connection, process, os.pidfd_open(process))
            except (EOFError, OSError):
                raise RanksError("a rank ended at its start") from None

    def _each(self, message: Any) -> Any:
        """Send to every rank and wait for all; return the answer of the first."""
        for rank in self._ranks.values():
            with contextlib.suppress(OSError):  # one that ended is noticed below
                rank.connection.send(message)
        answers: dict[int, Any] = {}
        while len(answers) < self._count:
            ready = wait(r.connection for n, r in self._ranks.items() if n not in answers)
            for number, rank in self._ranks.items():
                if rank.connection in ready:
                    answers[number] = self._answer(number, rank)
        return answers[0]

    def _answer(self, number: int, rank: _Rank) -> Any:
        try:
            answer = rank.connection.recv()
        except (EOFError, OSError):
            raise RanksError(f"rank {number} of {self._count} ended") from None
        if isinstance(answer, Failed):
            raise RanksError(answer.reason)
        return answer
