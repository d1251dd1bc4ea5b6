"""Libraries' warnings that users can do nothing about."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator


@contextlib.contextmanager
def without_warnings(logger_name: str) -> Iterator[None]:
    """Suppress what a logger says."""
    logger = logging.getLogger(logger_name)
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(level)
