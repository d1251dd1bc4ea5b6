"""Attention to those keys alone that an indexer has chosen for each token, as in DeepSeek-V3.2."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from .model_cache import layer_kinds
from .proof import attempt
from .replaced_functions import ReplacedFunctions


def choose_in_graph(model: Any, functions: ReplacedFunctions) -> None:
    """Let indexers choose as many keys as there are at a step, and not as many as in the example.

    They take the least of their number and that of the keys by Python's ``min``, which compares
    sizes while a model is traced.
    """
    if any(kind.indexed for kind in layer_kinds(model)):
        functions.add(sys.modules[type(model).__module__], "min", torch.sym_min)


def replace_indexers(
    model: Any,
    functions: ReplacedFunctions,
    parts: Sequence[str],
    forward_of: Callable[[Any], Callable[..., torch.Tensor]],
    prove: Callable[..., float],
) -> None:
    """Add forward passes of the modules that have all parts to ``functions``, each proven.

    ``prove`` takes the model's rotary embedding, a module, and what ``forward_of`` returns for it.
    """
    for module in model.modules():
        if all(hasattr(module, part) for part in parts):
            forward = forward_of(module)
            attempt(prove, model.get_decoder().rotary_emb, module, forward)
            functions.add(module, "forward", forward)


def largest(scores: torch.Tensor, count: int) -> torch.Tensor:
    """Return the mask of the ``count`` largest scores [.., T] of a row, but for those of -inf."""
    # Further columns, which are cut off again: there may be fewer scores.
    padded = nn.functional.pad(scores, (0, count), value=-torch.inf)
    chosen = torch.zeros_like(padded, dtype=torch.bool)
    chosen = chosen.scatter(-1, padded.topk(count, dim=-1).indices, True)
    return chosen[..., : scores.shape[-1]] & (scores > -torch.inf)


def chosen_keys(indices: torch.Tensor, count: int, visible: torch.Tensor | None) -> torch.Tensor:
    """Return the mask [B, 1, S, T] of ``count`` keys that are visible, and in indices [B, S, n]."""
    chosen = torch.zeros(*indices.shape[:2], count, dtype=torch.bool)
    chosen = chosen.scatter(-1, indices.long(), True)[:, None]
    return chosen if visible is None else chosen & visible
