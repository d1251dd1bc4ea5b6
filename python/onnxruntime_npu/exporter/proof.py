"""Numeric proof that a replacement computes what the module it replaces computes.

Proofs run in float32 on the given instance, with its weights. The tolerance is relative to the max
expected value: both sides sum the same terms in a different order, an error below 1e-4 for some ten
thousand float32 terms; a wrong formula has a far larger error.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch

from ..errors import ExportError

TOLERANCE = 1e-4
_Result = TypeVar("_Result")


class NotProven(Exception):
    """The replacement differs from the original or cannot replace it; the text says why."""


def unsupported(model: Any, reason: object) -> ExportError:
    """Return the error of a model of transformers that is not proven."""
    return ExportError(
        f"cannot export {type(model).__name__} ({model.config.model_type}): {reason}"
    )


def compare(expected: torch.Tensor, actual: torch.Tensor, what: str) -> float:
    """Return the max absolute difference relative to the max expected value.

    Raises NotProven when shapes differ or the difference exceeds the tolerance.
    """
    if expected.shape != actual.shape:
        raise NotProven(
            f"{what}: expected shape {tuple(expected.shape)}, got {tuple(actual.shape)}"
        )
    size = expected.abs().max().item() if expected.numel() else 0.0
    error = (expected - actual).abs().max().item() if expected.numel() else 0.0
    relative = error / max(size, torch.finfo(torch.float32).tiny)
    if not relative <= TOLERANCE:  # also when it is NaN
        raise NotProven(f"{what}: differs by {relative:.2g} of the largest value")
    return relative


def attempt(proof: Callable[..., _Result], *args: Any) -> _Result:
    """Run a proof; any exception of a probe means NotProven."""
    try:
        with torch.no_grad():
            return proof(*args)
    except NotProven:
        raise
    except Exception as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else "no message"
        raise NotProven(f"the probe raised {type(error).__name__}: {reason}") from error


def spread_to(x: torch.Tensor, projected: torch.Tensor, spread: float) -> torch.Tensor:
    """Scale x so that ``projected``, linear in x, gets the standard deviation ``spread``.

    With small activations every activation function is nearly linear and softmax nearly uniform,
    so that a wrong function would pass.
    """
    deviation = projected.float().std().item()
    return x * (spread / deviation) if deviation > 0 else x


@dataclass
class Findings:
    """The replaced parts, with the max difference, and the kept parts, with the reason."""

    expected_nodes: dict[str, int] = field(default_factory=dict)
    worst_difference: dict[str, float] = field(default_factory=dict)
    kept: list[dict[str, str]] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    def replaced(self, op: str, difference: float, nodes: int = 1) -> None:
        """Record that the export must contain ``nodes`` more nodes of operator ``op``."""
        self.expected_nodes[op] = self.expected_nodes.get(op, 0) + nodes
        self.worst_difference[op] = max(self.worst_difference.get(op, 0.0), difference)

    def quantized(self, op: str, nodes: int) -> None:
        """Record ``nodes`` more nodes of ``op``, which rounds weights: it proves no equality."""
        self.expected_nodes[op] = self.expected_nodes.get(op, 0) + nodes

    def without(self, op: str, nodes: int) -> None:
        """Record that the export has ``nodes`` fewer nodes of ``op``."""
        self.expected_nodes[op] -= nodes
        if self.expected_nodes[op] == 0:
            del self.expected_nodes[op]

    def joined(self, count: int, op: str, into: str) -> None:
        """Record that ``count`` nodes of ``op`` became part of as many nodes of ``into``."""
        if count:
            self.replaced(into, self.worst_difference[op], nodes=count)
            self.without(op, count)

    def keep(self, site: str, role: str, reason: str) -> None:
        """Record that a module is kept unchanged."""
        self.kept.append({"site": site, "role": role, "reason": reason})
