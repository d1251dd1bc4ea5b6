"""How tokens are chosen and when a row ends: parameters of ``generate``."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from numbers import Integral, Real
from typing import Any

import numpy as np

from ..errors import ArgumentError
from ..is_number import is_number
from ..sampling import SMALLEST, Sampler

_SAMPLING = ("temperature", "top_k", "top_p", "min_p")
_COUNT = "a whole number from 1"
_TOP_K = 50  # transformers' default
_LARGEST = float(np.finfo(np.float32).max)


@dataclass(frozen=True)
class GenerationOptions:
    """Parameters with the names and meanings that they have in transformers, and some of OpenAI's.

    Sampling parameters that are None, and the repetition penalty, are those of
    generation_config.json, then transformers' defaults. Logits are changed in this order: the
    penalties, the processors, temperature, top-k, top-p, min-p.

    Args:
        do_sample: draw tokens; else the most likely one is taken.
        temperature: above 0.
        top_k: draw among as many of the most likely tokens; 0: among all.
        top_p: draw among the most likely tokens that have this probability together, above 0.
        min_p: draw among tokens at least this times as likely as the most likely one, 0 to 1.
        seed: from 0; makes drawing repeatable.
        repetition_penalty: above 0; divides positive logits, multiplies negative ones, of tokens of
            the prompt and of the continuation.
        presence_penalty: subtracted from logits of tokens of the continuation.
        frequency_penalty: subtracted as often as they occur in it.
        logits_processor: function, or functions, of tokens so far [B, S] int64 and logits [B, V]
            float32, torch tensors, that return logits [B, V].
        eos_token_id: token or tokens that end a row; None: no token does.
        stop_strings: text or texts that end a row.
        num_return_sequences: continuations of each prompt, next to each other in the results.
        prompt_lookup_num_tokens: run up to as many tokens of a row ahead, guessed from its text;
            the result is the same. None: none.
        max_matching_ngram_size: guess what followed up to as many of the last tokens before.
    """

    do_sample: bool = False
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    seed: int | None = None
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logits_processor: Callable[..., Any] | Sequence[Callable[..., Any]] = ()
    eos_token_id: int | Iterable[int] | None = None
    stop_strings: str | Sequence[str] = ()
    num_return_sequences: int = 1
    prompt_lookup_num_tokens: int | None = None
    max_matching_ngram_size: int = 2

    def __post_init__(self) -> None:
        if not isinstance(self.do_sample, bool):
            raise ArgumentError(f"do_sample expected True or False, got {self.do_sample!r}")
        for name in ("presence_penalty", "frequency_penalty"):
            _check(name, getattr(self, name), Real, _is_float32, "a finite number of float32")
        factor = self.repetition_penalty
        _check("repetition_penalty", factor, Real, _divides, "a number of float32 above 0")
        count = self.num_return_sequences
        _check("num_return_sequences", count, Integral, _positive, _COUNT)
        if self.prompt_lookup_num_tokens is not None:
            count_ahead = self.prompt_lookup_num_tokens
            _check("prompt_lookup_num_tokens", count_ahead, Integral, _positive, _COUNT)
        _check("max_matching_ngram_size", self.max_matching_ngram_size, Integral, _positive, _COUNT)
        if not self.do_sample:
            given = [n for n in (*_SAMPLING, "seed") if getattr(self, n) is not None]
            if given:
                raise ArgumentError(f"{given[0]} expected do_sample=True, got a greedy choice")
            if count > 1:
                raise ArgumentError(
                    f"num_return_sequences expected do_sample=True for {count} results: a greedy "
                    "choice has one"
                )
        elif self.temperature is not None:
            _check("temperature", self.temperature, Real, _positive, "a number above 0")

    @classmethod
    def of(
        cls, given: Mapping[str, Any], config: Mapping[str, Any], stop_tokens: Iterable[int]
    ) -> GenerationOptions:
        """Return the caller's options, completed from generation_config.json.

        ``stop_tokens`` are the model's. Raises ArgumentError for unknown names and wrong values.
        """
        known = {each.name for each in fields(cls)}
        if (beams := given.get("num_beams", 1)) != 1:
            raise ArgumentError(
                f"num_beams expected 1, got {beams!r}: beams are searched by "
                "onnxruntime_npu.NPUModelForCausalLM"
            )
        if unknown := sorted(set(given) - known - {"num_beams"}):
            raise ArgumentError(
                f"expected options among {', '.join(sorted(known))}, got {unknown[0]}: "
                "onnxruntime_npu.NPUModelForCausalLM has all of transformers'"
            )
        values: dict[str, Any] = {"eos_token_id": stop_tokens}
        for name, value in given.items():
            if name in known and (value is not None or name == "eos_token_id"):
                values[name] = value
        for name in ("repetition_penalty", *(_SAMPLING if values.get("do_sample") else ())):
            if name not in values and config.get(name) is not None:
                values[name] = config[name]
        return cls(**values)

    def sampler(self) -> Sampler:
        """Return what chooses a token of each row; ArgumentError for parameters out of range."""
        if not self.do_sample:
            return Sampler()
        return Sampler(
            temperature=1.0 if self.temperature is None else self.temperature,
            top_k=_TOP_K if self.top_k is None else self.top_k,
            top_p=1.0 if self.top_p is None else self.top_p,
            min_p=0.0 if self.min_p is None else self.min_p,
            seed=self.seed,
        )

    @property
    def penalties(self) -> dict[str, float]:
        """The arguments of Penalties; none, if they change nothing."""
        if self.repetition_penalty == 1 and not (self.presence_penalty or self.frequency_penalty):
            return {}
        return {
            "repetition": self.repetition_penalty,
            "presence": self.presence_penalty,
            "frequency": self.frequency_penalty,
        }

    @property
    def processors(self) -> list[Callable[..., Any]]:
        """The caller's functions; ArgumentError for what is none."""
        given = self.logits_processor
        functions = [given] if callable(given) else given
        if isinstance(functions, str) or not isinstance(functions, Iterable):
            raise ArgumentError(f"logits_processor expected functions, got {given!r}")
        found = list(functions)
        for each in found:
            if not callable(each):
                raise ArgumentError(f"logits_processor expected functions, got {each!r}")
        return found

    @property
    def strings(self) -> list[str]:
        """The stop strings; ArgumentError for empty ones and what is no text."""
        given = [self.stop_strings] if isinstance(self.stop_strings, str) else self.stop_strings
        if not isinstance(given, Iterable) or not all(isinstance(s, str) and s for s in given):
            raise ArgumentError(f"stop_strings expected texts, got {self.stop_strings!r}")
        return list(given)

    @property
    def stop_tokens(self) -> frozenset[int]:
        """The tokens that end a row; ArgumentError for what is none."""
        given: Any = self.eos_token_id
        if given is None:
            return frozenset()
        given = given.tolist() if hasattr(given, "tolist") else given
        tokens = [given] if isinstance(given, Integral) else given
        if not isinstance(tokens, Iterable) or not all(map(_is_token, tokens)):
            raise ArgumentError(f"eos_token_id expected a token or tokens, got {given!r}")
        return frozenset(map(int, tokens))


def _is_token(value: Any) -> bool:
    return is_number(value, Integral)


def _positive(value: float) -> bool:
    return 0 < value < math.inf


# Scores have float32: beyond it a penalty of 0 occurrences is not a number.
def _is_float32(value: float) -> bool:
    return abs(value) <= _LARGEST


def _divides(value: float) -> bool:
    return SMALLEST <= value <= _LARGEST


def _check(name: str, value: Any, kind: Any, allowed: Callable[[Any], bool], expected: str) -> None:
    if not is_number(value, kind) or not allowed(value):
        raise ArgumentError(f"{name} expected {expected}, got {value!r}")
