"""Queries that a layer scales by their positions, as Llama 4 does beyond a length.

The model counts the slots of a growing cache, padding included; other caches do not tell it how
many tokens there are. Here the factor follows from the positions of new tokens. It is 1 up to the
length, of some thousand tokens, so that it is proven with a short one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from .attention_interface import ATTENTION, QUERY_FACTOR
from .key_numbers import positions_of_queries
from .proof import NotProven, compare

_PARTS = ("attn_temperature_tuning", "use_rope", "floor_scale", "attn_scale")
_SHORT = 2  # in the place of the length


def scale_queries_by_positions(model: Any, run: Callable[[Any], Any]) -> None:
    """Let attention scale queries in the place of the modules that do, in place.

    ``run(model)`` runs the model and returns its cache. Raises NotProven where the factor is
    another one, or attention is not called through transformers' interface.
    """
    scaling = [module for module in model.modules() if _scales(module)]
    if not scaling:
        return
    if model.config._attn_implementation != ATTENTION:
        raise NotProven("its queries are scaled by positions that it counts itself")
    lengths = [module.floor_scale for module in scaling]
    for module in scaling:
        module.floor_scale = _SHORT
    expected = _hidden(model, scaling, run)
    for module in scaling:
        module.attn_temperature_tuning = False
        setattr(module, QUERY_FACTOR, _factor(module))
    for theirs, ours in zip(expected, _hidden(model, scaling, run), strict=True):
        compare(theirs, ours, "attention with scaled queries")
    for module, length in zip(scaling, lengths, strict=True):
        module.floor_scale = length


def _scales(module: Any) -> bool:
    """Whether a module scales its queries: one that does not rotate them."""
    has_parts = all(hasattr(module, part) for part in _PARTS)
    return has_parts and bool(module.attn_temperature_tuning) and not module.use_rope


def _factor(module: Any) -> Callable[[torch.Tensor], torch.Tensor]:
    def scaled(query: torch.Tensor) -> torch.Tensor:
        """Scale queries [B, Nq, S, D]."""
        positions = positions_of_queries(query.shape[2])[:, None, :, None]
        steps = torch.floor((positions.float() + 1.0) / module.floor_scale)
        return (query * (torch.log1p(steps) * module.attn_scale + 1.0)).to(query.dtype)

    return scaled


def _hidden(model: Any, modules: list[Any], run: Callable[[Any], Any]) -> list[torch.Tensor]:
    """Return what modules of attention return in a run of the model."""
    outputs: list[torch.Tensor] = []
    hooks = [m.register_forward_hook(lambda _, __, out: outputs.append(out[0])) for m in modules]
    try:
        with torch.no_grad():
            run(model)
    finally:
        for hook in hooks:
            hook.remove()
    return outputs
