"""Generates text with an exported model: prefill, then one step per token."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from typing import Any

import numpy as np
import onnxruntime as ort

from ..context_length import context_length
from ..errors import ArgumentError
from ..sampling import Sampler
from .adapters import Adapters
from .decoding import StepModel
from .exported import Exported
from .logits_processing import ProcessedChoice, Processor, UserProcessor
from .loop import Generation, checked_count, checked_room, chooser, run
from .options import GenerationOptions
from .penalties import Penalties
from .prompt_lookup import LookupStepper
from .prompts import checked_rows, token_rows
from .row_text import RowText
from .streamed import Streamed

_MODEL = "model.onnx"
_PLAIN = GenerationOptions()


class CausalLM(Exported):
    """A language model exported to a directory by ``export_causal_lm``, ready to generate text."""

    _main = _MODEL

    def _load(self) -> None:
        self.step_model = StepModel(
            str(self.directory / _MODEL),
            self._session_options,
            self.providers,
            static=self.report.get("cache") == "static",
        )
        self.session = self.step_model.session
        self._adapters = Adapters(self.directory, self.session, self.device)
        self.cache = self.step_model.cache
        self.context_length = context_length(self.config) or 2**31

    def encode(self, prompt: str, *, chat: bool = True) -> list[int]:
        """Turn a prompt into tokens, through the chat template if it exists and ``chat`` is set.

        Raises ArgumentError for a template that cannot be run.
        """
        if chat and getattr(self.tokenizer, "chat_template", None):
            messages = [{"role": "user", "content": prompt}]
            try:
                text = self.tokenizer.apply_chat_template(
                    messages, add_generation_prompt=True, tokenize=False
                )
            except Exception as error:  # a template is code, and jinja2 need not be installed
                if type(error).__module__ != "jinja2.exceptions":
                    raise
                raise ArgumentError(
                    f"expected a chat template that jinja2 runs, or chat=False (--raw): {error}"
                ) from error
            return list(self.tokenizer.encode(text, add_special_tokens=False))
        return list(self.tokenizer.encode(prompt))

    def generate(
        self,
        prompts: Any = None,
        *,
        input_ids: Any = None,
        attention_mask: Any = None,
        max_new_tokens: int = 256,
        sampler: Sampler | Callable[[np.ndarray], np.ndarray] | None = None,
        chat: bool = True,
        on_text: Callable[[str], None] | None = None,
        streamer: Any = None,
        adapter: str | None = None,
        **options: Any,
    ) -> Generation:
        """Continue one prompt, or several of any lengths as one batch.

        Args:
            prompts: text or texts; token ids [S], or rows of them, as lists, NumPy arrays or torch
                tensors; or what a tokenizer returns. Text becomes tokens by ``encode``.
            input_ids: token ids, by the name that tokenizers give them.
            attention_mask: of the shape of the token ids, 0 for padding, on any side.
            max_new_tokens: max number of tokens to generate per prompt.
            sampler: instead of the sampling options: a Sampler, which runs on the device, or a
                function that gets logits [B, V] on the host and returns tokens [B].
            chat: put each text through the tokenizer's chat template, if it has one.
            on_text: called with each new piece of text of the first prompt.
            streamer: of transformers: gets the prompts [B, S], then the new tokens [B] of each
                step.
            adapter: name of a LoRA adapter that was exported with the model.
            options: those of ``GenerationOptions``; default: greedy.

        Returns:
            Continuations in the order of the prompts, each as often as num_return_sequences says.
            Their ``texts`` are empty if the directory has no tokenizer.

        Raises ArgumentError for prompts and options that are wrong or not supported, and for a
        prompt that fills the model's context.
        """
        if (prompts is None) == (input_ids is None):
            raise ArgumentError("expected either prompts or input_ids")
        # A sampler decides by itself: nothing is taken from generation_config.json for it.
        config = self.generation_config if sampler is None else {}
        chosen = GenerationOptions.of(options, config, self.stop_tokens)
        if options.get("eos_token_id") is not None:  # the model's own may be wrong
            self._check_stop_tokens(chosen.stop_tokens)
        if sampler is not None and chosen.do_sample:
            raise ArgumentError("expected either a sampler or do_sample, got both")
        given = prompts if input_ids is None else input_ids
        rows = token_rows(given, attention_mask, lambda text: self.encode(text, chat=chat))
        rows = checked_rows(rows, self.step_model.vocabulary)
        rows = [row for row in rows for _ in range(chosen.num_return_sequences)]

        texts = self._row_texts(len(rows), chosen.strings, on_text)
        choose = chooser(chosen.sampler() if sampler is None else sampler, lambda: self._sampling)
        if processors := self._processors(chosen, rows):
            choose = ProcessedChoice(processors, choose)
        with Streamed(streamer, rows, self._pad(chosen.stop_tokens)) as streamed:
            result = self._run(
                rows,
                max_new_tokens,
                choose,
                chosen.stop_tokens,
                on_chosen=streamed.put,
                adapter=adapter,
                options=chosen,
                ended=lambda row, token: row in texts and texts[row].put(token),
            )
        for text in texts.values():
            text.end()
        if chosen.strings:
            result.texts = [texts[row].text for row in range(len(rows))]
        elif self.has_tokenizer:
            decode = self.tokenizer.decode
            result.texts = [decode(tokens, skip_special_tokens=True) for tokens in result.tokens]
        return result

    def generate_tokens(
        self,
        rows: Sequence[Sequence[int]],
        *,
        max_new_tokens: int = 256,
        sampler: Sampler | Callable[[np.ndarray], np.ndarray] | None = None,
        on_tokens: Callable[[list[int | None]], None] | None = None,
        adapter: str | None = None,
    ) -> Generation:
        """Continue rows of token ids, of any lengths, as one batch.

        ``on_tokens`` gets the new token of every row after each step, None for a finished row.
        Raises ArgumentError for an empty row, a row that fills the model's context, tokens outside
        the vocabulary, in ``rows`` or returned by ``sampler``, and an adapter that there is not.
        """
        choose = chooser(Sampler() if sampler is None else sampler, lambda: self._sampling)
        rows = checked_rows(rows, self.step_model.vocabulary)
        return self._run(rows, max_new_tokens, choose, self.stop_tokens, on_tokens, adapter=adapter)

    def _run(
        self,
        rows: list[list[int]],
        max_new_tokens: int,
        choose: Callable[[ort.OrtValue], np.ndarray],
        stop_tokens: frozenset[int],
        on_tokens: Callable[[list[int | None]], None] | None = None,
        adapter: str | None = None,
        options: GenerationOptions = _PLAIN,
        **hooks: Any,
    ) -> Generation:
        """Continue rows that are checked; ``hooks`` are those of ``run``."""
        count = checked_count(max_new_tokens)
        longest = max(len(row) for row in rows)
        budget = min(count, checked_room(longest, self.context_length))
        length, matrices = longest + budget, self._adapters.named(adapter)
        if options.prompt_lookup_num_tokens is None:
            with closing(self.step_model.stepper(rows, length, matrices)) as state:
                return run(state, choose, rows, budget, stop_tokens, on_tokens, **hooks)
        ahead = LookupStepper(
            self.step_model.scoring_stepper(rows, length, matrices),
            rows,
            length=length,
            count=options.prompt_lookup_num_tokens,
            longest=options.max_matching_ngram_size,
            stop_tokens=stop_tokens,
        )
        with closing(ahead):
            result = run(ahead, choose, rows, budget, stop_tokens, on_tokens, **hooks)
        result.guessed_tokens, result.accepted_tokens = ahead.guessed, ahead.accepted
        return result

    def _check_stop_tokens(self, tokens: frozenset[int]) -> None:
        """Raise ArgumentError for a token that never comes."""
        last = self.step_model.vocabulary - 1
        for token in sorted(tokens):
            if not 0 <= token <= last:
                raise ArgumentError(
                    f"eos_token_id expected tokens from 0 to {last}, got {token}: use None where "
                    "no token is to end a row"
                )

    def _row_texts(
        self, rows: int, stop_strings: list[str], on_text: Callable[[str], None] | None
    ) -> dict[int, RowText]:
        """Return the rows whose text is needed at each step: for a stop string, or a reader."""
        count = rows if stop_strings else int(on_text is not None)
        return {
            row: RowText(self.tokenizer, stop_strings, None if row else on_text)
            for row in range(count)
        }

    def _processors(self, options: GenerationOptions, rows: list[list[int]]) -> list[Processor]:
        """Return what changes logits on the host, in its order."""
        processors: list[Processor] = []
        if penalties := options.penalties:
            processors.append(Penalties(rows, self.step_model.vocabulary, **penalties))
        pad = self._pad(options.stop_tokens)
        processors += [UserProcessor(function, rows, pad) for function in options.processors]
        return processors

    def _pad(self, stop_tokens: frozenset[int]) -> int:
        """Return the token before shorter prompts in what a caller's functions get."""
        pad = self.generation_config.get("pad_token_id", self.config.get("pad_token_id"))
        return pad if isinstance(pad, int) else min(stop_tokens, default=0)
