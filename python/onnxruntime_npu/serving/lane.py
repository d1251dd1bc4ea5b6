"""What the engine's process asks of those that generate: the seam between its lanes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from .child_process import Inbox
from .engine_messages import Cancel, Sampling, Step, Submit

_WARM_UP = Submit(-1, [0, 0], Sampling(max_tokens=3, greedy=True))


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


def warm_up(lane: Lane) -> None:
    """Answer a request of the server's own, so that the first client's waits for no first use.

    Raises RuntimeError if it fails, and what ``lane.step`` raises.
    """
    lane.add(_WARM_UP)
    while lane.busy:
        for _, reason, message in lane.step().finished:
            if reason == "error":
                raise RuntimeError(message)


def take_messages(inbox: Inbox, lanes: Sequence[Lane], lane_of: Callable[[Submit], Lane]) -> bool:
    """Take what has come, wait for a message if nothing runs; False: the server is gone."""
    for message in inbox.take(wait=not any(lane.busy for lane in lanes)):
        if message is None:
            return False
        if isinstance(message, Submit):
            lane_of(message).add(message)
        elif isinstance(message, Cancel):
            for lane in lanes:
                lane.cancel(message.key)
    return True
