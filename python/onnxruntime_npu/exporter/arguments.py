"""Checks of the arguments that exports share."""

from __future__ import annotations

import os
from pathlib import Path

import torch

from ..errors import ArgumentError, ExportError
from ..is_number import is_number

DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
# The opset of torch's translations: others are reached through a version converter.
DEFAULT_OPSET = 18
_OPSETS = range(18, 24)


def check_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    """Raise ArgumentError unless the value is one of the choices."""
    if value not in choices:
        raise ArgumentError(f"expected {name} to be one of {', '.join(choices)}, got {value!r}")


def check_directory(path: str | Path, source: object) -> Path:
    """Return the path of a directory to write to, which need not exist yet.

    Raises ArgumentError if it or one that it is in is a file, or if it is that of the model,
    ``source``, whose configuration would be replaced by that of the exported one; ExportError if it
    cannot be written to: before a model is loaded and proven for it.
    """
    path = Path(path)
    from_directory = isinstance(source, (str, Path)) and Path(source).is_dir()
    if from_directory and path.exists() and path.samefile(str(source)):
        raise ArgumentError(
            f"expected another directory to write to than the model's, got {path}: its "
            f"config.json would be replaced"
        )
    place = next(each for each in (path, *path.absolute().parents) if each.exists())
    if not place.is_dir():
        raise ArgumentError(f"expected a directory to write to, got the file {place}")
    if not os.access(place, os.W_OK | os.X_OK):
        raise ExportError(f"cannot write {path}: {place} is not writable")
    return path


def check_opset(opset: int | None) -> int:
    """Return the opset to export to; raises ArgumentError for one that torch cannot target."""
    if opset is None:
        return DEFAULT_OPSET
    if not is_number(opset, int) or opset not in _OPSETS:
        raise ArgumentError(
            f"expected an opset from {_OPSETS.start} to {_OPSETS.stop - 1}, got {opset!r}"
        )
    return opset
