"""Fused attention of models that compute it themselves, not by transformers' interface.

A method ``_attn`` of the layer's module and torch's ``scaled_dot_product_attention`` are proven on
the shapes of the model's own calls; modules that do all in their forward pass are those of
own_forward.py. Each becomes ``npu_fused_infer_attention_score``.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import torch
from torch import nn

from .attention_form import added_mask, random_mask
from .attention_interface import (
    ATTENTION,
    NOT_CALLED,
    AttentionCall,
    attend,
    attend_shared,
)
from .key_numbers import numbers_of_keys
from .own_forward import Fused, fuse_forward
from .proof import Findings, NotProven, attempt, compare
from .replaced_functions import ReplacedFunctions, observed

_OPERATOR = "npu_fused_infer_attention_score"
_SDPA = "scaled_dot_product_attention"
_Probe = Callable[[Any], object]


def fuse_own_attention(
    model: Any, probe: _Probe, functions: ReplacedFunctions, findings: Findings
) -> bool:
    """Add what replaces the model's attention to ``functions``, and record it, or why not.

    ``probe(model)`` runs the model once. Returns whether scores have a bias by the numbers of keys.
    """
    reason = NOT_CALLED
    for fuse in (_fuse_methods, fuse_forward, _fuse_sdpa):
        try:
            fused = attempt(fuse, model, probe, functions)
        except NotProven as error:
            reason = f"not fused: {error}"
            continue
        if fused.differences:
            findings.replaced(_OPERATOR, max(fused.differences), nodes=len(fused.differences))
            return fused.biased
    findings.keep("", "attention", reason)
    return False


def _fuse_methods(model: Any, probe: _Probe, functions: ReplacedFunctions) -> Fused:
    """Replace ``_attn(query, key, value, attention_mask)`` of every module that has it."""
    modules = [module for module in model.modules() if hasattr(module, "_attn")]
    with ExitStack() as stack:
        observations = [stack.enter_context(observed(module, "_attn")) for module in modules]
        probe(model)
    replacements = [
        (module, *_proven_method(module, *arguments))
        for module, calls in zip(modules, observations, strict=True)
        for arguments, _ in calls
    ]
    for module, method, _ in replacements:
        functions.add(module, "_attn", method)
    if replacements:
        model.config._attn_implementation = ATTENTION  # for masks of visible keys
    return Fused([difference for *_, difference in replacements])


def _proven_method(
    module: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *_: Any
) -> tuple[Callable[..., Any], float]:
    """Return the fused method and its difference, on random tensors of a call's shapes."""
    query, key, value = (torch.randn_like(each) for each in (query, key, value))
    window = _window_of(module)
    visible = random_mask(query.shape[0], query.shape[2], key.shape[2])
    if hasattr(module, "bias"):  # a mask that such a module adds itself
        own = torch.eye(*visible.shape[-2:], dtype=torch.bool)  # in any window
        visible = (visible | own) & torch.ones_like(visible).tril()
    expected = module._attn(query, key, value, added_mask(visible))[0]
    first: NotProven | None = None
    for scale in (query.shape[-1] ** -0.5, 1.0):
        method = _method(scale, window)
        try:
            return method, compare(expected, method(query, key, value, visible)[0], "attention")
        except NotProven as error:
            first = first or error
    assert first is not None
    raise first


def _window_of(module: Any) -> int | None:
    """Return the window of a module that has a causal mask of its own, as GPT-Neo's have.

    None for all keys before a token, or without such a mask; raises NotProven for another mask.
    """
    own = getattr(module, "bias", None)
    if not isinstance(own, torch.Tensor):
        return None
    size = own.shape[-1]
    window = int(own[..., -1, :].sum())
    place = torch.arange(size)
    band = (place <= place[:, None]) & (place > place[:, None] - window)
    if own.dtype != torch.bool or own.dim() != 4 or not torch.equal(own[0, 0], band):
        raise NotProven("its own mask is neither causal nor a sliding window")
    return None if window == size else window


def _method(scale: float, window: int | None) -> Callable[..., tuple[torch.Tensor, None]]:
    def _attn(
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attention_mask: torch.Tensor,
    ) -> tuple[torch.Tensor, None]:
        call = AttentionCall(query, key, value, attention_mask, scale, window=window)
        attended = attend_shared(call)
        if attended is None:
            visible = attention_mask
            if window is not None:
                visible = visible & _near(query.shape[2], key.shape[2], window)
            attended = attend(query, key, value, scale, visible)
        return attended.transpose(1, 2), None

    return _attn


def _near(new: int, total: int, window: int) -> torch.Tensor:
    """Return which keys are within the window before each new token, [B or 1, 1, S, T]."""
    keys, _ = numbers_of_keys(total)
    return keys[:, None, None, :] > keys[:, None, total - new :, None] - window


def _fuse_sdpa(model: Any, probe: _Probe, functions: ReplacedFunctions) -> Fused:
    """Replace torch's function where the model calls it with a mask."""
    with observed(nn.functional, _SDPA) as calls:
        probe(model)
    differences = [_prove_sdpa(*arguments, **options) for arguments, options in calls]
    if calls:
        functions.add(nn.functional, _SDPA, _sdpa)
    return Fused(differences)


def _prove_sdpa(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, **options: Any
) -> float:
    query, key, value = (torch.randn_like(each) for each in (query, key, value))
    expected = nn.functional.scaled_dot_product_attention(query, key, value, **options)
    return compare(expected, _sdpa(query, key, value, **options), "attention")


def _sdpa(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor,
    dropout_p: float = 0.0,
    is_causal: bool = False,
) -> torch.Tensor:
    return attend(query, key, value, query.shape[-1] ** -0.5, attn_mask).transpose(1, 2)
