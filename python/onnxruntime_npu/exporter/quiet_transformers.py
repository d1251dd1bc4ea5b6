"""Silences transformers while it does what the exporter reports on by itself."""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import Iterator


@contextlib.contextmanager
def quiet_transformers() -> Iterator[None]:
    """Suppress warnings, of what is checked otherwise, and bars that no terminal shows."""
    from transformers.utils.logging import (
        disable_progress_bar,
        enable_progress_bar,
        is_progress_bar_enabled,
    )

    logger = logging.getLogger("transformers")
    level = logger.level
    logger.setLevel(logging.ERROR)
    bars = is_progress_bar_enabled() and not sys.stderr.isatty()
    if bars:
        disable_progress_bar()
    try:
        yield
    finally:
        logger.setLevel(level)
        if bars:
            enable_progress_bar()
