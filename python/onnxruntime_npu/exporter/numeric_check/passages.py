"""Token rows for the check: prompts, and what follows them in the shipped text."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import resources
from typing import Any

import numpy as np

_ROWS = 12
_GREEDY_ROWS = 4
_NEW_TOKENS = 64
_LONGEST = 2 * _NEW_TOKENS  # a prompt and what follows it
_RAGGED = 5  # prompts are up to so many tokens shorter, so that a batch is padded
_SHIPPED = "shipped text"
_RANDOM = "random token ids"


def evaluation_text() -> str:
    """Return the text that perplexities are measured on, a few pages of plain English prose."""
    return resources.files(__package__).joinpath("evaluation.txt").read_text(encoding="utf-8")


@dataclass(frozen=True)
class Passages:
    """Prompts of different lengths with the tokens that follow, and prompts to continue greedily.

    ``following`` is int64 [rows, new]. ``open_prompts`` are of one length and get ``new`` tokens,
    too. ``source`` says what the tokens are.
    """

    prompts: list[list[int]]
    following: np.ndarray
    open_prompts: list[list[int]]
    source: str

    @property
    def is_text(self) -> bool:
        """Whether a language model can predict these tokens."""
        return self.source == _SHIPPED

    @staticmethod
    def of(
        tokenizer: Any | None, vocabulary: int, context: int, padding: int | None = None
    ) -> Passages:
        """Return passages that fit a context, of text if the tokenizer's ids are in range.

        Random ids are any but ``padding``, whose embedding is often zero: of equal scores that
        follow from it, as those of experts, rounding chooses.
        """
        ids, prefix, source = _text_ids(tokenizer, vocabulary)
        if ids is None:
            left_out = [] if padding is None else [padding]
            known = np.delete(np.arange(vocabulary), left_out)
            ids = np.random.default_rng(5).choice(known, 16 * _LONGEST)
        length = max(2, min(_LONGEST, context))
        new = length // 2
        starts = np.linspace(0, len(ids) - length, _ROWS, dtype=np.int64)
        rows = [[*prefix, *ids[start : start + length]][:length] for start in starts.tolist()]
        cut = [min(index % (_RAGGED + 1), length - new - 1) for index in range(_ROWS)]
        return Passages(
            prompts=[
                [int(token) for token in row[: length - new - short]]
                for row, short in zip(rows, cut, strict=True)
            ],
            following=np.array(
                [
                    row[length - new - short : length - short]
                    for row, short in zip(rows, cut, strict=True)
                ],
                np.int64,
            ),
            open_prompts=[
                [int(token) for token in row[: length - new]]
                for row in rows[:: _ROWS // _GREEDY_ROWS]
            ],
            source=source,
        )


def _text_ids(tokenizer: Any | None, vocabulary: int) -> tuple[np.ndarray | None, list[int], str]:
    """Return the ids of the shipped text, those that precede every text, and what they are."""
    if tokenizer is None:
        return None, [], _RANDOM
    text = evaluation_text()
    ids = np.array(tokenizer(text, add_special_tokens=False)["input_ids"], np.int64)
    if len(ids) < 2 * _LONGEST or ids.min() < 0 or ids.max() >= vocabulary:
        return None, [], f"{_RANDOM}: the tokenizer's do not fit a vocabulary of {vocabulary}"
    first = tokenizer.bos_token_id
    begins = first is not None and tokenizer(text)["input_ids"][:1] == [first]
    return ids, [first] if begins else [], _SHIPPED
