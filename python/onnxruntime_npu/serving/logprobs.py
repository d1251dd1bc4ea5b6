"""Log-probabilities of an answer's tokens, in the shapes of OpenAI's two interfaces."""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from .engine_messages import Score, Scored

_LEAST = -9999.0  # JSON has no infinity; OpenAI's interface writes this, too


@dataclass(frozen=True)
class PlacedToken:
    """A scored token and where its text begins in that of the answer, in characters."""

    scored: Scored
    offset: int


class TokenLog:
    """Scored tokens that have come, until the text in which they are is given out."""

    def __init__(self) -> None:
        self._held: list[PlacedToken] = []

    def put(self, scored: Scored, offset: int) -> None:
        """Take the next token, whose first character is the one at ``offset``."""
        self._held.append(PlacedToken(scored, offset))

    def put_text(self, tokens: Sequence[Scored], length: int) -> None:
        """Take all tokens of a text of so many characters.

        What the tokenizer puts before a text, such as a special token or a space, is none of it.
        """
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        begins = [0]
        for token in tokens:
            begins.append(begins[-1] + len(decoder.decode(token.text)))
        for token, begin in zip(tokens, begins, strict=False):
            self.put(token, max(0, begin + length - begins[-1]))

    def take(self, end: int | None = None) -> list[PlacedToken]:
        """Return those that begin before ``end``, None: all that are left."""
        count = sum(end is None or token.offset < end for token in self._held)
        taken, self._held = self._held[:count], self._held[count:]
        return taken


def chat_logprobs(tokens: Sequence[PlacedToken]) -> dict[str, Any]:
    """Return ``logprobs`` of a choice of a chat."""
    content = []
    for token in tokens:
        scored = token.scored
        top = [_chat_token(each.text, each.logprob) for each in scored.top]
        content.append({**_chat_token(scored.text, scored.logprob), "top_logprobs": top})
    return {"content": content, "refusal": None}


def completion_logprobs(tokens: Sequence[PlacedToken]) -> dict[str, Any]:
    """Return ``logprobs`` of a choice of a completion; a prompt's first token has none."""
    each = [token.scored for token in tokens]
    return {
        "tokens": [_name(scored.text) for scored in each],
        "token_logprobs": [_number(scored.logprob) for scored in each],
        "top_logprobs": [_by_name(scored) for scored in each],
        "text_offset": [token.offset for token in tokens],
    }


def _chat_token(text: bytes, logprob: float | None) -> dict[str, Any]:
    return {"token": _name(text), "logprob": _number(logprob), "bytes": list(text)}


def _by_name(scored: Scored) -> dict[str, float | None] | None:
    """Return the most likely tokens and the one that was taken; of equal names the likelier."""
    if scored.logprob is None:
        return None
    found: dict[str, float | None] = {}
    for score in (*scored.top, Score(scored.text, scored.logprob)):
        found.setdefault(_name(score.text), _number(score.logprob))
    return found


def _name(text: bytes) -> str:
    """Return a token's text, or its bytes where they are no whole characters, as OpenAI does."""
    try:
        return text.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in text)


def _number(logprob: float | None) -> float | None:
    # In this order, what is no number is the least, too.
    return None if logprob is None else max(_LEAST, logprob)
