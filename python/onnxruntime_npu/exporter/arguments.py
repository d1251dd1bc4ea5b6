"""Checks of the arguments that exports share."""

from __future__ import annotations

from pathlib import Path

import torch

from ..errors import ArgumentError

DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
# The opset of torch's translations: others are reached through a version converter.
DEFAULT_OPSET = 18
_OPSETS = range(18, 24)


def check_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    """Raise ArgumentError unless the value is one of the choices."""
    if value not in choices:
        raise ArgumentError(f"expected {name} to be one of {', '.join(choices)}, got {value!r}")


def check_directory(path: str | Path) -> Path:
    """Return the path of a directory to write to; raises ArgumentError if it is a file."""
    path = Path(path)
    if path.exists() and not path.is_dir():
        raise ArgumentError(f"expected a directory to write to, got the file {path}")
    return path


def check_opset(opset: int | None) -> int:
    """Return the opset to export to; raises ArgumentError for one that torch cannot target."""
    if opset is None:
        return DEFAULT_OPSET
    if isinstance(opset, bool) or not isinstance(opset, int) or opset not in _OPSETS:
        raise ArgumentError(
            f"expected an opset from {_OPSETS.start} to {_OPSETS.stop - 1}, got {opset!r}"
        )
    return opset
