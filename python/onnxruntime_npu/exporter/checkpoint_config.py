"""The configuration of a checkpoint, with what transformers does not check in it, or not soon."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..errors import ExportError

# Sizes of config.json, each of 1 or more.
_SIZES = (
    "head_dim",
    "hidden_size",
    "max_position_embeddings",
    "num_attention_heads",
    "num_key_value_heads",
    "vocab_size",
)
_LARGEST = 2**31 - 1
# How names of sizes end, or are written, in configurations of all models.
_SIZE = re.compile(r"(channels|dim|experts|groups|heads|layers|rank|sizes?)$|^[dn]_[a-z_]+$")


def read_config(path: Path) -> dict[str, Any]:
    """Return a directory's config.json; empty if it is none: transformers says what is wrong."""
    return _json_object(path / "config.json") or {}


def _json_object(file: Path) -> dict[str, Any] | None:
    """Return the object that a file holds, None if it holds none."""
    try:
        values = json.loads(file.read_bytes())
    except (OSError, ValueError, RecursionError):
        return None
    return values if isinstance(values, dict) else None


def check_sizes(path: Path, config: Mapping[str, Any]) -> None:
    """Refuse sizes that no model has, of which transformers makes various errors, or none."""
    for name in _SIZES:
        value = config.get(name)
        outside = isinstance(value, int) and not 1 <= value <= _LARGEST
        if outside or isinstance(value, (str, float, dict)):
            raise ExportError(f"cannot load {path}: {_wrong_size(name, value)}")


def impossible_size(error: Exception, config: Mapping[str, Any]) -> str | None:
    """Return which size, also of a part, does not let a model be built; ``error`` says it badly."""
    least = 1 if isinstance(error, ZeroDivisionError) else 0  # which some parts may have none of
    for name, value in config.items():
        if isinstance(value, dict) and (found := impossible_size(error, value)):
            return found
        whole = isinstance(value, int) and not isinstance(value, bool)
        if whole and not least <= value <= _LARGEST and _SIZE.search(name):
            return _wrong_size(name, value)
    return None


def check_window(source: str, config: Any) -> None:
    """Refuse a sliding window in which a token does not see itself, of a loaded configuration.

    Others than those of models with windows may have the setting, too: they do not read it.
    """
    window = getattr(config, "sliding_window", None)
    if hasattr(type(config), "sliding_window") and isinstance(window, int) and window < 1:
        raise ExportError(
            f"cannot load {source}: its config.json has sliding_window {window}, expected 1 or "
            f"more, or null"
        )


def _wrong_size(name: str, value: object) -> str:
    return f"its config.json has {name} {value!r}, expected 1 to {_LARGEST}"


def check_generation(path: Path) -> None:
    """Refuse damaged settings of generation, which transformers leaves out without a word."""
    file = path / "generation_config.json"
    if file.exists() and _json_object(file) is None:
        raise ExportError(f"{file} is damaged: expected an object of JSON")


def check_layers(path: Path, config: Mapping[str, Any], weights: int) -> None:
    """Refuse a number of layers that would only be found wrong when all of them are built.

    Of some architectures a negative one builds none, and is only found wrong later.
    """
    for name, value in config.items():
        counts = name.endswith(("layers", "n_layer")) and not name.startswith("max_")
        if counts and isinstance(value, int) and not 0 <= value <= weights:
            raise ExportError(
                f"cannot load {path}: its config.json says {name} {value}, but its files hold "
                f"{weights} weights"
            )


def unknown_setting(error: Exception, config: Mapping[str, Any]) -> str | None:
    """Return what a failed lookup of one of a configuration's values was of, if it was one."""
    if not isinstance(error, KeyError) or not error.args:
        return None
    for name, value in config.items():
        if value == error.args[0]:
            return f"transformers does not know {name} {value!r}, which its config.json has"
        if isinstance(value, dict) and (found := unknown_setting(error, value)):
            return found
    return None
