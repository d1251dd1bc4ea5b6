"""The rules of generation_config.json on which tokens may come next."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import onnxruntime as ort

from ..session.ortvalue import ortvalue_to_numpy


class LogitsRules:
    """Forbids and forces tokens, then lets another chooser choose.

    ``suppress_tokens`` and ``bad_words_ids`` of one token never come, ``begin_suppress_tokens`` not
    first; ``forced_bos_token_id`` comes first, ``forced_eos_token_id`` last.
    """

    def __init__(
        self,
        config: Mapping[str, Any],
        prompt_length: int,
        budget: int,
        choose: Callable[[ort.OrtValue], np.ndarray],
    ) -> None:
        """Serve one batch.

        Args:
            config: generation_config.json.
            prompt_length: tokens of the decoder before the first new one.
            budget: max number of new tokens.
            choose: returns the token of each row for logits [B, S, V].
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
        self._choose = choose

    @property
    def empty(self) -> bool:
        """Whether no rule applies."""
        return not (self._never.size or self._not_first.size or self._forced)

    def __call__(self, logits: ort.OrtValue) -> np.ndarray:
        """Return the token of each row, int64 [rows]."""
        last = np.array(ortvalue_to_numpy(logits)[:, -1:])
        last[..., self._never] = -np.inf
        if self._step == 0:
            last[..., self._not_first] = -np.inf
        if self._step in self._forced:
            token = self._forced[self._step]
            last = np.where(np.arange(last.shape[-1]) == token, np.float32(0), -np.inf)[None, None]
            last = np.repeat(last.astype(np.float32), logits.shape()[0], 0)
        self._step += 1
        return self._choose(ort.OrtValue.ortvalue_from_numpy(np.ascontiguousarray(last)))
