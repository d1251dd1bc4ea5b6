"""What to install where a package is missing: the extras of pyproject.toml."""

from __future__ import annotations

_EXPORT = (
    *("torch", "transformers", "onnx", "onnxscript", "safetensors", "gguf"),
    *("accelerate", "sentencepiece"),
)


def missing_package(error: ModuleNotFoundError) -> str | None:
    """Return the package of the extra ``export`` for want of which an import failed, or None."""
    package = (error.name or "").partition(".")[0]
    return package if package in _EXPORT else None
