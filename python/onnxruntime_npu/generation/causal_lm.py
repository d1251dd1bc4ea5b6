"""Generates text with an exported model: prefill, then one step per token."""

from __future__ import annotations

import functools
import json
import operator
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from numbers import Integral
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort

from ..context_length import context_length
from ..errors import ArgumentError
from ..sampling import Chooser, Sampler, open_sampler
from ..session.ortvalue import ortvalue_to_numpy
from ..session.provider_library import get_ep_name
from .decoding import StepModel, Stepper

_MODEL = "model.onnx"


@dataclass
class Generation:
    """Generated tokens of every row, without the stop token, and the time taken in seconds."""

    tokens: list[list[int]]
    finish_reasons: list[str]  # "stop" or "length"
    prompt_tokens: int
    prefill_seconds: float
    decode_seconds: float
    decode_steps: int
    texts: list[str] = field(default_factory=list)

    @property
    def tokens_per_second(self) -> float:
        """Decoded tokens per second over all rows; the first token counts as prefill."""
        rows = len(self.tokens)
        return rows * self.decode_steps / self.decode_seconds if self.decode_seconds > 0 else 0.0


class CausalLM:
    """A language model exported to a directory, ready to generate text."""

    def __init__(
        self,
        directory: str | Path,
        *,
        providers: Sequence[Any] | None = None,
        session_options: ort.SessionOptions | None = None,
    ) -> None:
        """Open the model.

        Args:
            directory: output of ``export_causal_lm``.
            providers: as for InferenceSession; default: the NPU.
            session_options: as for InferenceSession; default: log errors only.

        Raises ArgumentError for a directory without a model or an unavailable provider.
        """
        self.directory = Path(directory)
        if not (self.directory / _MODEL).is_file():
            raise ArgumentError(f"{self.directory} holds no {_MODEL}: export a model to it first")
        providers = list(providers or [get_ep_name()])
        names = [p if isinstance(p, str) else p[0] for p in providers]
        available = ort.get_available_providers()
        for name in names:
            # onnxruntime itself would continue without it.
            if name not in available:
                raise ArgumentError(f"provider {name!r} is not available: {', '.join(available)}")
        if session_options is None:
            session_options = ort.SessionOptions()
            # onnxruntime warns that shape arithmetic stays on the CPU; `assignment` lists it.
            session_options.log_severity_level = 3
        self._providers = providers
        self._model = StepModel(
            str(self.directory / _MODEL),
            session_options,
            providers,
            static=self._json("export_report.json").get("cache") == "static",
        )
        self.session = self._model.session
        self.cache = self._model.cache
        config = self._json("config.json")
        self.context_length = context_length(config) or 2**31
        self.generation_config = self._json("generation_config.json")
        stop = self.generation_config.get("eos_token_id", config.get("eos_token_id"))
        self.stop_tokens = frozenset([stop] if isinstance(stop, int) else stop or [])
        self._tokenizer: Any | None = None

    def _json(self, name: str) -> dict[str, Any]:
        path = self.directory / name
        return json.loads(path.read_text()) if path.is_file() else {}

    @property
    def tokenizer(self) -> Any:
        """The tokenizer; ArgumentError when the directory has none."""
        if self._tokenizer is None:
            if not (self.directory / "tokenizer_config.json").is_file():
                raise ArgumentError(f"{self.directory} holds no tokenizer: generate from token ids")
            from transformers import AutoTokenizer

            self._tokenizer = AutoTokenizer.from_pretrained(self.directory, local_files_only=True)
        return self._tokenizer

    def encode(self, prompt: str, *, chat: bool = True) -> list[int]:
        """Turn a prompt into tokens, through the chat template if it exists and ``chat`` is set."""
        if chat and getattr(self.tokenizer, "chat_template", None):
            messages = [{"role": "user", "content": prompt}]
            text = self.tokenizer.apply_chat_template(
                messages, add_generation_prompt=True, tokenize=False
            )
            return list(self.tokenizer.encode(text, add_special_tokens=False))
        return list(self.tokenizer.encode(prompt))

    def generate(
        self,
        prompts: str | Sequence[str],
        *,
        max_new_tokens: int = 256,
        sampler: Sampler | Callable[[np.ndarray], np.ndarray] | None = None,
        chat: bool = True,
        on_text: Callable[[str], None] | None = None,
    ) -> Generation:
        """Continue one prompt, or several as one batch.

        Args:
            prompts: text or texts.
            max_new_tokens: max number of tokens to generate per prompt.
            sampler: chooses tokens; default: greedy. A Sampler runs on the device; a function gets
                logits [B, V] on the host and returns tokens [B].
            chat: put each prompt through the tokenizer's chat template, if it has one.
            on_text: called with each new piece of text of the first prompt.
        """
        texts = [prompts] if isinstance(prompts, str) else list(prompts)
        rows = [self.encode(text, chat=chat) for text in texts]
        stream = TextStream(self.tokenizer, on_text) if on_text else None
        result = self.generate_tokens(
            rows,
            max_new_tokens=max_new_tokens,
            sampler=sampler,
            on_tokens=stream.put if stream else None,
        )
        if stream:
            stream.end()
        result.texts = [self.tokenizer.decode(t, skip_special_tokens=True) for t in result.tokens]
        return result

    def generate_tokens(
        self,
        rows: Sequence[Sequence[int]],
        *,
        max_new_tokens: int = 256,
        sampler: Sampler | Callable[[np.ndarray], np.ndarray] | None = None,
        on_tokens: Callable[[list[int | None]], None] | None = None,
    ) -> Generation:
        """Continue rows of token ids, of any lengths, as one batch.

        ``on_tokens`` gets the new token of every row after each step, None for a finished row.
        Raises ArgumentError for an empty row, a row that fills the model's context, and tokens
        outside the vocabulary, in ``rows`` or returned by ``sampler``.
        """
        if sampler is None:
            sampler = Sampler()
        if not isinstance(max_new_tokens, Integral) or max_new_tokens < 1:
            raise ArgumentError(f"expected max_new_tokens >= 1, got {max_new_tokens!r}")
        rows = self._checked(rows)
        longest = max(len(row) for row in rows)
        if longest >= self.context_length:
            raise ArgumentError(
                f"the prompt has {longest} tokens, the model's context {self.context_length}"
            )
        budget = min(int(max_new_tokens), self.context_length - longest)
        choose = self._chooser(sampler)
        with closing(self._model.stepper(rows, longest + budget)) as state:
            return self._generate(state, choose, rows, budget, on_tokens)

    def _checked(self, rows: Sequence[Sequence[int]]) -> list[list[int]]:
        try:
            checked = [[operator.index(token) for token in row] for row in rows]
        except TypeError as error:
            raise ArgumentError(f"expected prompts as rows of token ids: {error}") from None
        if not checked or not all(checked):
            raise ArgumentError("expected at least one token in every prompt")
        vocabulary = self._model.vocabulary
        for row in checked:
            for token in row:
                if not 0 <= token < vocabulary:
                    raise ArgumentError(f"expected tokens from 0 to {vocabulary - 1}, got {token}")
        return checked

    def _generate(
        self,
        state: Stepper,
        choose: Callable[[ort.OrtValue], np.ndarray],
        rows: Sequence[Sequence[int]],
        budget: int,
        on_tokens: Callable[[list[int | None]], None] | None,
    ) -> Generation:
        generated: list[list[int]] = [[] for _ in rows]
        reasons = ["length"] * len(rows)
        alive = [True] * len(rows)
        started = time.perf_counter()
        logits = state.prefill()
        prefill_done = time.perf_counter()
        steps = 0
        while True:
            chosen = choose(logits)
            new: list[int | None] = [None] * len(rows)
            for row, token in enumerate(chosen.tolist()):
                if not alive[row]:
                    continue
                if token in self.stop_tokens:
                    alive[row], reasons[row] = False, "stop"
                    continue
                generated[row].append(token)
                new[row] = token
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

    @functools.cached_property
    def _sampling(self) -> ort.InferenceSession:
        return open_sampler(self.directory, self._providers)

    def _chooser(self, sampler: Any) -> Callable[[ort.OrtValue], np.ndarray]:
        if isinstance(sampler, Sampler):
            return Chooser(sampler, None if sampler.greedy else self._sampling)
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


class TextStream:
    """Turns tokens into text piece by piece, holding back incomplete characters."""

    def __init__(self, tokenizer: Any, write: Callable[[str], None]) -> None:
        self._tokenizer = tokenizer
        self._write = write
        self._tokens: list[int] = []
        self._start = 0  # tokens before it are written and no longer read
        self._written = 0  # number of characters of self._tokens[self._start:] already written

    def put(self, tokens: Sequence[int | None]) -> None:
        """Take the new token of the first row."""
        if tokens[0] is None:
            return
        self._tokens.append(tokens[0])
        text = self._text()
        if text.endswith("\N{REPLACEMENT CHARACTER}"):
            return
        self._emit(text)
        if text.endswith("\n"):
            self._start, self._written = len(self._tokens), 0

    def end(self) -> None:
        """Write the characters held back."""
        self._emit(self._text())

    def _text(self) -> str:
        return self._tokenizer.decode(self._tokens[self._start :], skip_special_tokens=True)

    def _emit(self, text: str) -> None:
        if len(text) > self._written:
            self._write(text[self._written :])
            self._written = len(text)
