"""Answers of the model: tokens of the engine to text, up to a stop string."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence

from ..generation.stop_strings import StopStrings
from .engine import Stream
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
    ) -> None:
        """``echo`` is text that is written before that of the answer."""
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

    async def parts(self) -> AsyncIterator[Part]:
        """Yield text in pieces, none of them empty, and calls of tools."""
        if self._echo:
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
        async for token in self._stream:
            self.tokens += 1
            self._text.put([token])
            if piece := self._stop.put(self._take()):
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
        else:
            piece += self._stop.end()
        if piece:
            yield piece

    def close(self) -> None:
        """Cancel the rest."""
        self._stream.close()

    def _take(self) -> str:
        piece = "".join(self._pieces)
        self._pieces.clear()
        return piece


async def interleaved(
    choices: Sequence[Choice],
) -> AsyncGenerator[tuple[Choice, Part | None], None]:
    """Yield the parts of all choices as they come, and None after the last part of each.

    Whatever ends the iteration, an error or the client's absence, frees all of them.
    """
    arrived: asyncio.Queue[tuple[Choice, Part | Exception | None]] = asyncio.Queue()

    async def follow(choice: Choice) -> None:
        try:
            async for part in choice.parts():
                arrived.put_nowait((choice, part))
            arrived.put_nowait((choice, None))
        except Exception as error:  # raised below, in the task that answers the client
            arrived.put_nowait((choice, error))

    tasks = [asyncio.create_task(follow(choice)) for choice in choices]
    try:
        left = len(choices)
        while left:
            choice, part = await arrived.get()
            if isinstance(part, Exception):
                raise part
            left -= part is None
            yield choice, part
    finally:
        for task in tasks:
            task.cancel()
        for choice in choices:
            choice.close()
