"""What to install where a package is missing: the extras of the package's metadata."""

from __future__ import annotations

import importlib.metadata
import re

_NAMED = re.compile(r"([A-Za-z0-9_.-]+).*;\s*extra\s*==\s*[\"']export[\"']")


def missing_package(error: ModuleNotFoundError) -> str | None:
    """Return the package of the extra ``export`` for want of which an import failed, or None."""
    package = (error.name or "").partition(".")[0]
    try:
        required = importlib.metadata.requires("onnxruntime-npu") or []
    except importlib.metadata.PackageNotFoundError:  # sources that are not installed
        return None
    named = (_NAMED.fullmatch(requirement) for requirement in required)
    return package if package in {match[1] for match in named if match} else None


def told_extra(what: str, error: ModuleNotFoundError, extra: str) -> ModuleNotFoundError:
    """Return the error that says which extra ``what`` needs."""
    package = (error.name or "").partition(".")[0]
    message = f"{what} needs the package {package}: pip install 'onnxruntime-npu[{extra}]'"
    return ModuleNotFoundError(message, name=error.name)
