"""The decoder of a model that keeps nothing of earlier tokens, or not as this package can prove.

The tokens themselves are its state: each step runs all tokens of a row again, as transformers
generates with such a model. Rows are run with their tokens at the front, in the order in which they
came: padding comes after them, where causal layers do not see it, so that the model needs neither a
mask nor positions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from .attention_interface import NOT_CALLED, fuse_attention
from .caches.dynamic import DynamicStep
from .caches.step import CacheSizes, LayerCache, State, Step
from .kept_model import KeptModel
from .model_cache import run_without_cache
from .original import decoder_role_of, replace_decoder_modules
from .proof import Findings, NotProven
from .replaced_functions import ReplacedFunctions
from .rotary_function import replace_rotary

_TOKENS = State(layer=0, kind="token_state", place=0, shape=(), summed=True, rate=1)


class RecomputingDecoder(KeptModel):
    """Token ids to logits, by the model's run over all tokens so far."""

    def __init__(self, model: Any, functions: ReplacedFunctions) -> None:
        super().__init__(model, functions)
        self.cache_sizes: list[CacheSizes] = []
        self.cached_layers: list[int] = []
        self.states = [_TOKENS]
        self.layer_count = _layers(model)

    def decode(
        self,
        input_ids: torch.Tensor,
        positions: torch.Tensor,
        lengths: torch.Tensor,
        step: Step,
        past: list[LayerCache],
        scored: Callable[[torch.Tensor], torch.Tensor],
    ) -> tuple[torch.Tensor, list[LayerCache]]:
        """Decode input_ids [B, S] after the tokens of the state [B, T - S].

        Returns logits [rows, V] in float32, of the tokens [rows, H] that ``scored`` takes of the
        head's input [B, S, H], and no cache of layers.
        """
        del positions, lengths, past  # they follow from the tokens
        if not isinstance(step, DynamicStep):
            raise NotProven("it runs all tokens again at each step, in a growing cache alone")
        before = step.states[0]
        tokens = torch.cat([before.to(input_ids.dtype), input_ids], dim=1)
        step.states = [tokens.to(before.dtype)]
        places = _places(step.attention_mask)
        new = places[:, places.shape[1] - input_ids.shape[1] :]

        def scored_of_new(hidden: torch.Tensor) -> torch.Tensor:
            return scored(hidden.gather(1, new[:, :, None].expand(-1, -1, hidden.shape[2])))

        with self.scoring(scored_of_new):
            ordered = torch.zeros_like(tokens).scatter(1, places, tokens)
            logits = self.model(input_ids=ordered, use_cache=False).logits
        return logits.float(), []


def _layers(model: Any) -> int:
    return int(getattr(model.config, "num_hidden_layers", 1))


def _places(mask: torch.Tensor) -> torch.Tensor:
    """Return where each token goes, [B, T]: tokens of a row to its front, padding behind them."""
    real = (mask != 0).long()
    count, padding = real.cumsum(1), (1 - real).cumsum(1)
    return torch.where(mask != 0, count, count[:, -1:] + padding) - 1


def recompute(model: Any, reason: object, opset: int) -> tuple[RecomputingDecoder, Findings]:
    """Return the model with proven modules replaced in place, and the findings.

    Args:
        model: a transformers language model in float32, which is changed.
        reason: why the model is not exported with a cache.
        opset: that of the file, whose operators are used.

    Raises NotProven for a model without layers.
    """
    if _layers(model) < 1:
        raise NotProven("expected layers, got none")
    findings = Findings()
    findings.keep("", "decoder", f"without a cache, all tokens are run again: {reason}")
    replace_decoder_modules(model, decoder_role_of, findings)
    functions = ReplacedFunctions()
    if not fuse_attention(model, run_without_cache, findings, functions, opset):
        findings.keep("", "attention", NOT_CALLED)
    replace_rotary(model, run_without_cache, functions, findings)
    return RecomputingDecoder(model, functions).eval(), findings
