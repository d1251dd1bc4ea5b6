"""Entries of onnxruntime's options, which raises for one that is not set."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from onnxruntime import RunOptions


def session_entry(options: Any, key: str) -> str:
    """Return an entry of a session's options, "" if it is not set."""
    return _read(options.get_session_config_entry, key)


def run_entry(options: RunOptions, key: str) -> str:
    """Return an entry of a run's options, "" if it is not set."""
    return _read(options.get_run_config_entry, key)


def _read(get: Callable[[str], Any], key: str) -> str:
    try:
        return str(get(key))
    except Exception:  # onnxruntime has no other way to say that the entry is not set
        return ""
