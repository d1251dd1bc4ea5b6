"""What the eager model gives for the passages of a check: results, not the model, are kept."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from ...context_length import trained_length
from ..model_cache import cache_name
from .passages import Passages

_LONGEST_CONTEXT = 2**20  # of a model whose configuration names none


@dataclass(frozen=True)
class Reference:
    """Results of the eager model in float32.

    ``losses`` [rows, new]: -log p of each token that follows a prompt. ``best`` [rows, new]: the
    most likely tokens there. ``logits`` [rows, sampled, V]: all scores at the ``sampled`` steps.
    ``greedy`` [open rows, new]: the most likely continuations, and ``leads``, by how much the best
    token's logit exceeds the second's.
    """

    passages: Passages
    sampled: list[int]
    losses: np.ndarray
    best: np.ndarray
    logits: np.ndarray
    greedy: np.ndarray
    leads: np.ndarray

    @staticmethod
    @torch.no_grad()
    def of(model: Any, tokenizer: Any | None) -> Reference:
        """Run a transformers causal language model in float32."""
        context = trained_length(model.config) or _LONGEST_CONTEXT
        vocabulary = model.get_input_embeddings().weight.shape[0]
        padding = model.get_input_embeddings().padding_idx
        passages = Passages.of(tokenizer, vocabulary, context, padding)
        new = passages.following.shape[1]
        # The prefill's, the first over a filled cache, one in the middle, and the last.
        sampled = sorted({0, min(1, new - 1), new // 2, new - 1})
        losses, best, logits = [], [], []
        for prompt, following in zip(passages.prompts, passages.following, strict=True):
            row = torch.tensor([[*prompt, *following[:-1].tolist()]])
            scores = model(input_ids=row, use_cache=False).logits[0, len(prompt) - 1 :].float()
            target = torch.from_numpy(following)
            losses.append(torch.nn.functional.cross_entropy(scores, target, reduction="none"))
            best.append(scores.argmax(-1))
            logits.append(scores[sampled])
        opened = torch.tensor(passages.open_prompts)
        try:
            greedy, leads = _greedy(model, opened, new, cache_name(model))
        except Exception:  # of various types: of models whose own cache does not work
            greedy, leads = _greedy(model, opened, new, None)
        return Reference(
            passages,
            sampled,
            torch.stack(losses).numpy(),
            torch.stack(best).numpy(),
            torch.stack(logits).numpy(),
            greedy.numpy(),
            leads.numpy(),
        )


def _greedy(
    model: Any, prompts: torch.Tensor, new: int, name: str | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the most likely tokens [rows, new] after prompts [rows, S], and their leads.

    ``name``: of the argument that takes the cache; None: all tokens are run again for each.
    """
    tokens, leads, cache = prompts, [], None
    # Some models count from 0 in every step if they are not told.
    positioned = "position_ids" in inspect.signature(model.forward).parameters
    for _ in range(new):
        # RecurrentGemma returns no cache; RWKV's code mixes the rows of a batch that follows one.
        given = tokens if cache is None else tokens[:, -1:]
        positions = torch.arange(tokens.shape[1])[-given.shape[1] :]
        options: dict[str, Any] = {}
        if positioned:
            options["position_ids"] = positions.expand(given.shape)
        if name is not None:
            options[name] = cache
        result = model(input_ids=given, use_cache=name is not None, **options)
        cache = None if name in (None, "state") else result.get(name)
        first, second = result.logits[:, -1].float().topk(2).values.unbind(-1)
        leads.append(first - second)
        tokens = torch.cat([tokens, result.logits[:, -1:].argmax(-1)], 1)
    return tokens[:, prompts.shape[1] :], torch.stack(leads, 1)
