"""Libraries' warnings that users can do nothing about."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator

_LIBRARIES = ("onnx_ir", "onnxscript")


@contextlib.contextmanager
def without_warnings() -> Iterator[None]:
    """Suppress what the libraries say that read and rewrite graphs, such as what they fold not."""
    loggers = [logging.getLogger(name) for name in _LIBRARIES]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
