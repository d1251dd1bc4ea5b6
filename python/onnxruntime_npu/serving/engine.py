"""The engine as the server's event loop sees it: streams of tokens from another process."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .api_errors import ApiError, bad_request, deadline_exceeded
from .engine_messages import Cancel, NewToken, Ready, Sampling, Scored, Step, Submit
from .metrics import Metrics
from .response_format import told_refusal
from .settings import Settings
from .supervised import Supervised

_USUAL_SECONDS = 2.0  # of a request, until some have been measured


class Stream:
    """New tokens of one request, as the engine makes them.

    ``close`` frees what the request holds in the engine; it may be called at any time, more than
    once.

    Attributes:
        news: set when there is something to take, of any stream of the same request.
        together: tokens that may be taken together: ``news`` is not set for each of them.
        finish_reason: ``stop`` or ``length`` when the last token has been put, before None.
        error: of the deadline or the engine; no token follows.
        prompt: the scores of its tokens, if they were asked for.
        cached: how many of its tokens the cache had from earlier requests, which the engine tells
            when it has put the last token.
    """

    def __init__(
        self, engine: Engine, submit: Submit, deadline: float, news: asyncio.Event
    ) -> None:
        self.news, self.together = news, 1
        self.finish_reason: str | None = None
        self.error: ApiError | None = None
        self.prompt: list[Scored] = []
        self.cached: int | None = None
        self._engine, self._key = engine, submit.key
        self._guidance = submit.sampling.guidance
        self._tokens: list[NewToken] = []  # that have not been taken
        self._arrived = self._last = time.monotonic()
        self._started = self._begun = self._ended = False
        self._accepted = asyncio.Event()
        self._expiry = asyncio.get_running_loop().call_later(deadline, self._expire, deadline)

    @property
    def started(self) -> bool:
        """Whether the engine has taken the request."""
        return self._started

    def start(self) -> None:
        """Note that the engine has taken the request."""
        self._started = True
        self._accepted.set()

    @property
    def begun(self) -> bool:
        """Whether the prompt has been read."""
        return self._begun or self.finish_reason is not None

    async def accepted(self) -> None:
        """Wait until the engine has taken the request or it has ended; raises its error."""
        await self._accepted.wait()
        if self.error is not None:
            raise self.error

    def refuse(self, message: str) -> None:
        """End since the answer cannot have the form that was asked for."""
        param = self._guidance.param if self._guidance else None
        self.fail(bad_request(told_refusal(message), param=param))

    def put_prompt(self, scores: list[Scored]) -> None:
        """Take the scores of the prompt's tokens."""
        self.prompt = scores

    def put(self, token: NewToken, now: float, metrics: Metrics) -> None:
        """Take a token from the engine, which has come at ``now``."""
        if self._begun:
            metrics.inter_token.observe(now - self._last)
        else:
            metrics.first_token.observe(now - self._arrived)
            self._begun = True
        self._last = now
        self._tokens.append(token)
        if len(self._tokens) >= self.together:
            self.news.set()

    def take(self) -> list[NewToken]:
        """Return the tokens that have come since the last call."""
        taken, self._tokens = self._tokens, []
        return taken

    def finish(self, reason: str, cached: int) -> None:
        """Note that the last token has been put: ``stop`` or ``length``."""
        self._end()
        self.finish_reason, self.cached = reason, cached
        self.news.set()

    def fail(self, error: ApiError) -> None:
        """End with an error."""
        self._end()
        self._fail(error)

    def close(self) -> None:
        """Cancel the request unless it has ended."""
        if not self._ended:
            self._end()
            self._engine.cancel(self._key)

    def _expire(self, deadline: float) -> None:
        self.close()
        self._fail(deadline_exceeded(deadline))

    def _fail(self, error: ApiError) -> None:
        self.error = error
        self._accepted.set()
        self.news.set()

    def _end(self) -> None:
        self._ended = True
        self._expiry.cancel()
        self._engine.ended(self._key, time.monotonic() - self._arrived)


class Engine(Supervised[Ready]):
    """Hands requests to the engine's process. All methods are called on the event loop."""

    name = "engine"
    module = "onnxruntime_npu.serving.engine_process"

    def __init__(
        self,
        directory: Path,
        settings: Settings,
        metrics: Metrics,
        on_unusable: Callable[[str], None],
    ) -> None:
        super().__init__(directory, settings, metrics, on_unusable)
        self._max_queue = settings.max_queue
        self._streams: dict[int, Stream] = {}
        self._next_key = 0
        self._mean_seconds = _USUAL_SECONDS

    def check_number(self, answers: int, param: str = "n") -> int:
        """Return how many answers may run and wait, of all requests.

        Raises ApiError: 503 while the engine is not ready, 400 for more answers of one request,
        which ``param`` asks for.
        """
        most = self.limits().max_batch + self._max_queue
        if answers > most:
            message = f"expected at most {most} answers of a request, got {answers}"
            raise bad_request(message, param=param)
        return most

    def submit(
        self,
        prompts: list[list[int]],
        sampling: list[Sampling],
        deadline: float,
        adapter: str | None = None,
    ) -> list[Stream]:
        """Hand over requests, all or none, to the model itself or with one of its adapters.

        Raises ApiError: 503 while the engine is not ready, 429 when too many requests wait, 400 for
        more than ever may.
        """
        limits = self.limits()
        if len(prompts) > self.check_number(len(prompts)) - len(self._streams):
            raise ApiError(
                429,
                "queue_full",
                f"{len(self._streams)} requests are running or waiting: try again later",
                retry_after=self._retry_after(limits),
            )
        news = asyncio.Event()
        news.set()  # an echo waits for nothing
        streams = []
        for tokens, choice in zip(prompts, sampling, strict=True):
            self._next_key += 1
            submit = Submit(self._next_key, tokens, choice, adapter)
            self._streams[submit.key] = stream = Stream(self, submit, deadline, news)
            streams.append(stream)
            self._send(submit)
        self._metrics.prompt_tokens.inc(sum(map(len, prompts)))
        self._count()
        return streams

    def cancel(self, key: int) -> None:
        """Free what a request holds."""
        self._send(Cancel(key))

    def ended(self, key: int, seconds: float) -> None:
        """Forget a request that took so long."""
        if self._streams.pop(key, None) is not None:
            self._mean_seconds += 0.1 * (seconds - self._mean_seconds)
            self._count()

    def _retry_after(self, limits: Ready) -> int:
        waves = len(self._streams) / limits.max_batch
        return max(1, min(60, math.ceil(waves * self._mean_seconds)))

    def _count(self) -> None:
        running = sum([stream.started for stream in self._streams.values()])
        self._metrics.running.set(running)
        self._metrics.queued.set(len(self._streams) - running)

    def _fail_all(self, error: ApiError) -> None:
        self._metrics.blocks_used.set(0)
        for stream in list(self._streams.values()):
            stream.fail(error)

    def _take(self, message: Any) -> None:
        if isinstance(message, Step):
            self._take_step(message)
        elif isinstance(message, Ready):
            self._limits = message
            self._metrics.blocks.set(message.cache_blocks)

    def _take_step(self, step: Step) -> None:
        for key in step.started:
            if key in self._streams:
                self._streams[key].start()
        for key, scores in step.prompts:
            if key in self._streams:
                self._streams[key].put_prompt(scores)
        now = time.monotonic()
        for token in step.tokens:
            if (stream := self._streams.get(token[0])) is not None:
                stream.put(token, now, self._metrics)
        cached = dict(step.cached)
        for key, reason, message in step.finished:
            if key not in self._streams:
                continue
            if reason == "refused":
                self._streams[key].refuse(message)
            elif reason == "error":
                self._streams[key].fail(ApiError(500, "generation_failed", message))
            else:
                self._streams[key].finish(reason, cached.get(key, 0))
        metrics = self._metrics
        metrics.generated_tokens.inc(len(step.tokens))
        metrics.blocks_used.set(step.blocks_used)
        if step.guessed or step.accepted:
            metrics.guessed_tokens.inc(step.guessed)
            metrics.accepted_tokens.inc(step.accepted)
        if step.preempted or step.blocks_added:
            metrics.preemptions.inc(step.preempted)
            metrics.blocks.inc(step.blocks_added)
        if step.started or step.finished:
            metrics.cached_tokens.inc(sum(cached.values()))
            self._count()
