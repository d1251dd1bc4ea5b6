"""What the engine's process asks of those that generate: the seam between its two lanes."""

from __future__ import annotations

from typing import Protocol

from .engine_messages import Step, Submit


class Lane(Protocol):
    """Takes requests and continues all of them by at most one token a step.

    ``batch.Batch`` is onnxruntime-genai's engine. ``logits_lane.LogitsLane`` is the library's own
    step over the same file, for requests whose logits have to be seen or changed.
    """

    @property
    def busy(self) -> bool:
        """Whether a step has something to do."""

    def add(self, submitted: Submit) -> None:
        """Queue a request."""

    def cancel(self, key: int) -> None:
        """Forget a request, which may be another lane's, and free its blocks."""

    def step(self) -> Step:
        """Take waiting requests, run the model once; raises what the process cannot survive."""
