"""The numbers that keys have in their rows, by which a model measures how far tokens are apart.

Slots of a growing cache may hold padding, also between tokens: a shorter row of a batch whose
prompts were padded on the right has it before its next tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from .caches.step import Step

_numberings: list[tuple[Step, dict[Hashable, torch.Tensor]]] = []


@contextmanager
def numbered_by(step: Step) -> Iterator[None]:
    """Let the keys have inside the numbers that they have in a step."""
    _numberings.append((step, {}))
    try:
        yield
    finally:
        _numberings.pop()


def numbers_of_keys(count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return those of ``count`` keys [B or 1, T], from 0 on, and of each row's last one [B, 1].

    Of rows without padding where no step is known.
    """
    if _numberings:
        return _numberings[-1][0].numbers(count)
    numbers = torch.arange(count)[None]
    return numbers, numbers[:, -1:]


def once(name: Hashable, compute: Callable[[], torch.Tensor]) -> torch.Tensor:
    """Return what is computed once for the layers of a step."""
    if not _numberings:
        return compute()
    kept = _numberings[-1][1]
    if name not in kept:
        kept[name] = compute()
    return kept[name]


def by_numbers(mask_function: Callable[..., torch.Tensor], count: int) -> Callable[..., Any]:
    """Return a mask function of transformers for ``count`` slots, as if padding came first.

    Windows and chunks of slots are then those of tokens. Padding itself is masked by another one.
    """
    if not _numberings:
        return mask_function
    numbers, _ = numbers_of_keys(count)
    places = numbers + (numbers < 0).sum(1, keepdim=True)

    def of_slots(
        row: torch.Tensor, head: torch.Tensor, query: torch.Tensor, key: torch.Tensor
    ) -> torch.Tensor:
        return mask_function(row, head, places[row, query], places[row, key])

    return of_slots
