"""Grammars of requests, read by a process of their own before the engine has to."""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from pathlib import Path
from typing import Any

from .api_errors import bad_request, deadline_exceeded
from .child_connection import ChildConnection
from .engine_messages import Guidance
from .response_format import told_refusal

_LOG = logging.getLogger("onnxruntime_npu.serving")
_MODULE = "onnxruntime_npu.serving.grammar_process"
_TOO_COMPLEX = "too complex: expected one that is ready within a second and a gigabyte"
_KEPT = 64  # grammars whose answer is remembered
_MOST_STARTS = 3  # without one that is ready: of a machine without memory, for example


class GrammarChecks:
    """Refuses what is no grammar, or too complex. All on the event loop.

    The process is started by the first grammar, and again after one that has ended it. For a
    tokenizer that it cannot read nothing is checked.
    """

    def __init__(self, directory: Path) -> None:
        """Check for the model in a directory."""
        self._directory = directory
        self._known: OrderedDict[Guidance, str] = OrderedDict()
        self._turn = asyncio.Lock()
        self._connection: ChildConnection | None = None
        self._ended: asyncio.Task[int] | None = None
        self._answers: asyncio.Queue[Any] = asyncio.Queue()
        self._possible = True
        self._failed_starts = 0

    async def check(self, guidance: Guidance, deadline: float) -> None:
        """Raise a 400 for what cannot be followed, 504 if that is not known in time."""
        # It goes on when the client goes away: its answer would be taken for the next one's.
        asking = asyncio.create_task(self._reason(guidance))
        try:
            reason = await asyncio.wait_for(asyncio.shield(asking), deadline)
        except asyncio.TimeoutError:
            raise deadline_exceeded(deadline) from None
        if reason:
            raise bad_request(told_refusal(reason), param=guidance.param)

    async def stop(self) -> None:
        """End the process; a later grammar starts it again."""
        if self._ended is not None:
            self._ended.cancel()
            await asyncio.gather(self._ended, return_exceptions=True)
        async with self._turn:  # the check that it was to answer says "too complex", and ends
            self._connection = self._ended = None
            self._known.clear()
        self._turn = asyncio.Lock()  # this one is of the running event loop

    async def _reason(self, guidance: Guidance) -> str:
        """Return why a grammar is refused; "": it is not."""
        async with self._turn:
            if guidance in self._known:
                self._known.move_to_end(guidance)
                return self._known[guidance]
            if not self._possible:
                return ""
            # One that has ended since the last grammar has ended for another reason.
            if self._connection is None or (self._ended is not None and self._ended.done()):
                await self._start()
            if self._connection is None:
                return ""
            reason = await self._ask(guidance)
            self._known[guidance] = reason
            if len(self._known) > _KEPT:
                self._known.popitem(last=False)
            return reason

    async def _start(self) -> None:
        self._answers = asyncio.Queue()
        arguments = [str(self._directory), "", "0"]
        try:
            self._connection = ChildConnection(_MODULE, arguments, self._answers.put_nowait)
        except OSError as error:
            self._give_up(str(error))
            return
        self._ended = asyncio.create_task(self._connection.until_ended())
        ready = await self._next()
        if ready is True:
            self._failed_starts = 0
            return
        self._connection = None
        if ready is False:
            self._give_up("the tokenizer's tokens have no bytes")
            return
        self._failed_starts += 1
        if self._failed_starts == _MOST_STARTS:
            self._give_up(f"their reader has ended {_MOST_STARTS} times while it started")

    def _give_up(self, reason: str) -> None:
        self._possible = False
        _LOG.warning("grammars are not read before the engine does: %s", reason)

    async def _ask(self, guidance: Guidance) -> str:
        assert self._connection is not None
        self._connection.send(guidance)
        reason = await self._next()
        if not isinstance(reason, str):  # it has ended, perhaps with a word
            self._connection = None
            return _TOO_COMPLEX
        return reason

    async def _next(self) -> Any:
        """Return what the process says, None if it has ended."""
        assert self._ended is not None
        answer = asyncio.create_task(self._answers.get())
        await asyncio.wait({answer, self._ended}, return_when=asyncio.FIRST_COMPLETED)
        if answer.done():
            return answer.result()
        answer.cancel()
        return None
