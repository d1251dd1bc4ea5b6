"""The engines that the language-model benchmark compares, each behind the same four calls.

``greedy(ids, steps)`` gives tokens (compared before anything is timed); ``prefill(n)`` and
``decode(past, steps)`` give seconds. Set-up inside a call is not part of the seconds it returns.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np


def prompt(length: int, vocabulary: int) -> np.ndarray:
    """A fixed pseudo-random prompt, [1, length] int64, the same for every engine."""
    return np.random.default_rng(0).integers(5, vocabulary, (1, length), dtype=np.int64)


class OrtEngine:
    """An exported model with a growing cache, which stays on its device through IOBinding."""

    def __init__(self, directory: str, provider: str, threads: int) -> None:
        import json

        import onnxruntime as ort

        if provider == "NPUExecutionProvider":
            import onnxruntime_npu  # noqa: F401  (registers the provider)
        self.ort = ort
        self.device = "npu" if provider == "NPUExecutionProvider" else "cpu"
        options = ort.SessionOptions()
        options.intra_op_num_threads = threads
        self.session = ort.InferenceSession(
            str(Path(directory) / "model.onnx"), options, providers=[provider]
        )
        used = self.session.get_providers()[0]
        if used != provider:
            raise RuntimeError(f"expected the session on {provider}, got {used}")
        config = json.loads((Path(directory) / "genai_config.json").read_text())["model"]
        self.vocabulary = config["vocab_size"]
        self.past = [i for i in self.session.get_inputs() if i.name.startswith("past_key_values.")]
        self.present = [i.name.replace("past_key_values.", "present.") for i in self.past]
        self.has_positions = any(i.name == "position_ids" for i in self.session.get_inputs())

    def _empty_cache(self) -> list[Any]:
        kinds = {"tensor(float)": 1, "tensor(float16)": 10, "tensor(bfloat16)": 16}
        caches = []
        for value in self.past:
            shape = [1, value.shape[1], 0, value.shape[3]]
            caches.append(
                self.ort.OrtValue.ortvalue_from_shape_and_type(
                    shape, kinds[value.type], self.device, 0
                )
                if self.device == "cpu"
                else self.ort.OrtValue.ortvalue_from_shape_and_type(
                    shape, kinds[value.type], "npu", 0, 0
                )
            )
        return caches

    def _step(self, ids: np.ndarray, past: int, caches: list[Any]) -> tuple[np.ndarray, list[Any]]:
        binding = self.session.io_binding()
        total = past + ids.shape[1]
        binding.bind_cpu_input("input_ids", ids)
        binding.bind_cpu_input("attention_mask", np.ones((1, total), np.int64))
        if self.has_positions:
            binding.bind_cpu_input("position_ids", np.arange(past, total, dtype=np.int64)[None])
        for value, cache in zip(self.past, caches, strict=True):
            binding.bind_ortvalue_input(value.name, cache)
        binding.bind_output("logits", "cpu")
        for name in self.present:
            binding.bind_output(name, self.device, 0)
        self.session.run_with_iobinding(binding)
        outputs = binding.get_outputs()
        logits = outputs[0].numpy()
        return logits[0, -1].astype(np.float32), outputs[1:]

    def greedy(self, ids: np.ndarray, steps: int) -> list[int]:
        """Greedy continuation of a prompt."""
        logits, caches = self._step(ids, 0, self._empty_cache())
        past, tokens = ids.shape[1], [int(logits.argmax())]
        while len(tokens) < steps:
            logits, caches = self._step(np.array([[tokens[-1]]], np.int64), past, caches)
            past += 1
            tokens.append(int(logits.argmax()))
        return tokens

    def prefill(self, length: int) -> float:
        """Seconds from a prompt to its last logits."""
        ids, caches = prompt(length, self.vocabulary), self._empty_cache()
        start = time.perf_counter()
        self._step(ids, 0, caches)
        return time.perf_counter() - start

    def decode(self, past: int, steps: int) -> float:
        """Seconds for `steps` greedy tokens after `past` cached ones."""
        logits, caches = self._step(prompt(past, self.vocabulary), 0, self._empty_cache())
        start = time.perf_counter()
        for done in range(steps):
            logits, caches = self._step(
                np.array([[logits.argmax()]], np.int64), past + done, caches
            )
        return time.perf_counter() - start


class TorchEngine:
    """transformers' own model, eagerly, with its dynamic cache; logits of the last token only."""

    def __init__(self, weights: str, dtype: str, threads: int) -> None:
        import torch
        from transformers import AutoModelForCausalLM

        torch.set_num_threads(threads)
        self.torch = torch
        path = Path(weights)
        # Read in float32: asked for another type, transformers keeps GGUF weights packed and
        # unpacks them in every product, which would be no fair peer.
        model = AutoModelForCausalLM.from_pretrained(
            path.parent, gguf_file=path.name, dtype=torch.float32
        )
        self.model = model.to(getattr(torch, dtype)).eval()
        self.vocabulary = self.model.config.vocab_size

    def _step(self, ids: Any, cache: Any) -> tuple[Any, Any]:
        out = self.model(input_ids=ids, past_key_values=cache, use_cache=True, logits_to_keep=1)
        return out.logits[0, -1], out.past_key_values

    def greedy(self, ids: np.ndarray, steps: int) -> list[int]:
        """Greedy continuation of a prompt."""
        with self.torch.inference_mode():
            logits, cache = self._step(self.torch.from_numpy(ids), None)
            tokens = [int(logits.argmax())]
            while len(tokens) < steps:
                logits, cache = self._step(self.torch.tensor([[tokens[-1]]]), cache)
                tokens.append(int(logits.argmax()))
        return tokens

    def prefill(self, length: int) -> float:
        """Seconds from a prompt to its last logits."""
        ids = self.torch.from_numpy(prompt(length, self.vocabulary))
        with self.torch.inference_mode():
            start = time.perf_counter()
            self._step(ids, None)
            return time.perf_counter() - start

    def decode(self, past: int, steps: int) -> float:
        """Seconds for `steps` greedy tokens after `past` cached ones."""
        with self.torch.inference_mode():
            logits, cache = self._step(self.torch.from_numpy(prompt(past, self.vocabulary)), None)
            start = time.perf_counter()
            for _ in range(steps):
                logits, cache = self._step(logits.argmax().view(1, 1), cache)
            return time.perf_counter() - start
