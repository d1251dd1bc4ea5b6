"""The exported directory that is served: its name, tokenizer and defaults of sampling."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ..errors import ArgumentError
from ..generation import TextStream
from .tool_formats import ToolFormat, tool_format

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
        added = self.tokenizer.added_tokens_decoder.items()
        self._special = {token.content: number for number, token in added if token.special}
        # How it writes calls of tools; None if its template takes no tools, or is not known.
        self.tool_format = self._tool_format()

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

    def decode(self, tokens: Sequence[int]) -> str:
        """Turn tokens into text, special tokens included."""
        return self.tokenizer.decode(tokens, skip_special_tokens=False)

    def text_stream(self, write: Callable[[str], None], shown: Sequence[str] = ()) -> TextStream:
        """Return what turns new tokens into text, whole characters at a time.

        Special tokens are left out, except those ``shown``.
        """
        left_out = {i for text, i in self._special.items() if text not in shown}
        decoder = self.tokenizer
        if len(left_out) < len(self._special):
            decoder = _Showing(self.tokenizer, left_out)
        return TextStream(decoder, write)

    def literal(self, text: str, markers: Sequence[str]) -> str:
        """Return a text for a Lark grammar, in which ``markers`` may be special tokens."""
        special = [marker for marker in markers if marker in self._special]
        if not special:
            return json.dumps(text, ensure_ascii=False) if text else ""
        pieces = re.split(f"({'|'.join(map(re.escape, special))})", text)
        return " ".join(
            f"<[{self._special[piece]}]>" if piece in special else self.literal(piece, ())
            for piece in pieces
            if piece
        )

    def _tool_format(self) -> ToolFormat | None:
        if not getattr(self.tokenizer, "chat_template", None):
            return None
        template = self.tokenizer.get_chat_template(tools=[])
        if not re.search(r"\btools\b", template):
            return None
        return tool_format(template, list(self.tokenizer.get_added_vocab()))


class _Showing:
    """A tokenizer that does not leave out certain special tokens."""

    def __init__(self, tokenizer: Any, left_out: set[int]) -> None:
        self._tokenizer, self._left_out = tokenizer, left_out

    def decode(self, tokens: Sequence[int], *, skip_special_tokens: bool) -> str:
        assert skip_special_tokens
        kept = [token for token in tokens if token not in self._left_out]
        return self._tokenizer.decode(kept, skip_special_tokens=False)


def _tokenizer(directory: Path) -> Any:
    # Not AutoTokenizer: it imports torch, which takes seconds and is not needed for this file.
    from transformers import PreTrainedTokenizerFast

    try:
        return PreTrainedTokenizerFast.from_pretrained(directory, local_files_only=True)
    except Exception as error:  # the parser of tokenizer.json raises Exception itself
        raise ArgumentError(f"the tokenizer of {directory} cannot be read: {error}") from None
