"""Requests whose logits are seen or changed, of adapters, or that draw from the whole vocabulary.

onnxruntime-genai's engine does not show its logits, has no adapters, and is slow at such draws.
These requests are answered by the library's own step over the same file, in the engine's process.
It is opened by a thread when the first of them comes, so that the engine goes on and nobody pays
who does not need it. They are taken first come, first served, each with blocks for its longest
answer: nothing is ever preempted, and whatever runs is continued together, one adapter after the
other.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future

import numpy as np

from ..errors import ArgumentError
from .engine_messages import Step, Submit
from .logits_model import LogitsModel
from .logits_row import LogitsRow
from .token_texts import GrammarError

# New tokens of a step: longer prompts are read in parts, between which the engine has its turn.
_MOST_TOKENS = 256
_NO_TEXTS = (
    "the model's tokenizer has no bytes of its tokens: log-probabilities, and grammars beside "
    "other options that need logits, are not possible"
)


class LogitsLane:
    """Owns those requests; used by one thread."""

    def __init__(self, open_model: Callable[[], LogitsModel], wake: Callable[[], None]) -> None:
        """``open_model`` is called by a thread, which then calls ``wake``."""
        self._open_model, self._wake = open_model, wake
        self._model: LogitsModel | None = None
        self._opening: Future[LogitsModel] | None = None
        self._waiting: deque[Submit] = deque()
        self._running: list[LogitsRow] = []
        self._free: list[int] = []  # blocks

    @classmethod
    def of(cls, model: LogitsModel) -> LogitsLane:
        """Return a lane whose model is open."""
        lane = cls(lambda: model, lambda: None)
        lane._begin(model)
        return lane

    @property
    def busy(self) -> bool:
        """Whether a step has something to do: not while the model is opened."""
        opened = self._opening is None or self._opening.done()
        return bool(self._running or (self._waiting and opened))

    def add(self, submitted: Submit) -> None:
        """Queue a request, and begin to open the model if it is the first one."""
        self._waiting.append(submitted)
        if self._model is None and self._opening is None:
            self._opening = Future()
            threading.Thread(target=self._open, args=(self._opening,), daemon=True).start()

    def cancel(self, key: int) -> None:
        """Forget a request, which may be another lane's, and free its blocks."""
        self._waiting = deque(each for each in self._waiting if each.key != key)
        for row in [row for row in self._running if row.key == key]:
            self._close(row)

    def step(self) -> Step:
        """Take waiting requests and run the model once."""
        step = Step()
        self._take_opened(step)
        if self._model is not None:
            self._take_waiting(self._model, step)
            if self._running:
                self._run(self._model, step)
            step.blocks_used = sum(-(-row.past // self._model.block_size) for row in self._running)
        return step

    def _open(self, opening: Future[LogitsModel]) -> None:
        try:
            opening.set_result(self._open_model())
        except Exception as error:  # of onnxruntime, of the memory: told to those that wait
            opening.set_exception(error)
        self._wake()

    def _take_opened(self, step: Step) -> None:
        """Begin with a model that has been opened, or end what waits; a later one tries again."""
        if self._opening is None:
            return
        opening, self._opening = self._opening, None
        if (error := opening.exception()) is not None:
            reason = f"the model cannot be opened a second time: {error}"
            step.finished += [(each.key, "error", reason) for each in self._waiting]
            self._waiting.clear()
            return
        self._begin(opening.result())
        step.blocks_added = len(self._free)

    def _begin(self, model: LogitsModel) -> None:
        self._model, self._free = model, list(range(model.block_count))

    def _take_waiting(self, model: LogitsModel, step: Step) -> None:
        while self._waiting and len(self._running) < model.most_rows:
            first = self._waiting[0]
            sampling = first.sampling
            needed = -(-first.longest // model.block_size)
            if needed > len(self._free):
                return
            self._waiting.popleft()
            if model.texts is None and (sampling.guidance or sampling.scores is not None):
                step.finished.append((first.key, "refused", _NO_TEXTS))
                continue
            try:
                row = LogitsRow(first, model, self._free[:needed])
            except GrammarError as error:
                step.finished.append((first.key, "refused", str(error)))
                continue
            except ArgumentError as error:
                step.finished.append((first.key, "error", str(error)))
                continue
            del self._free[:needed]
            self._running.append(row)
            step.started.append(first.key)

    def _run(self, model: LogitsModel, step: Step) -> None:
        """Add tokens to rows: those that need few of them first, so that none waits for prompts."""
        parts: dict[str | None, list[tuple[LogitsRow, int]]] = {}
        room = _MOST_TOKENS
        for row in sorted(self._running, key=lambda row: len(row.pending)):
            if count := min(len(row.pending), room):
                parts.setdefault(row.adapter, []).append((row, count))
                room -= count
        for adapter, part in parts.items():
            self._run_together(model, adapter, part, step)

    def _run_together(
        self,
        model: LogitsModel,
        adapter: str | None,
        part: Sequence[tuple[LogitsRow, int]],
        step: Step,
    ) -> None:
        """Add so many tokens to each of several rows, which have the same adapter."""
        wanted, end = [], 0
        for row, count in part:
            end += count
            wanted.append(range(end - count if row.scores_prompt else end - 1, end))
        try:
            logits = model.run(
                [row.pending[:count] for row, count in part],
                [row.past for row, _ in part],
                [row.blocks for row, _ in part],
                [position for positions in wanted for position in positions],
                adapter,
            )
        except ArgumentError as error:  # of the adapter's file
            for row, _ in part:
                self._close(row)
                step.finished.append((row.key, "error", str(error)))
            return
        end = 0
        for (row, count), positions in zip(part, wanted, strict=True):
            end += len(positions)
            if row.scores_prompt:
                row.take_prompt(logits[end - len(positions) : end])
            row.advance(count)
            if not row.pending:
                self._continue(model, row, logits[end - 1], step)

    def _continue(self, model: LogitsModel, row: LogitsRow, logits: np.ndarray, step: Step) -> None:
        if row.scores_prompt:
            step.prompts.append((row.key, row.prompt_scores()))
        if row.full:  # no answer is wanted
            self._close(row)
            step.finished.append((row.key, "length", ""))
            return
        try:
            token, scored = row.next(logits)
        except GrammarError as error:
            self._close(row)
            step.finished.append((row.key, "refused", str(error)))
            return
        stopped = token in model.stop_tokens
        if not stopped:
            step.tokens.append((row.key, token, scored))
        if stopped or row.full:
            self._close(row)
            step.finished.append((row.key, "stop" if stopped else "length", ""))

    def _close(self, row: LogitsRow) -> None:
        assert self._model is not None, "rows run in an open model only"
        self._running.remove(row)
        self._model.forget(row.blocks)
        self._free += row.blocks
