"""What config.json says of how a checkpoint is quantised."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ...errors import ExportError
from .loading import formats, is_left_out

# Where a model of several modalities has what a language model has at the top.
_TEXT_PARTS = ("text_config", "decoder", "generator")
_RESTORED = {"fp8", "mxfp4"}  # by transformers, without packages of others


def check_quantization(path: Path, config: Mapping[str, Any]) -> None:
    """Refuse a description of quantisation that transformers takes for its own object."""
    values = quantization_config(config)
    if values is not None and not isinstance(values, dict):
        raise ExportError(
            f"cannot load {path}: its config.json has a quantization_config of type "
            f"{type(values).__name__}, expected an object of JSON"
        )


def quantization(config: Mapping[str, Any]) -> tuple[str | None, Any]:
    """Return the ``quant_method`` of a configuration, and one that transformers leaves out."""
    values = quantization_config(config)
    if not isinstance(values, dict):
        return None, None
    method = values.get("quant_method")
    if is_left_out(values):
        return None, method
    return method if isinstance(method, str) else None, None


def quantization_config(config: Mapping[str, Any]) -> Any:
    """Return what transformers goes by: that of the whole model, or else that of its text part."""
    own = config.get("quantization_config")
    parts = (config.get(name) for name in _TEXT_PARTS)
    text: dict[str, Any] = next((part for part in parts if isinstance(part, dict)), {})
    return own or text.get("quantization_config", own)


def forget_quantization(model: Any) -> None:
    """Let the configuration, also where it is saved, say nothing of how the file was quantised."""
    for config in (model.config, model.config.get_text_config(decoder=True)):
        config.__dict__.pop("quantization_config", None)


def unread(method: Any) -> str:
    """Return what to say of a ``quant_method`` if the model cannot be loaded, perhaps nothing."""
    known = formats().keys() | _RESTORED
    if method is None or method in known:
        return ""
    return (
        f"(config.json has quant_method {method!r}: expected a checkpoint in floats, or of "
        f"{', '.join(sorted(known))})"
    )
