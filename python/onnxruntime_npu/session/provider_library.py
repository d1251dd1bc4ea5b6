"""The provider library: its name and path, and its own C functions (ep/provider/library.cc)."""

from __future__ import annotations

import ctypes
import functools
import json
from pathlib import Path
from typing import Any, NamedTuple

_EP_NAME = "NPUExecutionProvider"
_LIBRARY = "libonnxruntime_providers_npu.so"


class ProviderOption(NamedTuple):
    """One provider option: its name, allowed values, default and meaning."""

    name: str
    values: str
    default: str
    help: str


@functools.cache
def get_library_path() -> str:
    """Absolute path of the provider library, for ``register_execution_provider_library``."""
    return str(Path(__file__).resolve().parents[1] / _LIBRARY)


def get_ep_name() -> str:
    """Name of the execution provider, for ``InferenceSession(providers=[...])``."""
    return _EP_NAME


def get_ep_names() -> list[str]:
    """Names of all execution providers in the library."""
    return [_EP_NAME]


@functools.cache
def _library() -> ctypes.CDLL:
    library = ctypes.CDLL(get_library_path())
    library.NpuBeginAssignmentCapture.restype = None
    library.NpuEndAssignmentCapture.restype = ctypes.c_char_p
    library.NpuSetBoundValues.restype = None
    library.NpuProviderOptions.restype = ctypes.c_char_p
    return library


def begin_assignment_capture() -> None:
    """Starts to record, on this thread, the provider's decisions about a session's nodes."""
    _library().NpuBeginAssignmentCapture()


def end_assignment_capture() -> list[dict[str, Any]] | None:
    """Returns the decisions of the last session created on this thread since the capture began.

    Each is ``{node, op_type, domain, claimed, reason}``; None when no session used the provider.
    """
    text = _library().NpuEndAssignmentCapture().decode("utf-8", errors="replace")
    return json.loads(text) if text else None


def set_bound_values(values: str) -> None:
    """Tells the provider what this thread's next runs have bound (ep/provider/bound_values.h)."""
    _library().NpuSetBoundValues(values.encode())


def provider_options() -> list[ProviderOption]:
    """Returns every provider option, in the library's order."""
    lines = _library().NpuProviderOptions().decode().splitlines()
    return [ProviderOption(*line.split("\t")) for line in lines]
