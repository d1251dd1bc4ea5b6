"""Lightning attention, as in MiniMax: a sum of keys times values that decays from token to token.

Its module computes by blocks of tokens in a loop, and keeps the sums in a cache of its own class.
Here they are the state of a recurrence over tokens, in a layer of transformers' cache.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from .model_cache import read_cache
from .proof import Findings, attempt, compare
from .replaced_functions import ReplacedFunctions

if TYPE_CHECKING:
    from .recurrences import Recurrences

_PARTS = ("qkv_proj", "out_proj", "output_gate", "norm", "slope_rate", "block_size", "head_dim")


def replace_lightning_attention(
    model: Any, recurrences: Recurrences, functions: ReplacedFunctions, findings: Findings
) -> None:
    """Add the forward passes of lightning attention to ``functions``, each proven."""
    found = [m for m in model.modules() if all(hasattr(m, part) for part in _PARTS)]
    for module in found:
        forward = _forward(module, recurrences)
        attempt(_prove, module, forward)
        functions.add(module, "forward", forward)
        findings.keep("", "recurrence", "not fused: Scan over the tokens")
    if found:
        recurrences.replaced = True
        for name in _own_caches(model):  # which the model insists on
            functions.add(sys.modules[type(model).__module__], name, type(read_cache([])))


def _own_caches(model: Any) -> list[str]:
    """Return the names of the classes of caches that a model's module defines."""
    from transformers import Cache

    module = sys.modules[type(model).__module__]
    classes = {name: value for name, value in vars(module).items() if isinstance(value, type)}
    return [
        name
        for name, value in classes.items()
        if issubclass(value, Cache) and value.__module__ == module.__name__
    ]


def _forward(module: Any, recurrences: Recurrences) -> Callable[..., tuple[torch.Tensor, None]]:
    def forward(
        hidden_states: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        past_key_values: Any = None,
        **_: Any,
    ) -> tuple[torch.Tensor, None]:
        joint = module.act_fn(module.qkv_proj(hidden_states))
        if attention_mask is not None:
            joint = joint * attention_mask[:, :, None].to(joint.dtype)
        query, key, value = joint.unflatten(-1, (-1, 3 * module.head_dim)).chunk(3, -1)
        state = None
        if past_key_values is not None:
            state = past_key_values.get_recurrent_state(module.layer_idx)
        attended, state = recurrences.chunk_scan(
            value,
            torch.ones_like(value[..., 0]),
            -module.slope_rate.flatten(),
            key,
            query,
            initial_states=state,
            return_final_states=True,
        )
        if past_key_values is not None:
            past_key_values.update_recurrent_state(state, module.layer_idx)
        attended = module.norm(attended.to(hidden_states.dtype).flatten(2))
        gate = nn.functional.sigmoid(module.output_gate(hidden_states))
        return module.out_proj(gate * attended), None

    return forward


def _prove(module: Any, forward: Callable[..., tuple[torch.Tensor, None]]) -> float:
    """Compare outputs of more than two blocks of tokens."""
    x = torch.randn(1, 2 * module.block_size + 3, module.qkv_proj.in_features)
    expected = module(hidden_states=x, position_embeddings=None, attention_mask=None)[0]
    return compare(expected, forward(hidden_states=x)[0], "attention output")
