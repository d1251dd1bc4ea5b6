"""The interface of all roles: match, build, prove and report, in this order."""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any, Generic, TypeVar

from ..proof import Findings, NotProven, attempt

Parts = TypeVar("Parts")
Built = TypeVar("Built")


class Role(ABC, Generic[Parts, Built]):
    """One role of a decoder's parts, and its replacement."""

    @abstractmethod
    def match(self, original: Any) -> Parts:
        """Return the original's parts; raises NotProven that names a missing one."""

    @abstractmethod
    def build(self, parts: Parts) -> Iterator[Built]:
        """Yield candidate replacements, the likeliest first."""

    @abstractmethod
    def prove(self, original: Any, built: Built) -> float:
        """Return the max relative difference between both; raises NotProven beyond tolerance."""

    def close_to(self, built: Built) -> Iterator[Built]:
        """Yield candidates that a proof may take for a proven one; by default none."""
        yield from ()

    def report(self, findings: Findings, site: str, built: Built, difference: float) -> None:
        """Record the replacement; by default nothing, for roles without nodes of their own."""

    def keep(self, original: Any, findings: Findings, site: str, reason: NotProven) -> Built:
        """Return the kept form if no candidate was proven; by default raise."""
        raise NotProven(f"{site}: {reason}" if site else str(reason)) from reason

    def proven(self, original: Any) -> tuple[Built, float]:
        """Return the first proven candidate, or the closest of those like it, and its difference.

        Raises NotProven with the reason for the likeliest candidate.
        """
        candidates = self.build(attempt(self.match, original))
        first: NotProven | None = None
        while (built := attempt(next, candidates, None)) is not None:
            try:
                difference = attempt(self.prove, original, built)
            except NotProven as error:
                first = first or error
                continue
            return self._closest(original, built, difference)
        raise first or NotProven(f"expected something to take {type(original).__name__}'s place")

    def _closest(self, original: Any, built: Built, difference: float) -> tuple[Built, float]:
        closest = built, difference
        for candidate in self.close_to(built):
            with contextlib.suppress(NotProven):
                found = attempt(self.prove, original, candidate)
                if found < closest[1]:
                    closest = candidate, found
        return closest

    def replace(self, original: Any, findings: Findings, site: str = "") -> Built:
        """Return the original's replacement, and record it."""
        try:
            built, difference = self.proven(original)
        except NotProven as error:
            return self.keep(original, findings, site, error)
        self.report(findings, site, built, difference)
        return built


def part(module: Any, owner: str, name: str) -> Any:
    """Return an attribute of a module; raises NotProven that names it and its owner."""
    found = getattr(module, name, None)
    if found is None:
        raise NotProven(f"expected {name!r} in {owner} ({type(module).__name__})")
    return found
