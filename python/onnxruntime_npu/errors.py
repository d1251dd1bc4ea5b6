"""What a failing call raises. Messages start with the operator: ``[npu_rms_norm] expected ...``."""

from __future__ import annotations

import sys


class ArgumentError(ValueError, RuntimeError):
    """The caller's fault: shapes, dtypes, attributes, indices.

    Python code expects a ValueError here and torch code a RuntimeError; it is both.
    """


class UnsupportedError(NotImplementedError):
    """A valid call that is not implemented."""


class DeviceError(RuntimeError):
    """A kernel failed while it ran; the call that synchronises reports it."""


class OutOfMemoryError(RuntimeError, MemoryError):
    """The device has no memory left; the message states requested, allocated, reserved, limit."""


def out_of_memory_type() -> type[Exception]:
    """Return torch's own exception where torch is loaded, so that existing handlers catch it."""
    torch = sys.modules.get("torch")
    return getattr(torch, "OutOfMemoryError", OutOfMemoryError)


class ExportError(RuntimeError):
    """A model that cannot be read or exported; the message names what is missing."""
