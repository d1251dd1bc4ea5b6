"""The lane of onnxruntime-genai's engine: requests in it, and those that wait for it.

The engine schedules: it forms each step from what its cache holds. It leaves four things to its
caller, which are done here: a finished request keeps its blocks until it is closed; not more
requests than a batch takes may be open; when no request can grow, the engine reports it at every
step and waits for one of them to be closed; and when a grammar has become too complex to go on, it
makes no step at all, and does not say whose grammar that is.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnxruntime_genai as og

from .engine_messages import Sampling, Step, Submit
from .guesses import Guesses
from .lark import lark_of, refusal_of

_Reason, _Error = og.FinishReason, og.EngineErrorCode
# As numbers: each event has to be asked for several, and the operators of a bound enumeration take
# longer than all else that is done for a token.
_TOKEN, _TURN_FINISHED, _CAPACITY_BLOCKED, _FAILED, _RETRYABLE = (
    getattr(og.EngineEventFlags, name).value
    for name in ("TOKEN", "TURN_FINISHED", "CAPACITY_BLOCKED", "FAILED", "RETRYABLE")
)
_REASONS = {
    _Reason.EOS: "stop",
    _Reason.MAX_GENERATED_TOKENS: "length",
    _Reason.MAX_SESSION_TOKENS: "length",
}
# Guessed tokens of a step, of all requests together: more of them cost more than they save.
_MOST_GUESSED = 8
_NO_GRAMMAR = "Error creating grammar: "
# Running answers wait while a step reads prompts, and all prompts of a step get their first token
# together. So prompts that come at once are handed over in turn, those of as many tokens at a time,
# and of more beside many answers: these would have to wait too often.
_READ_AT_ONCE = 256
_READ_BESIDE_ANSWER = 8
_RETRIES = 2  # of a step, before a grammar is taken for the cause
_TOO_COMPLEX = "the grammar has become too complex to go on with the answer"
# Failures of one request; any other failure is the engine's.
_OF_ONE_REQUEST = (_Error.REQUEST_UNSERVICEABLE,)


class EngineError(RuntimeError):
    """The engine cannot go on."""


@dataclass
class _Sequence:
    submitted: Submit
    generated: list[int] = field(default_factory=list)
    request: Any = None
    guesses: Guesses | None = None  # of a request whose tokens may be guessed
    decoding: bool = False  # the engine has read what it was given and made a token
    # A preempted request with a grammar is generated again from its prompt, since the engine cannot
    # begin within a grammar: number of tokens of ``generated`` that have been repeated.
    repeated: int = 0
    prompt: int = field(init=False)  # number of its tokens

    def __post_init__(self) -> None:
        self.prompt = len(self.submitted.tokens)

    @property
    def begin(self) -> list[int]:
        """What the engine is given to continue."""
        return self.generated if self.submitted.sampling.guidance is None else []


class Batch:
    """Owns the requests of one engine; used by the thread that made the engine."""

    def __init__(self, engine: Any, block_size: int) -> None:
        self._engine = engine
        self._capacity = engine.get_capabilities().configured_max_batch_size
        self._block_size = block_size
        self._longest_guess = min(engine.max_draft_tokens_per_proposal(), _MOST_GUESSED)
        self._events = engine.create_event_buffer(self._capacity + _MOST_GUESSED + 1)
        self._waiting: deque[_Sequence] = deque()
        self._running: dict[Any, _Sequence] = {}
        # After a preemption nobody enters until a request has left: who enters first would
        # otherwise take the blocks that were freed for another.
        self._full = False
        # Requests with grammars that were set aside, one a step, since the engine made none.
        self._suspects: list[_Sequence] = []
        self._stops = 0  # steps in a row that were not made

    @property
    def busy(self) -> bool:
        """Whether a step has something to do."""
        return bool(self._waiting or self._running or self._suspects)

    def add(self, submitted: Submit) -> None:
        """Queue a request."""
        sequence = _Sequence(submitted)
        count = min(submitted.sampling.guesses, self._longest_guess)
        if count and _guessable(submitted.sampling):
            sequence.guesses = Guesses(submitted.tokens, count)
        self._waiting.append(sequence)

    def cancel(self, key: int) -> None:
        """Forget a request and free its blocks."""
        self._waiting = deque(each for each in self._waiting if each.submitted.key != key)
        self._suspects = [each for each in self._suspects if each.submitted.key != key]
        for sequence in list(self._running.values()):
            if sequence.submitted.key == key:
                self._close(sequence)

    def step(self) -> Step:
        """Hand requests to the engine, run it once; raises EngineError when it cannot go on."""
        step = Step()
        self._hand_over(step)
        self._guess(step)
        try:
            events = [(event.flags.value, event) for event in self._engine.run(self._events)]
        except RuntimeError as error:
            raise EngineError(str(error)) from None
        stopped = any(flags & _RETRYABLE for flags, _ in events)
        self._stops = self._stops + 1 if stopped else 0
        if self._stops > _RETRIES:
            self._set_aside()
        if self._suspects and not (stopped and self._running):
            self._blame(step)
        for flags, event in events:
            if flags & _CAPACITY_BLOCKED:
                self._preempt(step)
            elif (sequence := self._running.get(event.request)) is not None:
                self._take(flags, event, sequence, step)
        size = self._block_size
        step.blocks_used = sum(
            [-(-(each.prompt + each.repeated) // size) for each in self._running.values()]
        )
        return step

    def _hand_over(self, step: Step) -> None:
        # A suspect is the cause if the others go on without it.
        if not self._waiting or self._full or self._suspects:
            return
        unread = sum(each.prompt for each in self._running.values() if not each.decoding)
        answers = sum(each.decoding for each in self._running.values())
        enough = max(_READ_AT_ONCE, _READ_BESIDE_ANSWER * answers)
        while self._waiting and len(self._running) < self._capacity and unread < enough:
            sequence = self._waiting.popleft()
            unread += sequence.prompt
            submitted = sequence.submitted
            try:
                sequence.request = self._engine.create_request()
                sequence.request.begin_turn(
                    np.array([*submitted.tokens, *sequence.begin], np.int32), _turn(sequence)
                )
            except (RuntimeError, TypeError, ValueError) as error:
                sequence.request.close()
                step.finished.append((submitted.key, *_why(submitted, str(error))))
                continue
            sequence.repeated, sequence.decoding = len(sequence.begin), False
            self._running[sequence.request] = sequence
            step.started.append(submitted.key)

    def _guess(self, step: Step) -> None:
        most = _MOST_GUESSED // max(len(self._running), 1)
        for sequence in self._running.values() if most else ():
            if sequence.guesses is not None and sequence.decoding:
                # The engine adds one token to those that were guessed right.
                left = sequence.submitted.sampling.max_tokens - len(sequence.generated) - 1
                if guessed := sequence.guesses.next(min(most, left)):
                    sequence.request.set_draft_tokens(np.array(guessed, np.int32))
                    step.guessed += len(guessed)

    def _take(self, flags: int, event: Any, sequence: _Sequence, step: Step) -> None:
        key = sequence.submitted.key
        if flags & _FAILED:
            if event.error_code not in _OF_ONE_REQUEST:
                raise EngineError(event.error_code.name)
            self._close(sequence)
            step.finished.append((key, "error", event.error_code.name))
            return
        if flags & _TOKEN:
            token = event.token
            if sequence.repeated == len(sequence.generated):
                sequence.generated.append(token)
                step.tokens.append((key, token, None))
                if sequence.guesses is not None:
                    step.accepted += sequence.guesses.append(token)
            elif sequence.generated[sequence.repeated] != token:  # which was generated before
                self._close(sequence)
                step.finished.append((key, "error", "the answer could not be repeated"))
                return
            sequence.repeated += 1
            sequence.decoding = True
        if flags & _TURN_FINISHED:
            cached = min(event.usage.cached_prompt_tokens, sequence.prompt)
            step.cached.append((key, cached))
            self._close(sequence)
            step.finished.append((key, _REASONS[event.finish_reason], ""))

    def _preempt(self, step: Step) -> None:
        """Let the youngest request wait, in front of the others, and be continued later."""
        if len(self._running) < 2:
            raise EngineError("the cache is full, with one request in it")
        sequence = list(self._running.values())[-1]
        self._close(sequence)
        self._waiting.appendleft(sequence)
        self._full = True
        step.preempted += 1

    def _set_aside(self) -> None:
        """Take the youngest request with a grammar away from a step that could not be made."""
        guided = [
            each for each in self._running.values() if each.submitted.sampling.guidance is not None
        ]
        if not guided:
            raise EngineError("the engine makes no step")
        self._close(guided[-1])
        self._suspects.append(guided[-1])

    def _blame(self, step: Step) -> None:
        """End the suspect without which the engine goes on; the others are continued."""
        cause = self._suspects.pop()
        step.finished.append((cause.submitted.key, "refused", _TOO_COMPLEX))
        self._waiting.extendleft(self._suspects)
        self._suspects = []

    def _close(self, sequence: _Sequence) -> None:
        sequence.request.close()
        del self._running[sequence.request]
        sequence.request = None
        self._full = False


def _guessable(sampling: Sampling) -> bool:
    """Whether the engine's tokens are the same with guesses: a seed would draw others."""
    drawn = sampling.seed is None and sampling.top_k > 0
    plain = sampling.guidance is None and sampling.repetition_penalty == 1
    return plain and not sampling.min_tokens and (sampling.greedy or drawn)


def _why(submitted: Submit, error: str) -> tuple[str, str]:
    """Return the reason for which the engine does not begin a request, and the message."""
    guidance = submitted.sampling.guidance
    if guidance is None or not error.startswith(_NO_GRAMMAR):
        return "error", error
    return "refused", refusal_of(guidance, error.removeprefix(_NO_GRAMMAR))


def _turn(sequence: _Sequence) -> Any:
    sampling = sequence.submitted.sampling
    turn = og.TurnOptions(sequence.request)
    turn.set_max_generated_tokens(sampling.max_tokens - len(sequence.begin))
    turn.set_min_generated_tokens(max(sampling.min_tokens - len(sequence.begin), 0))
    turn.set_repetition_penalty(sampling.repetition_penalty)
    turn.set_do_sample(not sampling.greedy)
    if not sampling.greedy:
        turn.set_temperature(sampling.temperature)
        turn.set_top_p(sampling.top_p)
        turn.set_top_k(sampling.top_k)
        if sampling.seed is not None:
            # Another stream of random numbers after each preemption, still a repeatable one.
            turn.set_seed((sampling.seed + len(sequence.begin)) % 2**64)
    if sampling.guidance is not None:
        turn.set_guidance("lark_grammar", lark_of(sampling.guidance))
    return turn
