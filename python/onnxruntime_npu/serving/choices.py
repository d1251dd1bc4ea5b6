"""Answers of the model: tokens of the engine to text, up to a stop string."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import NamedTuple

from ..generation.stop_strings import StopStrings
from .api_errors import ApiError
from .engine import Stream
from .engine_messages import Scored
from .logprobs import PlacedToken, TokenLog
from .served_model import ServedModel
from .tool_calls import ToolCall
from .tools import Tools

Part = str | ToolCall
# Of an answer that is sent whole: each time that it is taken up takes longer than a token.
_TOGETHER = 32


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
        self._ended = False

    @property
    def scored(self) -> bool:
        """Whether tokens have scores."""
        return self._log is not None

    @property
    def ended(self) -> bool:
        """Whether the last part has been taken."""
        return self._ended

    @property
    def cached(self) -> int | None:
        """How many tokens of the prompt the cache had; None: the engine has not told.

        It tells at its own end of an answer, not where a stop string or a call ends one.
        """
        return self._stream.cached

    @property
    def error(self) -> ApiError | None:
        """Why it ends without a last part."""
        return self._stream.error

    @property
    def news(self) -> asyncio.Event:
        """Set when there is something to take, of any choice of the same request."""
        return self._stream.news

    def take_together(self) -> None:
        """Let tokens be taken together, unless one of them may end the answer."""
        if not (self._tools or self._stop.strings):
            self._stream.together = _TOGETHER

    def take(self) -> list[Arrival]:
        """Return what has come since the last call; after the last part comes None."""
        arrivals: list[Arrival] = []
        if self._echo and (self._log is None or self._stream.begun):
            self._put_echo(arrivals)
        for _, token, scored in self._stream.take():
            self._put(token, scored, arrivals)
            if self._ended:  # by a stop string or a call: what follows is not wanted
                self._stream.close()
                break
        if self._stream.finish_reason is not None and not self._ended:
            self.finish_reason = self._stream.finish_reason
            self._put_rest(arrivals)
        return arrivals

    def _put(self, token: int, scored: Scored | None, arrivals: list[Arrival]) -> None:
        self.tokens += 1
        if self._log is not None and scored is not None:
            self._log.put(scored, self._length)
        self._text.put([token])
        if piece := self._give(self._stop.put(self._decoded())):
            self._put_piece(piece, arrivals)
        calls, tools = self._calls, self._tools
        if self._stop.matched or (calls and calls.count and tools and not tools.parallel):
            self.finish_reason = "stop"
            self._end(arrivals)

    def _put_rest(self, arrivals: list[Arrival]) -> None:
        """Give out what was held back: no more tokens follow."""
        self._text.end()
        piece = self._stop.put(self._decoded())
        if self._stop.matched:
            self.finish_reason = "stop"
            self._give(piece)
        else:
            piece += self._stop.end()
            self._given = None
        if piece:
            self._put_piece(piece, arrivals)
        self._end(arrivals)

    def _put_piece(self, piece: str, arrivals: list[Arrival]) -> None:
        for part in (piece,) if self._calls is None else self._calls.put(piece):
            arrivals.append(Arrival(self, part, self._scores()))

    def _end(self, arrivals: list[Arrival]) -> None:
        self._ended = True
        if self._calls is not None:
            must = self._tools is not None and self._tools.must
            for part in self._calls.end(breaks_off=must and self.finish_reason == "length"):
                arrivals.append(Arrival(self, part, self._scores()))
            # OpenAI's reason for the one call that was asked for by name is "stop".
            called = self._calls.count and not (self._tools and self._tools.named)
            if called and self.finish_reason == "stop":
                self.finish_reason = "tool_calls"
        arrivals.append(Arrival(self, None, self._scores()))

    def close(self) -> None:
        """Cancel the rest."""
        self._stream.close()

    def _put_echo(self, arrivals: list[Arrival]) -> None:
        """Give out the echo, with the scores of the prompt, which come before the first token."""
        echo, self._echo = self._echo, ""
        if self._log is not None:
            self._log.put_text(self._stream.prompt, len(echo))
        self._length = self._given = len(echo)
        arrivals.append(Arrival(self, echo, self._scores()))

    def _scores(self) -> list[PlacedToken]:
        """Return the scored tokens of the text since the last call."""
        return [] if self._log is None else self._log.take(self._given)

    def _decoded(self) -> str:
        piece = "".join(self._pieces)
        self._pieces.clear()
        self._length += len(piece)
        return piece

    def _give(self, piece: str) -> str:
        if self._given is not None:
            self._given += len(piece)
        return piece


class Arrival(NamedTuple):
    """A part of a choice, None after its last one, and the scores of its tokens."""

    choice: Choice
    part: Part | None
    scores: list[PlacedToken]


class Choices:
    """The choices of one request, whose parts come in any order.

    Without tasks or queues of their own, each of which would be woken for every token.
    """

    def __init__(self, each: Sequence[Choice]) -> None:
        self.each = each
        self._left = list(each)
        self._news = each[0].news
        self._error: ApiError | None = None

    async def next(self) -> list[Arrival]:
        """Wait for parts of the answer and return them, [] when all choices have ended.

        Raises the error of the first choice that has one when what came before it has been
        returned.
        """
        while self._left:
            if self._error is not None:
                raise self._error
            await self._news.wait()
            self._news.clear()
            arrivals: list[Arrival] = []
            for choice in self._left:
                self._error = self._error or choice.error
                arrivals += choice.take()
            if any(arrival.part is None for arrival in arrivals):
                self._left = [choice for choice in self._left if not choice.ended]
            if arrivals:
                return arrivals
        return []

    def close(self) -> None:
        """Cancel the rest."""
        for choice in self.each:
            choice.close()
