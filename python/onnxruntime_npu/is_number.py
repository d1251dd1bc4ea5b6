"""The question whether an argument is a number, to which a bool is none."""

from __future__ import annotations

from typing import Any


def is_number(value: Any, kind: type | tuple[type, ...]) -> bool:
    """Whether a value is of a kind of numbers and no bool, which Python counts among the integers.

    Args:
        value: anything.
        kind: ``int``, or ``numbers.Integral`` and ``numbers.Real`` for NumPy's numbers, too.
    """
    return isinstance(value, kind) and not isinstance(value, bool)
