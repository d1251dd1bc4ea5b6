"""Embeddings of hashed n-grams, as in Qwen4-Exp: a step needs the tokens before its own.

Transformers keeps those tokens as it keeps a convolution's columns, and looks back for the end of
a text by a cumulative maximum, which ONNX has not. Here a state is the distance of each token from
the one that ends a text: zeros, with which a cache begins, stand for no token.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from .proof import NotProven, attempt, compare
from .replaced_functions import ReplacedFunctions

_PARTS = ("ngram_embedding", "ngram_size", "context_len", "eos_token_id", "_shift_right_ignore_eos")
_PLACE = 2  # of the tokens among the states of a layer's convolutions


def keep_tokens_as_states(model: Any, functions: ReplacedFunctions) -> None:
    """Add the forward passes of embeddings of n-grams to ``functions``, each proven."""
    for module in model.modules():
        if all(hasattr(module, part) for part in _PARTS):
            attempt(_prove, module)
            functions.add(module, "_shift_right_ignore_eos", _shifted(module))
            functions.add(module, "forward", _forward(module))


def _shifted(module: Any) -> Callable[[torch.Tensor, int], torch.Tensor]:
    end = module.eos_token_id

    def shifted(token_ids: torch.Tensor, shift: int) -> torch.Tensor:
        """Return the token ``shift`` before each of [B, T], or the end where a text begins."""
        if shift == 0:
            return token_ids
        padded = torch.nn.functional.pad(token_ids, (shift, 0), value=end)
        before = [padded[:, shift - back : padded.shape[1] - back] for back in range(1, shift + 1)]
        ended = torch.stack([tokens == end for tokens in before]).any(0)
        return torch.where(ended, end, before[-1])

    return shifted


def _forward(module: Any) -> Callable[..., torch.Tensor]:
    own, kept = type(module).forward, module.context_len

    def forward(input_ids: torch.Tensor, past_key_values: Any = None) -> torch.Tensor:
        """Return the embeddings of input_ids [B, S] behind the tokens of the cache."""
        end, input_ids = module.eos_token_id, input_ids.long()
        states: dict[int, torch.Tensor | None] = {}
        if past_key_values is not None:
            layer = past_key_values.layers[module.layer_idx]
            if not getattr(layer, "joins", True):
                raise NotProven("its n-grams need rows that end with their last tokens")
            states = layer.conv_states
        state = states.get(_PLACE)
        if state is None:
            state = input_ids.new_zeros(input_ids.shape[0], kept)
        history = torch.cat([state.long() + end, input_ids], dim=1)
        if past_key_values is not None:
            states[_PLACE] = (history[:, history.shape[1] - kept :] - end).to(state.dtype)
        return own(module, history, None)[:, kept:]

    return forward


def _prove(module: Any) -> float:
    """Compare tokens of which some end a text, and the embeddings of all of them."""
    tokens = torch.randint(0, 3, (2, 40)) + max(0, module.eos_token_id - 1)
    shifted = _shifted(module)
    for shift in range(module.ngram_size):
        expected = module._shift_right_ignore_eos(tokens, shift)
        compare(expected.double(), shifted(tokens, shift).double(), "earlier tokens")
    tokens = tokens.clamp(max=module.unigram_vocab_size - 1)
    return compare(module(tokens, None), _forward(module)(tokens), "embeddings of n-grams")
