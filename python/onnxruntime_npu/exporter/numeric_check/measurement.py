"""Runs a written file over the passages of a check and compares it with the eager model."""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import Any

import numpy as np
from onnxruntime.capi import onnxruntime_pybind11_state as C

from ...generation import CausalLM
from ...session.provider_library import get_ep_name
from ..report import ExportReport
from .expectation import Expectation, expected_departure
from .reference import Reference

_CPU = "CPUExecutionProvider"  # by function bodies
_NO_KERNEL = C.NotImplemented
_TINY = float(np.finfo(np.float32).tiny)


def check_file(
    directory: Path, reference: Reference, report: ExportReport, layers: int
) -> tuple[dict[str, Any], list[str]]:
    """Compare the model in a directory with the eager model, on the NPU and on the CPU.

    Args:
        directory: of the written file, with export_report.json.
        reference: results of the eager model.
        report: of the export, for what is to be expected.
        layers: decoder layers.

    Returns the report's entry and a line for each failure. A provider that cannot run the file is
    one, but for bfloat16 on the CPU; nothing is raised.
    """
    passages, expected = reference.passages, expected_departure(report, layers)
    entry: dict[str, Any] = {
        "tokens": passages.source,
        "is_text": passages.is_text,
        "scored": int(passages.following.size),
        "greedy_tokens": int(passages.following.shape[1]),
        "eager_perplexity": _perplexity(reference.losses),
        "expected": expected.as_report(),
        "providers": {},
    }
    failures = []
    for provider in (get_ep_name(), _CPU):
        started = time.monotonic()
        try:
            run = _Run(reference)
            model = CausalLM(directory, providers=[provider])
            model.stop_tokens = frozenset()  # every row gets all its tokens
            prompts = [*passages.prompts, *passages.open_prompts]
            model.generate_tokens(
                prompts, max_new_tokens=passages.following.shape[1], sampler=run.choose
            )
        except Exception as error:  # of any session: the file is written, and this is said of it
            reason = " ".join(str(error).split()) or type(error).__name__
            if (provider, report.dtype) == (_CPU, "bfloat16") and isinstance(error, _NO_KERNEL):
                # A limit of onnxruntime, not of the file.
                entry["providers"][provider] = {"not_run": f"onnxruntime has no kernel: {reason}"}
                continue
            entry["providers"][provider] = {"error": reason}
            failures.append(f"{provider} cannot run the file: {reason}")
            continue
        found, wrong = run.results(expected)
        found["seconds"] = round(time.monotonic() - started, 1)
        entry["providers"][provider] = found
        failures += [f"{provider}: {text}" for text in wrong]
    return entry, failures


class _Run:
    """A sampler that follows the text, and in open rows its own best token, and compares."""

    def __init__(self, reference: Reference) -> None:
        self._reference = reference
        self._step = 0
        self._finite = True
        self._losses: list[np.ndarray] = []
        self._best: list[np.ndarray] = []
        self._greedy: list[np.ndarray] = []
        self._differences: list[np.ndarray] = []

    def choose(self, logits: np.ndarray) -> np.ndarray:
        """Take the logits [rows + open rows, V] of a step; return the next token of each row."""
        reference, step = self._reference, self._step
        following = reference.passages.following[:, step]
        scores = np.asarray(logits, np.float32)
        self._finite = self._finite and bool(np.isfinite(scores).all())
        best = scores.argmax(-1)
        of_text, of_open = best[: len(following)], best[len(following) :]
        self._losses.append(_losses(scores[: len(following)], following))
        self._best.append(of_text)
        self._greedy.append(of_open)
        if step in reference.sampled:
            expected = reference.logits[:, reference.sampled.index(step)]
            self._differences.append(scores[: len(following)] - expected)
        self._step += 1
        return np.concatenate([following, of_open])

    def results(self, expected: Expectation) -> tuple[dict[str, Any], list[str]]:
        """Return the measured values, and a line for each that is not as expected."""
        if not self._finite:
            wrong = "some logits are infinite or NaN"
            return {"error": wrong}, [wrong]
        reference = self._reference
        differences = np.stack(self._differences, 1)
        spread = reference.logits - reference.logits.mean(-1, keepdims=True)
        largest = float(np.abs(differences).max())
        error = _root_mean_square(differences) / max(_root_mean_square(spread), _TINY)
        rise = math.expm1(np.stack(self._losses, 1).mean() - reference.losses.mean())
        same_greedy = self._same_greedy_tokens()
        found = {
            "max_error": largest,
            "mean_error": float(np.abs(differences).mean()),
            "relative_error": error,
            "perplexity": _perplexity(np.stack(self._losses, 1)),
            "perplexity_rise": rise,
            "same_best_tokens": int((np.stack(self._best, 1) == reference.best).sum()),
            "same_greedy_tokens": same_greedy,
        }
        failures = []
        if error > expected.logits:
            failures.append(
                f"expected logits within {expected.logits:.2g} of their spread "
                f"({expected.reason}), got {error:.2g}"
            )
        if reference.passages.is_text and rise > expected.perplexity:
            failures.append(
                f"expected a perplexity at most {expected.perplexity:.1%} above that of the eager "
                f"model ({expected.reason}), got {rise:.1%}"
            )
        for row, same in enumerate(same_greedy):
            # Both of two logits may err, by the largest error each.
            if same < self._step and reference.leads[row, same] > 2 * largest:
                failures.append(
                    f"expected the eager model's token {same} of greedy continuation {row}, which "
                    f"leads by {reference.leads[row, same]:.2g}, with logits that differ by "
                    f"{largest:.2g} at most; got another"
                )
        return found, failures

    def _same_greedy_tokens(self) -> list[int]:
        """Return how many tokens of each open row are those of the eager model, from the first."""
        same = np.stack(self._greedy, 1) == self._reference.greedy
        return [int(n) for n in np.cumprod(same, 1).sum(1)]


def _losses(scores: np.ndarray, targets: np.ndarray) -> np.ndarray:
    """Return -log p of the targets [rows] under logits [rows, V]."""
    shifted = scores.astype(np.float64) - scores.max(-1, keepdims=True)
    of_target = np.take_along_axis(shifted, targets[:, None], -1)[:, 0]
    return np.log(np.exp(shifted).sum(-1)) - of_target


def _perplexity(losses: np.ndarray) -> float:
    return float(np.exp(losses.mean(dtype=np.float64)))


def _root_mean_square(values: np.ndarray) -> float:
    return float(np.sqrt(np.square(values, dtype=np.float64).mean()))
