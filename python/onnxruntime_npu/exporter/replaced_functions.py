"""Functions and methods that are replaced by others while a model runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple


class _Replacement(NamedTuple):
    owner: Any  # a module of Python, or an object whose method it is
    name: str
    function: Callable[..., Any]


class ReplacedFunctions:
    """Replacements that hold inside ``with replaced()``."""

    def __init__(self) -> None:
        self._replacements: list[_Replacement] = []

    def add(self, owner: Any, name: str, function: Callable[..., Any]) -> None:
        """Let ``owner.name`` be ``function``."""
        self._replacements.append(_Replacement(owner, name, function))

    @contextmanager
    def replaced(self) -> Iterator[None]:
        """Replace the functions inside."""
        originals = [vars(each.owner).get(each.name) for each in self._replacements]
        for each in self._replacements:
            setattr(each.owner, each.name, each.function)
        try:
            yield
        finally:
            for each, original in zip(self._replacements, originals, strict=True):
                if original is None:  # a method, which belongs to the class
                    delattr(each.owner, each.name)
                else:
                    setattr(each.owner, each.name, original)


Call = tuple[tuple[Any, ...], dict[str, Any]]  # the arguments


def observed_calls(run: Callable[[], object], owner: Any, name: str) -> list[Call]:
    """Return every call of ``owner.name`` in a run."""
    with observed(owner, name) as calls:
        run()
    return calls


@contextmanager
def observed(owner: Any, name: str) -> Iterator[list[Call]]:
    """Yield every call of ``owner.name`` inside."""
    calls: list[Call] = []
    original = getattr(owner, name)

    def observe(*args: Any, **kwargs: Any) -> Any:
        calls.append((args, kwargs))
        return original(*args, **kwargs)

    functions = ReplacedFunctions()
    functions.add(owner, name, observe)
    with functions.replaced():
        yield calls
