"""The exported directory that is served: its name, tokenizer and defaults of sampling."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..errors import ArgumentError
from ..generation import TextStream

_NO_CONFIG = "no genai_config.json: "  # begins the export's reason for that


class ServedModel:
    """What the server itself needs of a directory; the model is opened by the engine's process."""

    def __init__(self, directory: str | Path, name: str | None = None) -> None:
        """Read the directory.

        Raises ArgumentError for one that ``export --cache paged`` did not write, or one without a
        tokenizer.
        """
        self.directory = Path(directory).resolve()
        if not self.directory.is_dir():
            raise ArgumentError(f"no such directory: {directory}")
        settings = self._json("genai_config.json")
        if not settings:
            reason = "expected what `onnxruntime-npu export MODEL_DIR OUT_DIR --cache paged` writes"
            for warning in self._json("export_report.json").get("warnings", []):
                reason = warning.removeprefix(_NO_CONFIG) if _NO_CONFIG in warning else reason
            raise ArgumentError(f"{directory} holds no genai_config.json: {reason}")
        if "dynamic_batching" not in (settings.get("engine") or {}):
            cache = self._json("export_report.json").get("cache", "another cache")
            raise ArgumentError(
                f"expected a model exported with --cache paged, got {cache} in {directory}: "
                "export it again with --cache paged"
            )
        if not (self.directory / "tokenizer.json").is_file():
            raise ArgumentError(
                f"{directory} holds no tokenizer.json: export from a directory that has one"
            )
        self.name = name or self.directory.name
        self.defaults = self._json("generation_config.json")
        self.tokenizer = _tokenizer(self.directory)

    def _json(self, name: str) -> dict[str, Any]:
        path = self.directory / name
        if not path.is_file():
            return {}
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
        except ValueError as error:
            raise ArgumentError(f"{path} is no JSON: {error}") from None
        return content if isinstance(content, dict) else {}

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        """Turn text into tokens; ``special``: with those that a text begins and ends with."""
        return list(self.tokenizer.encode(text, add_special_tokens=special))

    def text_stream(self, write: Callable[[str], None]) -> TextStream:
        """Return what turns new tokens into text, whole characters at a time."""
        return TextStream(self.tokenizer, write)


def _tokenizer(directory: Path) -> Any:
    # Not AutoTokenizer: it imports torch, which takes seconds and is not needed for this file.
    from transformers import PreTrainedTokenizerFast

    try:
        return PreTrainedTokenizerFast.from_pretrained(directory, local_files_only=True)
    except Exception as error:  # the parser of tokenizer.json raises Exception itself
        raise ArgumentError(f"the tokenizer of {directory} cannot be read: {error}") from None
