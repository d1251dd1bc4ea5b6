"""The loop from a prompt to tokens, for any model that scores one token at a time."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from numbers import Integral
from typing import Any

import numpy as np
import onnxruntime as ort

from ..errors import ArgumentError
from ..is_number import is_number
from ..sampling import Chooser, Sampler
from ..session.ortvalue import ortvalue_to_numpy
from .decoding import Stepper


@dataclass
class Generation:
    """Generated tokens of every row, without the stop token, and the time taken in seconds.

    Tokens of a stop string are among them, as in transformers; ``texts`` end before it.
    """

    tokens: list[list[int]]
    finish_reasons: list[str]  # "stop" or "length"
    prompt_tokens: int
    prefill_seconds: float
    decode_seconds: float
    decode_steps: int
    texts: list[str] = field(default_factory=list)
    # Of prompt_lookup_num_tokens: tokens that were run before they were chosen, and were chosen.
    guessed_tokens: int = 0
    accepted_tokens: int = 0

    @property
    def tokens_per_second(self) -> float:
        """Decoded tokens per second over all rows; the first token counts as prefill."""
        rows = len(self.tokens)
        return rows * self.decode_steps / self.decode_seconds if self.decode_seconds > 0 else 0.0


def run(
    state: Stepper,
    choose: Callable[[ort.OrtValue], np.ndarray],
    rows: Sequence[Sequence[int]],
    budget: int,
    stop_tokens: frozenset[int],
    on_tokens: Callable[[list[int | None]], None] | None,
    on_chosen: Callable[[np.ndarray, Sequence[bool]], None] | None = None,
    ended: Callable[[int, int], bool] | None = None,
) -> Generation:
    """Generate up to ``budget`` tokens for each row.

    ``on_chosen`` gets the new tokens [B] of each step and which rows they continue; ``ended`` each
    row's number and new token, and returns whether the row ends after it.
    """
    generated: list[list[int]] = [[] for _ in rows]
    reasons = ["length"] * len(rows)
    alive = [True] * len(rows)
    started = time.perf_counter()
    logits = state.prefill()
    prefill_done = time.perf_counter()
    steps = 0
    while True:
        chosen = choose(logits)
        if on_chosen:
            on_chosen(chosen, alive)
        new: list[int | None] = [None] * len(rows)
        for row, token in enumerate(chosen.tolist()):
            if not alive[row]:
                continue
            if token in stop_tokens:
                alive[row], reasons[row] = False, "stop"
                continue
            generated[row].append(token)
            new[row] = token
            if ended and ended(row, token):
                alive[row], reasons[row] = False, "stop"
        if on_tokens:
            on_tokens(new)
        if not any(alive) or max(len(g) for g in generated) >= budget:
            break
        logits = state.decode(chosen)
        steps += 1
    return Generation(
        tokens=generated,
        finish_reasons=reasons,
        prompt_tokens=sum(len(row) for row in rows),
        prefill_seconds=prefill_done - started,
        decode_seconds=time.perf_counter() - prefill_done,
        decode_steps=steps,
    )


def checked_count(max_new_tokens: Any) -> int:
    """Return the number of tokens to generate; ArgumentError unless it is a whole one from 1."""
    if not is_number(max_new_tokens, Integral) or max_new_tokens < 1:
        raise ArgumentError(
            f"max_new_tokens expected a whole number from 1, got {max_new_tokens!r}"
        )
    return int(max_new_tokens)


def checked_room(tokens: int, context: int, whose: str = "model") -> int:
    """Return how many tokens a context takes behind a prompt; ArgumentError if it takes none."""
    if tokens >= context:
        raise ArgumentError(
            f"expected a prompt of fewer tokens than the {context} of the {whose}'s context, got "
            f"{tokens}: shorten it"
        )
    return context - tokens


def chooser(
    sampler: Any, sampling: Callable[[], ort.InferenceSession]
) -> Callable[[ort.OrtValue], np.ndarray]:
    """Return what chooses a token of each row from logits [B, S, V].

    ``sampling`` opens the session of sampler.onnx, which a greedy choice does not need. Raises
    ArgumentError for what is neither a Sampler nor a function.
    """
    if isinstance(sampler, Sampler):
        return Chooser(sampler, None if sampler.greedy else sampling())
    if not callable(sampler):
        raise ArgumentError(f"expected a Sampler or a function, got {type(sampler).__name__}")
    return lambda logits: _tokens_of(sampler, ortvalue_to_numpy(logits)[:, -1])


def _tokens_of(sampler: Callable[[np.ndarray], np.ndarray], logits: np.ndarray) -> np.ndarray:
    """Call a user's function on logits [B, V]; returns int64 [B]."""
    chosen = np.asarray(sampler(logits))
    batch, vocabulary = logits.shape
    if chosen.shape != (batch,) or chosen.dtype.kind not in "iu":
        raise ArgumentError(
            f"expected the sampler to return integers of shape [{batch}], got {chosen.dtype} of "
            f"shape {list(chosen.shape)}"
        )
    if chosen.min() < 0 or chosen.max() >= vocabulary:
        raise ArgumentError(
            f"expected the sampler to return tokens from 0 to {vocabulary - 1}, got "
            f"{chosen.tolist()}"
        )
    return chosen.astype(np.int64)
