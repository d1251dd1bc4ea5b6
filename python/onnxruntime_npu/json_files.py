"""Files of JSON in an exported directory."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from .errors import ArgumentError


def read_object(path: Path) -> dict[str, Any]:
    """Return the object in a file, {} if there is no file.

    Raises ArgumentError for what is no JSON in UTF-8, and for JSON of another kind.
    """
    if not path.is_file():
        return {}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ArgumentError(f"expected JSON in UTF-8 in {path}, got other text: {error}") from error
    if not isinstance(content, dict):
        raise ArgumentError(f"expected a JSON object in {path}, got {type(content).__name__}")
    return content
