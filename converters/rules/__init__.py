"""The rules of a conversion, one file for each kind of operator."""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules

from .rule import Rule

__all__ = ["Rule", "all_rules"]


def all_rules() -> list[Rule]:
    """Return new rules of every file of this folder that has some, in the order of their names."""
    found: list[Rule] = []
    for module in iter_modules(__path__):
        make = getattr(import_module(f"{__name__}.{module.name}"), "rules", None)
        found += make() if make is not None else []
    return found
