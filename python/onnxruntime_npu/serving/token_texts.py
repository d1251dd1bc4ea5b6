"""The texts of tokens, and the grammars over them, for the lane that chooses tokens itself."""

from __future__ import annotations

from pathlib import Path

import llguidance.numpy
import numpy as np
from llguidance import LLMatcher, LLTokenizer

from .engine_messages import Guidance
from .lark import lark_of, refusal_of

_NO_TOKEN = "NoExtensionBias"  # what llguidance says where no token may follow


class GrammarError(ValueError):
    """What was asked for is no grammar."""


class TokenTexts:
    """A tokenizer's tokens as llguidance has them, which is also what the engine's grammars use."""

    def __init__(self, directory: Path, vocabulary: int, stop_tokens: list[int]) -> None:
        """Read tokenizer.json; ValueError for a tokenizer whose tokens have no bytes of their own.

        ``vocabulary`` is the model's, which may have more tokens than the tokenizer.
        """
        self.vocabulary, self.stop_tokens = vocabulary, stop_tokens
        text = (directory / "tokenizer.json").read_text(encoding="utf-8")
        self._tokenizer = LLTokenizer(text, n_vocab=vocabulary, eos_token=stop_tokens)

    def text(self, token: int) -> bytes:
        """Return a token's text, which may be half a character; of a special token its name."""
        return self._tokenizer.decode_bytes([token])

    def mask(self, guidance: Guidance) -> GrammarMask:
        """Return what keeps one answer within a grammar; GrammarError for what is none."""
        try:
            matcher = LLMatcher(self._tokenizer, lark_of(guidance), log_level=0)
        except ValueError as error:
            raise GrammarError(str(error)) from None
        if matcher.is_error():
            raise GrammarError(refusal_of(guidance, str(_error_of(matcher))))
        return GrammarMask(matcher, self.vocabulary)


def _error_of(matcher: LLMatcher) -> GrammarError:
    reason, _, _ = matcher.get_error().partition("<state>")  # what follows is for its developers
    reason = reason.strip()
    return GrammarError("no text follows the grammar" if reason == _NO_TOKEN else reason)


class GrammarMask:
    """Leaves the scores of tokens that can still become a text of a grammar; for one row."""

    def __init__(self, matcher: LLMatcher, vocabulary: int) -> None:
        self._matcher = matcher
        self._bits = llguidance.numpy.allocate_token_bitmask(1, vocabulary)

    def __call__(self, scores: np.ndarray) -> np.ndarray:
        """Return scores [1, V] float32 with -inf for all other tokens.

        Raises GrammarError where the grammar has become too complex to go on.
        """
        llguidance.numpy.fill_next_token_bitmask(self._matcher, self._bits, 0)
        if self._matcher.is_error():
            raise _error_of(self._matcher)
        bits = np.unpackbits(self._bits.view(np.uint8), bitorder="little")
        scores[:, bits[: scores.shape[1]] == 0] = -np.inf
        return scores

    def add(self, tokens: np.ndarray) -> None:
        """Take the new token, [1]."""
        self._matcher.consume_token(int(tokens[0]))
