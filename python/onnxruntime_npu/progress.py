"""Progress bars of long work: none for short work, and none where no terminal shows them."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator
from typing import Any, TypeVar

from tqdm import tqdm

_Item = TypeVar("_Item")
_DELAY = 1.0  # seconds of work before a bar appears


def progress(items: Collection[_Item], description: str, unit: str) -> Iterator[_Item]:
    """Iterate over items with a bar."""
    yield from bar(description, unit, iterable=items)


def bar(description: str, unit: str, **options: Any) -> Any:
    """Return a bar of tqdm to update by hand."""
    return tqdm(desc=description, unit=unit, delay=_DELAY, disable=None, **options)


@contextlib.contextmanager
def step(description: str) -> Iterator[None]:
    """Name work that has no parts to count, and its time when it ends."""
    with tqdm(desc=description, bar_format="{desc}: {elapsed}", disable=None):
        yield
