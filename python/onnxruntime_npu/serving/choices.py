"""Answers of the model: tokens of the engine to text, up to a stop string."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from dataclasses import dataclass

from ..generation.stop_strings import StopStrings
from .engine import Stream
from .logprobs import PlacedToken, TokenLog
from .served_model import ServedModel
from .tool_calls import ToolCall
from .tools import Tools

Part = str | ToolCall


class Choice:
    """One answer to one prompt; ``finish_reason`` and ``tokens`` are final after its parts."""

    def __init__(
        self,
        index: int,
        stream: Stream,
        model: ServedModel,
        stop: Sequence[str],
        tools: Tools | None = None,
        echo: str = "",
        scored: bool = False,
    ) -> None:
        """``echo`` is text that is written before that of the answer.

        ``scored``: tokens have scores, those of an echo, too.
        """
        self.index = index
        self.finish_reason = "length"
        self.tokens = 0
        self._stream = stream
        self._pieces: list[str] = []
        shown = tools.form.markers if tools else ()
        self._text = model.text_stream(self._pieces.append, shown)
        self._stop = StopStrings(stop)
        self._tools = tools
        self._calls = tools.parser() if tools else None
        self._echo = echo
        self._log = TokenLog() if scored else None
        # Characters, the echo's included: of all tokens so far; given out; None: all of them.
        self._length = 0
        self._given: int | None = 0

    @property
    def scored(self) -> bool:
        """Whether tokens have scores."""
        return self._log is not None

    def take_scores(self) -> list[PlacedToken]:
        """Return the scored tokens of the text since the last call."""
        return [] if self._log is None else self._log.take(self._given)

    async def parts(self) -> AsyncIterator[Part]:
        """Yield text in pieces, none of them empty, and calls of tools."""
        if self._echo:
            await self._log_echo()
            yield self._echo
        async for piece in self._until_stop():
            if self._calls is None:
                yield piece
                continue
            for part in self._calls.put(piece):
                yield part
            if self._calls.count and self._tools and not self._tools.parallel:
                self.finish_reason = "stop"
                self._stream.close()
                break
        if self._calls is not None:
            for part in self._calls.end():
                yield part
            # OpenAI's reason for the one call that was asked for by name is "stop".
            called = self._calls.count and not (self._tools and self._tools.named)
            if called and self.finish_reason == "stop":
                self.finish_reason = "tool_calls"

    async def _until_stop(self) -> AsyncIterator[str]:
        async for new in self._stream:
            self.tokens += 1
            if self._log is not None and new.scored is not None:
                self._log.put(new.scored, self._length)
            self._text.put([new.token])
            if piece := self._give(self._stop.put(self._take())):
                yield piece
            if self._stop.matched:
                self.finish_reason = "stop"
                self._stream.close()
                return
        self.finish_reason = self._stream.finish_reason
        self._text.end()
        piece = self._stop.put(self._take())
        if self._stop.matched:
            self.finish_reason = "stop"
            piece = self._give(piece)
        else:
            piece += self._stop.end()
            self._given = None
        if piece:
            yield piece

    def close(self) -> None:
        """Cancel the rest."""
        self._stream.close()

    async def _log_echo(self) -> None:
        """Take the scores of the prompt, which come before the first token of the answer."""
        if self._log is not None:
            await self._stream.begun()
            self._log.put_text(self._stream.prompt, len(self._echo))
        self._length = self._given = len(self._echo)

    def _take(self) -> str:
        piece = "".join(self._pieces)
        self._pieces.clear()
        self._length += len(piece)
        return piece

    def _give(self, piece: str) -> str:
        if self._given is not None:
            self._given += len(piece)
        return piece


@dataclass(frozen=True)
class Arrival:
    """A part of a choice, None after its last one, and the scores of its tokens."""

    choice: Choice
    part: Part | None
    scores: list[PlacedToken]


async def interleaved(choices: Sequence[Choice]) -> AsyncGenerator[Arrival, None]:
    """Yield the parts of all choices as they come, and None after the last part of each.

    Whatever ends the iteration, an error or the client's absence, frees all of them.
    """
    arrived: asyncio.Queue[Arrival | Exception] = asyncio.Queue()

    async def follow(choice: Choice) -> None:
        try:
            async for part in choice.parts():
                arrived.put_nowait(Arrival(choice, part, choice.take_scores()))
            arrived.put_nowait(Arrival(choice, None, choice.take_scores()))
        except Exception as error:  # raised below, in the task that answers the client
            arrived.put_nowait(error)

    tasks = [asyncio.create_task(follow(choice)) for choice in choices]
    try:
        left = len(choices)
        while left:
            arrival = await arrived.get()
            if isinstance(arrival, Exception):
                raise arrival
            left -= arrival.part is None
            yield arrival
    finally:
        for task in tasks:
            task.cancel()
        for choice in choices:
            choice.close()
