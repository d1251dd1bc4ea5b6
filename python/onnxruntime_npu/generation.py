"""Generates text with an exported model: prefill, then one step per token.

The cache stays on the device between steps: with a dynamic cache the outputs of one step are bound
as inputs of the next, with a static cache the same buffers are bound as both.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort

from .errors import ArgumentError
from .registration import get_ep_name
from .sampling import Sampler

_MODEL = "model.onnx"
_CACHE_KEY = "onnxruntime_npu.cache"
# ONNX element types by the names that sessions give them: numpy has no bfloat16 to name it by.
_ELEMENT_TYPES = {"tensor(float)": 1, "tensor(float16)": 10, "tensor(bfloat16)": 16}


@dataclass
class Generation:
    """Generated tokens of every row, without the stop token, and how long they took."""

    tokens: list[list[int]]
    finish_reasons: list[str]  # "stop" or "length"
    prompt_tokens: int
    prefill_seconds: float
    decode_seconds: float
    decode_steps: int
    texts: list[str] = field(default_factory=list)

    @property
    def tokens_per_second(self) -> float:
        """Decoded tokens per second over all rows, the first token left to prefill."""
        rows = len(self.tokens)
        return rows * self.decode_steps / self.decode_seconds if self.decode_seconds > 0 else 0.0


class CausalLM:
    """An exported directory, ready to generate."""

    def __init__(
        self,
        directory: str | Path,
        *,
        providers: Sequence[Any] | None = None,
        session_options: ort.SessionOptions | None = None,
    ) -> None:
        """Open the model.

        Args:
            directory: what ``export_causal_lm`` wrote.
            providers: as InferenceSession takes them; default: the NPU.
            session_options: as InferenceSession takes them; default: log errors only.

        Raises ArgumentError for a directory without a model or a provider that is not there.
        """
        self.directory = Path(directory)
        if not (self.directory / _MODEL).is_file():
            raise ArgumentError(f"{self.directory} holds no {_MODEL}: export a model to it first")
        providers = list(providers or [get_ep_name()])
        names = [p if isinstance(p, str) else p[0] for p in providers]
        available = ort.get_available_providers()
        for name in names:
            # onnxruntime itself would go on without it.
            if name not in available:
                raise ArgumentError(f"provider {name!r} is not available: {', '.join(available)}")
        if session_options is None:
            session_options = ort.SessionOptions()
            # onnxruntime warns that shape arithmetic stays on the CPU; `assignment` lists it.
            session_options.log_severity_level = 3
        self.session = ort.InferenceSession(
            str(self.directory / _MODEL), session_options, providers=providers
        )
        self._device = "npu" if get_ep_name() in names else "cpu"
        self._inputs = {i.name: i for i in self.session.get_inputs()}
        cache = self.session.get_modelmeta().custom_metadata_map.get(_CACHE_KEY)
        if cache not in _STEPPERS:
            raise ArgumentError(f"{self.directory / _MODEL} was not made by export_causal_lm")
        self.cache = cache
        self._past = [name for name in self._inputs if name.startswith("past_key_values.")]
        self._present = [name.replace("past_key_values", "present") for name in self._past]
        config = self._json("config.json")
        self.context_length = int(config.get("max_position_embeddings") or 2**31)
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
        """Turn a prompt into tokens, through the chat template when there is one and ``chat``."""
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
        sampler: Sampler | None = None,
        chat: bool = True,
        on_text: Callable[[str], None] | None = None,
    ) -> Generation:
        """Continue one prompt, or several as one batch.

        Args:
            prompts: text or texts.
            max_new_tokens: most tokens to generate per prompt.
            sampler: how tokens are chosen; default: greedily.
            chat: put each prompt through the tokenizer's chat template, if it has one.
            on_text: called with each piece of text of the first prompt as it comes.
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
        sampler: Sampler | None = None,
        on_tokens: Callable[[list[int | None]], None] | None = None,
    ) -> Generation:
        """Continue rows of token ids, of any lengths, as one batch.

        ``on_tokens`` gets the new token of every row after each step, None for a finished row.
        Raises ArgumentError for an empty row or one that fills the model's context.
        """
        sampler = sampler or Sampler()
        if max_new_tokens < 1:
            raise ArgumentError(f"expected max_new_tokens >= 1, got {max_new_tokens}")
        if not rows or not all(len(row) for row in rows):
            raise ArgumentError("expected at least one token in every prompt")
        longest = max(len(row) for row in rows)
        if longest >= self.context_length:
            raise ArgumentError(
                f"the prompt has {longest} tokens, the model's context {self.context_length}"
            )
        budget = min(max_new_tokens, self.context_length - longest)
        state = _STEPPERS[self.cache](self, [list(row) for row in rows], longest + budget)
        generated: list[list[int]] = [[] for _ in rows]
        reasons = ["length"] * len(rows)
        alive = [True] * len(rows)
        started = time.perf_counter()
        logits = state.prefill()
        prefill_done = time.perf_counter()
        steps = 0
        while True:
            chosen = sampler(logits)
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

    # ---- used by the steppers -----------------------------------------------------------------

    def new_cache(self, batch: int, length: int) -> list[ort.OrtValue]:
        """Return cache buffers [batch, Nkv, length, D] on the device, their content undefined."""
        device = self._device if length else "cpu"  # an empty tensor needs no device memory
        buffers = []
        for name in self._past:
            _, heads, _, size = self._inputs[name].shape
            element_type = _ELEMENT_TYPES[self._inputs[name].type]
            buffers.append(
                ort.OrtValue.ortvalue_from_shape_and_type(
                    [batch, heads, length, size], element_type, device, 0
                )
            )
        return buffers

    def run(
        self,
        host_inputs: dict[str, np.ndarray],
        past: list[ort.OrtValue],
        present: list[ort.OrtValue] | None,
    ) -> tuple[np.ndarray, list[ort.OrtValue]]:
        """Run one step; ``present`` None lets the session allocate the new cache."""
        binding = self.session.io_binding()
        for name, value in host_inputs.items():
            binding.bind_cpu_input(name, np.ascontiguousarray(value))
        for name, value in zip(self._past, past, strict=True):
            binding.bind_ortvalue_input(name, value)
        binding.bind_output("logits", "cpu")
        for i, name in enumerate(self._present):
            if present is None:
                binding.bind_output(name, self._device, 0)
            else:
                binding.bind_ortvalue_output(name, present[i])
        self.session.run_with_iobinding(binding)
        outputs = binding.get_outputs()
        return outputs[0].numpy()[:, -1], outputs[1:]


class _DynamicStepper:
    """Prompts padded on the left; the cache grows by one token per step."""

    def __init__(self, model: CausalLM, rows: list[list[int]], capacity: int) -> None:
        del capacity  # the cache grows as it must
        self._model = model
        longest = max(map(len, rows))
        self._ids = np.zeros((len(rows), longest), np.int64)
        self._mask = np.zeros((len(rows), longest), np.int64)
        for i, row in enumerate(rows):
            self._ids[i, longest - len(row) :] = row
            self._mask[i, longest - len(row) :] = 1
        self._cache = model.new_cache(len(rows), 0)

    def prefill(self) -> np.ndarray:
        """Return the logits after the prompts, [B, V]."""
        return self._step(self._ids)

    def decode(self, tokens: np.ndarray) -> np.ndarray:
        """Add one token per row, [B], and return the logits after it, [B, V]."""
        self._mask = np.pad(self._mask, ((0, 0), (0, 1)), constant_values=1)
        return self._step(tokens[:, None])

    def _step(self, ids: np.ndarray) -> np.ndarray:
        positions = np.maximum(self._mask.cumsum(axis=1) - 1, 0)[:, -ids.shape[1] :]
        inputs = {"input_ids": ids, "attention_mask": self._mask, "position_ids": positions}
        logits, self._cache = self._model.run(inputs, self._cache, None)
        return logits


class _StaticStepper:
    """Prompts padded on the right; the cache is written in place."""

    def __init__(self, model: CausalLM, rows: list[list[int]], capacity: int) -> None:
        self._model = model
        self._prompt_lengths = np.array([len(row) for row in rows], np.int64)
        self._ids = np.zeros((len(rows), max(map(len, rows))), np.int64)
        for i, row in enumerate(rows):
            self._ids[i, : len(row)] = row
        self._total_lengths = np.zeros(len(rows), np.int64)
        self._cache = model.new_cache(len(rows), capacity)

    def prefill(self) -> np.ndarray:
        """Return the logits after the prompts, [B, V]."""
        return self._step(self._ids, self._prompt_lengths)

    def decode(self, tokens: np.ndarray) -> np.ndarray:
        """Add one token per row, [B], and return the logits after it, [B, V]."""
        return self._step(tokens[:, None], np.ones(len(tokens), np.int64))

    def _step(self, ids: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        self._total_lengths = self._total_lengths + lengths
        inputs = {
            "input_ids": ids,
            "sequence_lengths": lengths,
            "total_lengths": self._total_lengths,
        }
        return self._model.run(inputs, self._cache, self._cache)[0]


_STEPPERS: dict[str | None, Callable[..., Any]] = {
    "dynamic": _DynamicStepper,
    "static": _StaticStepper,
}


class TextStream:
    """Turns tokens into text piece by piece, holding back characters that are not whole yet."""

    def __init__(self, tokenizer: Any, write: Callable[[str], None]) -> None:
        self._tokenizer = tokenizer
        self._write = write
        self._tokens: list[int] = []
        self._start = 0  # tokens before it are written and no longer looked at
        self._written = 0  # characters of self._tokens[self._start:] that are written

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
        """Write what was held back."""
        self._emit(self._text())

    def _text(self) -> str:
        return self._tokenizer.decode(self._tokens[self._start :], skip_special_tokens=True)

    def _emit(self, text: str) -> None:
        if len(text) > self._written:
            self._write(text[self._written :])
            self._written = len(text)
