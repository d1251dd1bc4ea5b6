"""A language model that is served: its defaults of sampling, its text, its way to call tools."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Collection, Sequence
from copy import copy
from pathlib import Path
from typing import Any

from ..errors import ArgumentError
from ..generation import TextStream
from ..generation.adapters import SUFFIX
from ..generation.byte_text import ByteTextStream, ByteTokens
from ..is_number import is_number
from .served_directory import ServedDirectory
from .tool_formats import ToolFormat, tool_format

_DEFAULTS = ("temperature", "top_k", "top_p", "repetition_penalty")  # for what requests leave open
_NO_CONFIG = "no genai_config.json: "  # begins the export's reason for that


class ServedModel(ServedDirectory):
    """A language model that ``export --cache paged`` wrote.

    ``adapter`` is the name of its LoRA adapter that answers; None: the model itself does.
    """

    adapter: str | None = None

    def __init__(self, directory: str | Path, name: str | None = None) -> None:
        """Read the directory; ArgumentError for one that cannot be served."""
        super().__init__(directory, name)
        self.defaults = self._defaults()
        # Transformers' own decoding around this one takes several times as long, for each token.
        backend, cleans = (
            self.tokenizer.backend_tokenizer,
            self.tokenizer.clean_up_tokenization_spaces,
        )
        self._decoder = self.tokenizer if cleans else backend
        bytewise = not cleans and ByteTokens.recognises(backend)
        self._bytes = ByteTokens(backend) if bytewise else None
        added = self.tokenizer.added_tokens_decoder.items()
        self._special = {token.content: number for number, token in added if token.special}
        self._left_out = frozenset(self._special.values())
        # How it writes calls of tools; None if its template takes no tools, or is not known.
        self.tool_format = self._tool_format()

    @property
    def adapted(self) -> list[ServedModel]:
        """The model with each of the adapters that were exported with it, by their names."""
        models = []
        for path in sorted(self.directory.glob(f"*{SUFFIX}")):
            models.append(copy(self))
            models[-1].name = models[-1].adapter = path.stem
        return models

    def _defaults(self) -> dict[str, Any]:
        """Return generation_config.json; ArgumentError where it has no number for one."""
        config = self.json("generation_config.json")
        for name in _DEFAULTS:
            value = config.get(name, 0)
            if value is not None and not (is_number(value, (int, float)) and 0 <= value < math.inf):
                raise ArgumentError(
                    f"expected {name} of generation_config.json to be a number from 0, got "
                    f"{value!r} in {self.directory}: correct it, or leave it out"
                )
        return config

    def _check(self) -> None:
        settings, report = self.json("genai_config.json"), self.json("export_report.json")
        if not settings:
            reason = "expected what `onnxruntime-npu export MODEL_DIR OUT_DIR --cache paged` writes"
            for warning in report.get("warnings", []):
                reason = warning.removeprefix(_NO_CONFIG) if _NO_CONFIG in warning else reason
            raise ArgumentError(f"{self.directory} holds no genai_config.json: {reason}")
        if "dynamic_batching" not in (settings.get("engine") or {}):
            raise ArgumentError(
                f"expected a model exported with --cache paged, got "
                f"{report.get('cache', 'another cache')} in {self.directory}: export it again "
                f"with --cache paged"
            )

    def text_stream(
        self, write: Callable[[str], None], shown: Sequence[str] = ()
    ) -> TextStream | ByteTextStream:
        """Return what turns new tokens into text, whole characters at a time.

        Special tokens are left out, except those ``shown``.
        """
        left_out = self._left_out.difference(self._special.get(text, -1) for text in shown)
        if self._bytes is not None:
            return ByteTextStream(self._bytes, left_out, write)
        decoder = self._decoder
        if len(left_out) < len(self._special):
            decoder = _Showing(decoder, left_out)
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

    def __init__(self, tokenizer: Any, left_out: Collection[int]) -> None:
        self._tokenizer, self._left_out = tokenizer, left_out

    def decode(self, tokens: Sequence[int], *, skip_special_tokens: bool) -> str:
        assert skip_special_tokens
        kept = [token for token in tokens if token not in self._left_out]
        return self._tokenizer.decode(kept, skip_special_tokens=False)
