"""What a step knows of its rows: the numbers of keys, the positions of new tokens, and lengths.

Models compute these from slots of a growing cache. Slots may hold padding, also between tokens: a
shorter row of a batch whose prompts were padded on the right has it before its next tokens. In
other caches a model does not know how many tokens there are.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from .caches.step import Step


@dataclass
class _Rows:
    step: Step
    positions: torch.Tensor  # [B, S]
    lengths: torch.Tensor  # [B, 1, 1, 1], or of each new token's row [1, 1, T, 1]
    kept: dict[Hashable, torch.Tensor] = field(default_factory=dict)


_known: list[_Rows] = []


@contextmanager
def known_rows(step: Step, positions: torch.Tensor, lengths: torch.Tensor) -> Iterator[None]:
    """Let the rows of a step be known inside.

    positions [B, 1, S, 1]: of new tokens; lengths [B, 1, 1, 1] or [1, 1, T, 1]: of their rows.
    """
    _known.append(_Rows(step, positions.flatten(1), lengths))
    try:
        yield
    finally:
        _known.pop()


def numbers_of_keys(count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return those of ``count`` keys [B or 1, T], from 0 on, and of each row's last one [B, 1].

    Of rows without padding where no step is known.
    """
    if _known:
        return _known[-1].step.numbers(count)
    numbers = torch.arange(count)[None]
    return numbers, numbers[:, -1:]


def positions_of_queries(count: int) -> torch.Tensor:
    """Return the positions [B or 1, S] of ``count`` new tokens; from 0 on without a step."""
    return _known[-1].positions if _known else torch.arange(count)[None]


def lengths_of_rows() -> torch.Tensor | None:
    """Return the lengths [B, 1, 1, 1] of rows, or of each new token's row [1, 1, T, 1]."""
    return _known[-1].lengths if _known else None


def once(name: Hashable, compute: Callable[[], torch.Tensor]) -> torch.Tensor:
    """Return what is computed once for the layers of a step."""
    if not _known:
        return compute()
    kept = _known[-1].kept
    if name not in kept:
        kept[name] = compute()
    return kept[name]


def by_numbers(mask_function: Callable[..., torch.Tensor], count: int) -> Callable[..., Any]:
    """Return a mask function of transformers for ``count`` slots, as if padding came first.

    Windows and chunks of slots are then those of tokens. Padding itself is masked by another one.
    """
    if not _known:
        return mask_function
    numbers, _ = numbers_of_keys(count)
    places = numbers + (numbers < 0).sum(1, keepdim=True)

    def of_slots(
        row: torch.Tensor, head: torch.Tensor, query: torch.Tensor, key: torch.Tensor
    ) -> torch.Tensor:
        return mask_function(row, head, places[row, query], places[row, key])

    return of_slots
