"""Registers the provider library with onnxruntime."""

from __future__ import annotations

import re
import threading
from pathlib import Path

from .provider_library import get_ep_name, get_library_path

_lock = threading.Lock()


def register() -> None:
    """Registers the provider with onnxruntime; repeated calls do nothing.

    Raises:
        ImportError: the library is not built, onnxruntime is missing, or it rejects the library.
    """
    library = Path(get_library_path())
    if not library.exists():
        raise ImportError(
            f"expected the provider library at {library}, got none; "
            "build it with `python -m pip install -e .` in the source tree, or install the wheel"
        )
    import onnxruntime

    from . import session_hook

    with _lock:
        if get_ep_name() not in onnxruntime.get_available_providers():
            try:
                onnxruntime.register_execution_provider_library(get_ep_name(), str(library))
            except Exception as error:
                reason = re.sub(r"^\[ONNXRuntimeError\] : \d+ : \w+ : ", "", str(error))
                raise ImportError(
                    f"onnxruntime {onnxruntime.__version__} refuses {library.name}: {reason}"
                ) from None
        session_hook.install()
