"""The kinds of key/value cache: how a step uses one, and the inputs and outputs with it."""

from .dynamic import DynamicInterface, OriginalInterface
from .interface import Interface
from .paged import PagedInterface
from .static import StaticInterface

__all__ = ["CACHES", "INTERFACES", "LOGITS", "Interface", "OriginalInterface"]

INTERFACES: dict[str, type[Interface]] = {
    each.cache: each for each in (DynamicInterface, StaticInterface, PagedInterface)
}
CACHES = tuple(INTERFACES)
LOGITS = ("last", "all")
