"""Answers of the model: tokens of the engine to text, up to a stop string."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence

from ..generation.stop_strings import StopStrings
from .engine import Stream
from .served_model import ServedModel


class Choice:
    """One answer to one prompt; ``finish_reason`` and ``tokens`` are final after its text."""

    def __init__(self, index: int, stream: Stream, model: ServedModel, stop: Sequence[str]) -> None:
        self.index = index
        self.finish_reason = "length"
        self.tokens = 0
        self._stream = stream
        self._pieces: list[str] = []
        self._text = model.text_stream(self._pieces.append)
        self._stop = StopStrings(stop)

    async def text(self) -> AsyncIterator[str]:
        """Yield the text in pieces, none of them empty."""
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


async def interleaved(choices: Sequence[Choice]) -> AsyncGenerator[tuple[Choice, str | None], None]:
    """Yield the pieces of all choices as they come, and None after the last piece of each.

    Whatever ends the iteration, an error or the client's absence, frees all of them.
    """
    arrived: asyncio.Queue[tuple[Choice, str | Exception | None]] = asyncio.Queue()

    async def follow(choice: Choice) -> None:
        try:
            async for piece in choice.text():
                arrived.put_nowait((choice, piece))
            arrived.put_nowait((choice, None))
        except Exception as error:  # raised below, in the task that answers the client
            arrived.put_nowait((choice, error))

    tasks = [asyncio.create_task(follow(choice)) for choice in choices]
    try:
        left = len(choices)
        while left:
            choice, piece = await arrived.get()
            if isinstance(piece, Exception):
                raise piece
            left -= piece is None
            yield choice, piece
    finally:
        for task in tasks:
            task.cancel()
        for choice in choices:
            choice.close()
