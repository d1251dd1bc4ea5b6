"""The rules of generation_config.json on which tokens may come next."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np


class LogitsRules:
    """Forbids and forces tokens.

    ``suppress_tokens`` and ``bad_words_ids`` of one token never come, ``begin_suppress_tokens`` not
    first; ``forced_bos_token_id`` comes first, ``forced_eos_token_id`` last.
    """

    def __init__(self, config: Mapping[str, Any], prompt_length: int, budget: int) -> None:
        """Serve one batch.

        Args:
            config: generation_config.json.
            prompt_length: tokens of the decoder before the first new one.
            budget: max number of new tokens.
        """
        words = config.get("bad_words_ids") or []
        never = [*(config.get("suppress_tokens") or []), *(w[0] for w in words if len(w) == 1)]
        self._never = np.array(never, np.int64)
        self._not_first = np.array(config.get("begin_suppress_tokens") or [], np.int64)
        self._forced: dict[int, int] = {}
        last, first = config.get("forced_eos_token_id"), config.get("forced_bos_token_id")
        if last is not None:
            self._forced[budget - 1] = int(last[0] if isinstance(last, list) else last)
        if first is not None and prompt_length == 1:
            self._forced[0] = int(first)
        self._step = 0

    @property
    def empty(self) -> bool:
        """Whether no rule applies."""
        return not (self._never.size or self._not_first.size or self._forced)

    def __call__(self, scores: np.ndarray) -> np.ndarray:
        """Return scores [rows, V] float32 with those of forbidden tokens at -inf."""
        scores[:, self._never] = -np.inf
        if self._step == 0:
            scores[:, self._not_first] = -np.inf
        if self._step in self._forced:
            scores[:] = -np.inf
            scores[:, self._forced[self._step]] = 0
        return scores

    def add(self, tokens: np.ndarray) -> None:
        """Take the new token of each row, [rows]."""
        del tokens
        self._step += 1
