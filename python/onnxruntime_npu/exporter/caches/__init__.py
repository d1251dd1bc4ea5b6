"""The kinds of key/value cache: how a step uses one, and the inputs and outputs with it."""

from __future__ import annotations

from typing import Any, NamedTuple

from .dynamic import DynamicInterface
from .interface import Interface
from .paged import PagedInterface
from .static import StaticInterface

__all__ = ["CACHES", "CACHE_DTYPES", "LOGITS", "CacheChoice", "Interface"]

INTERFACES: dict[str, type[Interface]] = {
    each.cache: each for each in (DynamicInterface, StaticInterface, PagedInterface)
}
CACHES = tuple(INTERFACES)
CACHE_DTYPES = ("auto", "int8")
LOGITS = ("last", "all")


class CacheChoice(NamedTuple):
    """What an export is asked for: the kind of cache, whether it holds int8, and the logits."""

    cache: str
    int8: bool
    logits: str

    def __str__(self) -> str:
        return f"{self.cache} int8" if self.int8 else self.cache

    @property
    def plain(self) -> bool:
        """Whether the cache grows and holds floats, which any model can do."""
        return self.cache == DynamicInterface.cache and not self.int8

    def interface(self, decoder: Any) -> Interface:
        """Return a decoder with this cache and these logits."""
        return INTERFACES[self.cache](decoder, self.logits, int8=self.int8)
