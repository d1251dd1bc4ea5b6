"""Finds the provider library and registers it with onnxruntime."""

from __future__ import annotations

import functools
import re
import threading
from pathlib import Path

_EP_NAME = "NPUExecutionProvider"
_LIBRARY = "libonnxruntime_providers_npu.so"
_lock = threading.Lock()


@functools.cache
def get_library_path() -> str:
    """Absolute path of the provider library, for ``register_execution_provider_library``."""
    return str(Path(__file__).resolve().parent / _LIBRARY)


def get_ep_name() -> str:
    """Name of the execution provider, as ``InferenceSession(providers=[...])`` takes it."""
    return _EP_NAME


def get_ep_names() -> list[str]:
    """Names of all execution providers in the library."""
    return [_EP_NAME]


def register() -> None:
    """Registers the provider with onnxruntime; again is harmless.

    Raises:
        ImportError: the library is not built, onnxruntime is missing, or it refuses the library.
    """
    if not Path(get_library_path()).exists():
        raise ImportError(
            f"expected the provider library at {get_library_path()}, got none; "
            "build it with `python -m pip install -e .` in the source tree, or install the wheel"
        )
    import onnxruntime

    from . import session_hook

    with _lock:
        if _EP_NAME not in onnxruntime.get_available_providers():
            try:
                onnxruntime.register_execution_provider_library(_EP_NAME, get_library_path())
            except Exception as error:
                reason = re.sub(r"^\[ONNXRuntimeError\] : \d+ : \w+ : ", "", str(error))
                raise ImportError(
                    f"onnxruntime {onnxruntime.__version__} refuses {_LIBRARY}: {reason}"
                ) from None
        session_hook.install()
