"""Exported directories that are served: what the server itself needs of their files."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..context_length import encoder_context
from ..errors import ArgumentError
from ..json_files import read_object
from .api_errors import too_long

_LONGEST_TEXT = 8192  # of an encoder without a limit of its own: attention grows with its square


class ServedDirectory:
    """A directory's name, files and tokenizer; the model is opened by a process of its own."""

    def __init__(self, directory: str | Path, name: str | None) -> None:
        """Read the directory; ArgumentError for none, and for one without a tokenizer."""
        self.directory = Path(directory).resolve()
        if self.directory.is_file():
            raise ArgumentError(f"expected a directory, got the file {directory}")
        if not self.directory.is_dir():
            raise ArgumentError(f"no such directory: {directory}")
        if name == "":  # as of a shell's variable without a value
            raise ArgumentError("expected a name of the model, got an empty text")
        self.name = name or self.directory.name
        self._check()
        if not (self.directory / "tokenizer.json").is_file():
            raise ArgumentError(
                f"{directory} holds no tokenizer.json: export from a directory that has one"
            )
        self.tokenizer = _tokenizer(self.directory)
        self._longest_token = max(map(len, self.tokenizer.get_vocab()), default=1)  # characters

    def _check(self) -> None:
        """Raise ArgumentError for a directory of another kind."""

    def json(self, name: str) -> dict[str, Any]:
        """Return the object in a file, {} if there is none; ArgumentError for other content."""
        return read_object(self.directory / name)

    def check_length(self, text: str, most: int, param: str) -> None:
        """Raise a 400 for a text of more than ``most`` tokens, however it would be divided.

        Without encoding it, which takes seconds for megabytes, while others wait for theirs.
        """
        if len(text) > most * self._longest_token:
            raise too_long(most, f"{len(text)} characters", param=param)

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        """Turn text into tokens; ``special``: with those that a text begins and ends with."""
        return list(self.tokenizer.encode(text, add_special_tokens=special))

    def decode(self, tokens: Sequence[int]) -> str:
        """Turn tokens into text, special tokens included."""
        return self.tokenizer.decode(tokens, skip_special_tokens=False)


class ServedEncoder(ServedDirectory):
    """A directory that ``export-encoder`` wrote with a pooling."""

    def __init__(self, directory: str | Path, name: str | None) -> None:
        """Read the directory; ArgumentError for one that cannot be served."""
        super().__init__(directory, name)
        context = encoder_context(self.json("export_report.json"), self.json("config.json"))
        limits = (context, self.tokenizer.model_max_length, _LONGEST_TEXT)
        # Max number of tokens of a text.
        self.longest = min(limit for limit in limits if limit)

    @staticmethod
    def recognises(directory: str | Path) -> bool:
        """Whether ``export-encoder`` wrote the directory."""
        report = Path(directory) / "export_report.json"
        try:
            return bool(json.loads(report.read_text(encoding="utf-8")).get("pooling"))
        except (OSError, ValueError, AttributeError):
            return False

    def _check(self) -> None:
        if not self.recognises(self.directory):
            raise ArgumentError(
                f"expected what `onnxruntime-npu export-encoder MODEL_DIR OUT_DIR` writes in "
                f"{self.directory}"
            )
        if self.json("export_report.json")["pooling"] == "none":
            raise ArgumentError(
                f"{self.directory} makes no embeddings: export it again with a --pooling"
            )


def _tokenizer(directory: Path) -> Any:
    # Not AutoTokenizer: it imports torch, which takes seconds and is not needed for this file.
    from transformers import PreTrainedTokenizerFast

    try:
        return PreTrainedTokenizerFast.from_pretrained(directory, local_files_only=True)
    except Exception as error:  # the parser of tokenizer.json raises Exception itself
        raise ArgumentError(f"the tokenizer of {directory} cannot be read: {error}") from None
