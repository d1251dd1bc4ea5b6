"""Generates text with an exported model: prefill, then one step per token."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from contextlib import closing

import numpy as np

from ..context_length import context_length
from ..errors import ArgumentError
from ..sampling import Sampler
from .decoding import StepModel
from .exported import Exported
from .loop import Generation, checked_count, chooser, run
from .text_stream import TextStream

_MODEL = "model.onnx"


class CausalLM(Exported):
    """A language model exported to a directory by ``export_causal_lm``, ready to generate text."""

    _main = _MODEL

    def _load(self) -> None:
        self._model = StepModel(
            str(self.directory / _MODEL),
            self._session_options,
            self._providers,
            static=self._json("export_report.json").get("cache") == "static",
        )
        self.session = self._model.session
        self.cache = self._model.cache
        self.context_length = context_length(self.config) or 2**31

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
        count = checked_count(max_new_tokens)
        rows = self._checked(rows)
        longest = max(len(row) for row in rows)
        if longest >= self.context_length:
            raise ArgumentError(
                f"the prompt has {longest} tokens, the model's context {self.context_length}"
            )
        budget = min(count, self.context_length - longest)
        choose = chooser(sampler, lambda: self._sampling)
        with closing(self._model.stepper(rows, longest + budget)) as state:
            return run(state, choose, rows, budget, self.stop_tokens, on_tokens)

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
