# The runtime for Python (python/csrc): built by CMake, so the type checker cannot look into it.
from typing import Any

def __getattr__(name: str) -> Any: ...
