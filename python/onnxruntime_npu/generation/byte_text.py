"""Text of tokens that arrive one by one, of tokenizers whose tokens are bytes of the text."""

from __future__ import annotations

import codecs
import contextlib
from collections.abc import Callable, Collection, Sequence
from typing import Any

from tokenizers import decoders
from transformers.convert_slow_tokenizer import bytes_to_unicode

_INCREMENTAL = codecs.getincrementaldecoder("utf-8")
# The byte for which each character stands in the vocabulary.
_BYTES = {ord(character): byte for byte, character in bytes_to_unicode().items()}
_ALPHABET = frozenset(map(chr, _BYTES))


class ByteTokens(dict[int, str | bytes]):
    """What each token is of a text: whole characters, or bytes that are none.

    Read from the tokenizer when one is asked for.
    """

    def __init__(self, backend: Any) -> None:
        """``backend`` is a Tokenizer of the package tokenizers for which ``recognises`` is true."""
        super().__init__()
        self._backend = backend

    @staticmethod
    def recognises(backend: Any) -> bool:
        """Whether the text of tokens is that of their bytes, one after the other."""
        return isinstance(backend.decoder, decoders.ByteLevel)

    def __missing__(self, token: int) -> str | bytes:
        text = self._backend.id_to_token(token) or ""  # a model may have more tokens
        # What is added beside the vocabulary is text itself, if it has other characters.
        whole = _ALPHABET.issuperset(text)
        found = text.translate(_BYTES).encode("latin-1") if whole else text.encode()
        with contextlib.suppress(UnicodeDecodeError):
            text = self[token] = found.decode()
            return text
        self[token] = found
        return found


class ByteTextStream:
    """Turns tokens into text, holding back incomplete characters, as ``TextStream`` does.

    That one has the tokenizer decode each token twice, which takes longer than all else that a
    server does for it.
    """

    def __init__(
        self, tokens: ByteTokens, left_out: Collection[int], write: Callable[[str], None]
    ) -> None:
        """Leave out some tokens, such as special ones."""
        self._tokens, self._left_out, self._write = tokens, left_out, write
        self._decoder = _INCREMENTAL("replace")
        self._holds = False  # bytes of a character that is not complete

    def put(self, tokens: Sequence[int | None]) -> None:
        """Take the new token of the first row."""
        token = tokens[0]
        if token is None or token in self._left_out:
            return
        text = self._tokens[token]
        if self._holds or isinstance(text, bytes):
            text = self._decoder.decode(text if isinstance(text, bytes) else text.encode())
            self._holds = bool(self._decoder.getstate()[0])
        if text:
            self._write(text)

    def end(self) -> None:
        """Write the characters held back."""
        if text := self._decoder.decode(b"", True):
            self._write(text)
