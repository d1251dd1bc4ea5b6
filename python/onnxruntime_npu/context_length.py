"""The number of tokens that a model takes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# The first GPTs have a name of their own, and decoders of speech.
_NAMES = ("max_position_embeddings", "n_positions", "max_target_positions")


def trained_length(config: Any) -> int | None:
    """Return the tokens of a row that a model was trained for, or None if there is no limit.

    ``config``: an object of transformers, which may have a name of its own for one of the names.
    """
    given = (getattr(config, name, None) for name in _NAMES)
    return next((int(length) for length in given if length), None)


def context_length(config: Mapping[str, Any]) -> int | None:
    """Return the most tokens of a row, or None if the configuration (of transformers) has no limit.

    Dynamic rotary scaling takes a model to ``factor`` times the length that it was trained for,
    also where only some kinds of layers have it: others are those with a window.
    """
    trained = next((config[name] for name in _NAMES if config.get(name)), None)
    if not trained:
        return None
    rotary = config.get("rope_parameters") or {}
    scalings = [rotary, *(each for each in rotary.values() if isinstance(each, Mapping))]
    factors = [each.get("factor", 1) for each in scalings if each.get("rope_type") == "dynamic"]
    return int(trained * max(factors, default=1))


def encoder_context(report: Mapping[str, Any], config: Mapping[str, Any]) -> int | None:
    """Return the most tokens of a text that an exported encoder takes, or None without a limit.

    The export has counted the positions of the encoder's table, which are fewer than what the
    configuration says where some rows are of no position; earlier reports do not tell.
    """
    limit = report.get("context_length")
    return context_length(config.get("text_config") or config) if limit is None else int(limit)
