"""Chooses the next token of each row from its logits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from numbers import Integral, Real
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort

from .errors import ArgumentError
from .is_number import is_number

_SAMPLER = "sampler.onnx"
SMALLEST = 2.0**-126  # of normal float32 numbers: a smaller temperature is a division by 0


@dataclass
class Sampler:
    """Greedy choice, or sampling with temperature, then top-k, then top-p, then min-p.

    ``temperature`` 0 is greedy. ``top_k`` 0, ``top_p`` 1 and ``min_p`` 0 leave all tokens in;
    ``min_p`` leaves those that are at least that times as likely as the most likely one. Equal
    seeds give equal tokens.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int | None = None
    min_p: float = 0.0
    _generator: np.random.Generator = field(init=False, repr=False)

    def __post_init__(self) -> None:
        for name, kind, allowed, expected in (
            ("temperature", Real, lambda v: np.isfinite(v) and v >= 0, "a temperature >= 0"),
            ("top_k", Integral, lambda v: v >= 0, "a whole number from 0 as top_k"),
            ("top_p", Real, lambda v: 0 < v <= 1, "0 < top_p <= 1"),
            ("min_p", Real, lambda v: 0 <= v <= 1, "0 <= min_p <= 1"),
            ("seed", Integral, lambda v: v >= 0, "a whole number from 0 as seed"),
        ):
            value = getattr(self, name)
            if name == "seed" and value is None:
                continue
            if not is_number(value, kind) or not allowed(value):
                raise ArgumentError(f"expected {expected}, got {value!r}")
        self._generator = np.random.default_rng(self.seed)

    @property
    def greedy(self) -> bool:
        """Whether the most likely token is chosen."""
        return self.temperature < SMALLEST

    def settings(self, rows: int, vocabulary: int) -> dict[str, np.ndarray]:
        """Return the inputs of ``sampler.onnx`` that are constant for a batch."""
        top_k = min(self.top_k, vocabulary) or vocabulary
        return {
            "temperature": np.array([self.temperature], np.float32),
            "top_k": np.full(rows, top_k, np.int32),
            "top_p": np.full(rows, self.top_p, np.float32),
            "min_p": np.array([self.min_p], np.float32),
        }

    def draw(self, rows: int) -> np.ndarray:
        """Return ``uniform`` of ``sampler.onnx``, [rows, 1]: new random numbers at each call."""
        # Below 1 by more than the float32 rounding error, so that the target selects some token.
        return (self._generator.random((rows, 1)) * (1 - 1e-6)).astype(np.float32)


def has_sampler(directory: Path) -> bool:
    """Whether an export has a sampling graph."""
    return (directory / _SAMPLER).is_file()


def open_sampler(directory: Path, providers: Sequence[Any]) -> ort.InferenceSession:
    """Open an export's sampling graph; ArgumentError for an export without one."""
    path = directory / _SAMPLER
    if not has_sampler(directory):
        raise ArgumentError(
            f"{directory} holds no {_SAMPLER}: export the model again, or choose greedily"
        )
    options = ort.SessionOptions()
    options.log_severity_level = 3
    return ort.InferenceSession(str(path), options, providers=list(providers))


class Chooser:
    """Applies a sampler to logits [rows, S, V] float32 in place; only the last position is used."""

    def __init__(self, sampler: Sampler, session: ort.InferenceSession | None = None) -> None:
        """Serve one batch; ``session`` is the result of ``open_sampler``, not needed for greedy."""
        self._sampler = sampler
        self._host = np.empty((0, 0, 0), np.float32)
        self._host_value: ort.OrtValue | None = None  # over the same memory
        self._bound: tuple[int, int] | None = None
        if not sampler.greedy:
            assert session is not None
            self._session = session
            self._binding = session.io_binding()
            self._inputs = {value.name for value in session.get_inputs()}
            if sampler.min_p and "min_p" not in self._inputs:
                raise ArgumentError(
                    f"min_p expected a {_SAMPLER} with this input: export the model again"
                )

    def __call__(self, logits: ort.OrtValue) -> np.ndarray:
        """Return the token of each row, int64 [rows]."""
        if self._sampler.greedy:
            return self.to_host(logits)[:, -1].argmax(axis=-1)
        rows, _, vocabulary = logits.shape()
        if self._bound != (rows, vocabulary):
            self._bound = (rows, vocabulary)
            for name, value in self._sampler.settings(rows, vocabulary).items():
                if name in self._inputs:  # exports before min_p have a sampler without
                    self._binding.bind_cpu_input(name, value)
            self._binding.bind_output("tokens", "cpu")
        self._binding.bind_ortvalue_input("logits", logits)
        self._binding.bind_cpu_input("uniform", self._sampler.draw(rows))
        self._session.run_with_iobinding(self._binding)
        return self._binding.get_outputs()[0].numpy()[:, 0]

    def to_host(self, logits: ort.OrtValue) -> np.ndarray:
        """Return logits as an array that the next call may write to."""
        if logits.device_name() == "cpu":
            return logits.numpy()
        # One array for all steps, wrapped once: faulting in new pages takes longer than the copy.
        if list(self._host.shape) != logits.shape():
            self._host = np.empty(logits.shape(), np.float32)
            self._host_value = ort.OrtValue.ortvalue_from_numpy(self._host)
        ort.copy_tensors([logits], [self._host_value])
        return self._host
