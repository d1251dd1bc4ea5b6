"""Exceptions of the package. Messages start with the operator: ``[npu_rms_norm] expected ...``."""

from __future__ import annotations

import sys


class ArgumentError(ValueError, RuntimeError):
    """Invalid arguments: shapes, dtypes, attributes, indices.

    Python code expects a ValueError here and torch code a RuntimeError; this is both.
    """


class AxisError(ArgumentError, IndexError):
    """An axis that a tensor does not have: torch's own operators raise an IndexError."""


class UnsupportedError(NotImplementedError):
    """A valid call that is not implemented."""


class DeviceError(RuntimeError):
    """A kernel failed during execution; raised by the call that synchronises."""


class OutOfMemoryError(RuntimeError, MemoryError):
    """The device has no memory left; the message states requested, allocated, reserved, limit."""


def out_of_memory_type() -> type[Exception]:
    """Return torch's own exception where torch is loaded, so that existing handlers catch it."""
    torch = sys.modules.get("torch")
    return getattr(torch, "OutOfMemoryError", OutOfMemoryError)


class ExportError(RuntimeError):
    """A model that cannot be read or exported; the message names what is missing."""


class ServingError(RuntimeError):
    """A model that cannot be served; the message says why."""
