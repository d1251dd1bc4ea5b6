"""The classes that the files of a folder define: a new file needs no entry in a list."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from pkgutil import iter_modules
from typing import Any, TypeVar

_Base = TypeVar("_Base")


def subclasses_in(package: str, base: Callable[..., _Base]) -> list[type[_Base]]:
    """Import the modules of a package; return the classes of ``base`` that are no bases of others.

    Only what the files define: torch derives classes of its own from modules that it has traced.
    """
    found: list[Any] = []
    for name in iter_modules([*import_module(package).__path__]):
        module = import_module(f"{package}.{name.name}")
        defined = [each for each in vars(module).values() if isinstance(each, type)]
        found += [e for e in defined if e.__module__ == module.__name__ and _derives(e, base)]
    return [each for each in found if not any(_derives(other, each) for other in found)]


def _derives(each: type, base: Any) -> bool:
    return issubclass(each, base) and each is not base
