"""Finds the provider library and registers it with onnxruntime."""

from __future__ import annotations

import threading
from pathlib import Path

_EP_NAME = "NPUExecutionProvider"
_LIBRARY = "libonnxruntime_providers_npu.so"
_lock = threading.Lock()


def get_library_path() -> str:
    """Absolute path of the provider library, as ``register_execution_provider_library`` takes it."""
    return str(Path(__file__).resolve().parent / _LIBRARY)


def get_ep_name() -> str:
    """Name of the execution provider, as ``InferenceSession(providers=[...])`` takes it."""
    return _EP_NAME


def get_ep_names() -> list[str]:
    """Names of all execution providers in the library."""
    return [_EP_NAME]


def register() -> bool:
    """Registers the provider with onnxruntime; again is harmless.

    Returns:
        False when the library has not been built yet (the build itself runs parts of this package).
    """
    if not Path(get_library_path()).exists():
        return False
    import onnxruntime

    with _lock:
        if _EP_NAME not in onnxruntime.get_available_providers():
            onnxruntime.register_execution_provider_library(_EP_NAME, get_library_path())
    return True
