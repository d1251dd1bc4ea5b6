"""Generates text with an exported encoder-decoder: the source once, then one step per token.

Keys and values of source and past tokens stay on the device between steps.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from typing import Any

import numpy as np
import onnxruntime as ort

from ..errors import ArgumentError
from ..sampling import Sampler
from .exported import Exported
from .growing_cache import PAST, PRESENT, GrowingCache
from .logits_processing import ProcessedChoice
from .logits_rules import LogitsRules
from .loop import Generation, checked_count, checked_room, chooser, run
from .preallocated_cache import POSITION, PreallocatedCache
from .prompts import token_id
from .text_stream import TextStream

ENCODER, DECODER = "encoder_model.onnx", "decoder_model.onnx"
MASK = "encoder_attention_mask"
OWN = ".decoder."  # in the names of the cache of own tokens


class Seq2SeqLM(Exported):
    """An encoder-decoder exported to a directory by ``export_seq2seq``, ready to generate text."""

    _main = DECODER

    def _load(self) -> None:
        self.encoder, self.decoder = self._open(ENCODER), self._open(DECODER)
        self.encoder_inputs = [value.name for value in self.encoder.get_inputs()]
        given = [value.name for value in self.decoder.get_inputs()]
        self.source_inputs = [n for n in given if n.startswith(PAST) and ".encoder." in n]
        self.static = POSITION in given  # whether the cache is preallocated
        self.masked = MASK in given  # whether the decoder is told of padding in the source
        logits = next(o for o in self.decoder.get_outputs() if o.name == "logits")
        self.vocabulary = int(logits.shape[-1])
        names = ("max_target_positions", "max_position_embeddings")
        limits = [self.config[name] for name in names if isinstance(self.config.get(name), int)]
        self.context_length = int(limits[0]) if limits else 2**31
        start = self.generation_config.get("decoder_start_token_id")
        start = self.config.get("decoder_start_token_id") if start is None else start
        self.start_token = start if isinstance(start, int) else None

    def generate(
        self,
        sources: str | Sequence[str],
        *,
        max_new_tokens: int = 256,
        prompt: str | Sequence[int] | None = None,
        sampler: Sampler | Callable[[np.ndarray], np.ndarray] | None = None,
        on_text: Callable[[str], None] | None = None,
    ) -> Generation:
        """Generate from one text, or from several as one batch.

        Args:
            sources: text or texts for the encoder.
            on_text: called with each new piece of text of the first source.

        The others are those of ``generate_from``.
        """
        texts = [sources] if isinstance(sources, str) else list(sources)
        tokens = self.tokenizer(texts, padding=True, return_tensors="np")
        stream = TextStream(self.tokenizer, on_text) if on_text else None
        result = self.generate_from(
            {name: tokens[name] for name in self.encoder_inputs},
            max_new_tokens=max_new_tokens,
            prompt=prompt,
            sampler=sampler,
            on_tokens=stream.put if stream else None,
        )
        if stream:
            stream.end()
        result.texts = [self.tokenizer.decode(t, skip_special_tokens=True) for t in result.tokens]
        return result

    def generate_from(
        self,
        inputs: Mapping[str, np.ndarray],
        *,
        max_new_tokens: int = 256,
        prompt: str | Sequence[int] | None = None,
        sampler: Sampler | Callable[[np.ndarray], np.ndarray] | None = None,
        on_tokens: Callable[[list[int | None]], None] | None = None,
    ) -> Generation:
        """Generate from the encoder's inputs, such as a processor's input_features.

        Args:
            inputs: by name: input_ids and attention_mask [B, P], or input_features.
            max_new_tokens: max number of tokens to generate for each row.
            prompt: what every row of the decoder starts with, as tokens or, through the tokenizer,
                as text such as "<|startoftranscript|><|en|><|transcribe|>"; default: the model's
                start token.
            sampler: chooses tokens; default: greedy. A Sampler runs on the device; a function gets
                logits [B, V] on the host and returns tokens [B].
            on_tokens: gets the new token of every row after each step, None for a finished row.

        Tokens that generation_config.json suppresses or forces are; its beams are not searched.
        Raises ArgumentError for wrong inputs, and a prompt that fills the decoder's context.
        """
        count = checked_count(max_new_tokens)
        arrays = self.checked_inputs(inputs)
        start = self._prompt(prompt)
        budget = min(count, checked_room(len(start), self.context_length, "decoder"))
        choose = chooser(Sampler() if sampler is None else sampler, lambda: self._sampling)
        rules = LogitsRules(self.generation_config, len(start), budget)
        rows = [start] * len(arrays[self.encoder_inputs[0]])
        with closing(_Stepper(self, arrays, rows, len(start) + budget)) as state:
            chosen = choose if rules.empty else ProcessedChoice([rules], choose)
            return run(state, chosen, rows, budget, self.stop_tokens, on_tokens)

    def encode(
        self, inputs: Mapping[str, np.ndarray]
    ) -> tuple[ort.OrtValue, dict[str, ort.OrtValue]]:
        """Run the encoder on arrays that ``checked_inputs`` returned.

        Returns last_hidden_state [B, S, H], and the keys and values of the source by the decoder's
        names of them, all on the device.
        """
        binding = self.encoder.io_binding()
        for name, array in inputs.items():
            binding.bind_cpu_input(name, array)
        for name in ("last_hidden_state", *(n.replace(PAST, PRESENT) for n in self.source_inputs)):
            binding.bind_output(name, *self.device)
        self.encoder.run_with_iobinding(binding)
        hidden, *values = binding.get_outputs()
        return hidden, dict(zip(self.source_inputs, values, strict=True))

    def new_cache(self, rows: int, length: int) -> GrowingCache | PreallocatedCache:
        """Return a cache without tokens for rows of at most ``length`` tokens."""
        if self.static:
            return PreallocatedCache(self.decoder, self.device, rows, length, OWN)
        return GrowingCache(self.decoder, self.device, rows, OWN)

    def checked_inputs(self, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Return the encoder's inputs as it takes them; ArgumentError for others."""
        if sorted(inputs) != sorted(self.encoder_inputs):
            raise ArgumentError(
                f"expected the encoder's inputs {', '.join(self.encoder_inputs)}, got "
                f"{', '.join(sorted(inputs)) or 'none'}"
            )
        arrays = {}
        for value in self.encoder.get_inputs():
            array = np.asarray(inputs[value.name])
            fixed = [n if isinstance(n, int) else None for n in value.shape]
            fits = array.ndim == len(fixed) and all(
                size == n if n is not None else size > 0
                for size, n in zip(array.shape, fixed, strict=True)
            )
            if not fits:
                raise ArgumentError(
                    f"expected {value.name} of shape {value.shape}, got {list(array.shape)}"
                )
            dtype, kinds = (np.int64, "iub") if value.type == "tensor(int64)" else (np.float32, "f")
            if array.dtype.kind not in kinds:
                raise ArgumentError(f"expected {value.name} of {dtype.__name__}, got {array.dtype}")
            arrays[value.name] = np.ascontiguousarray(array, dtype)
        shapes = {array.shape[0] for array in arrays.values()}
        if len(shapes) > 1:
            raise ArgumentError(f"expected inputs of as many rows, got {sorted(shapes)}")
        return arrays

    def _prompt(self, prompt: str | Sequence[int] | None) -> list[int]:
        if prompt is None and self.start_token is None:
            raise ArgumentError(
                f"{self.directory} names no decoder_start_token_id: expected a prompt"
            )
        if prompt is None:
            return [int(self.start_token or 0)]
        given: Any = prompt
        if isinstance(prompt, str):
            given = self.tokenizer.encode(prompt, add_special_tokens=False)
        try:
            tokens = [token_id(token) for token in given]
        except TypeError as error:
            raise ArgumentError(f"expected a prompt of token ids: {error}") from None
        if not tokens or not all(0 <= token < self.vocabulary for token in tokens):
            raise ArgumentError(
                f"expected a prompt of tokens from 0 to {self.vocabulary - 1}, got {tokens}"
            )
        return tokens


class _Stepper:
    """The state of one batch: keys and values of the source, and those of its own tokens."""

    def __init__(
        self,
        model: Seq2SeqLM,
        inputs: Mapping[str, np.ndarray],
        rows: list[list[int]],
        length: int,
    ) -> None:
        self._model = model
        self._inputs = inputs
        self._rows = rows
        # What the source gives to every step: its mask, and its keys and values.
        self._source: dict[str, np.ndarray | ort.OrtValue] = {}
        if model.masked:
            self._source[MASK] = inputs["attention_mask"]
        self._cache = model.new_cache(len(rows), length)

    def prefill(self) -> ort.OrtValue:
        _, values = self._model.encode(self._inputs)
        self._source.update(values)
        return self._step(np.array(self._rows, np.int64))

    def decode(self, tokens: np.ndarray) -> ort.OrtValue:
        return self._step(np.ascontiguousarray(tokens[:, None]))

    def close(self) -> None:
        self._source.clear()
        self._cache.clear()

    def _step(self, ids: np.ndarray) -> ort.OrtValue:
        return self._cache.step({"input_ids": ids, **self._source})
