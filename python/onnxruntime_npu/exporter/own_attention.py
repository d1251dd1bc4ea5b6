"""Fused attention of models that compute it themselves, not by transformers' interface.

Three forms are known, and proven on the shapes of the model's own calls: a method ``_attn`` of the
layer's module, torch's ``scaled_dot_product_attention``, and attention with ALiBi in a module that
splits a joint projection. Each becomes ``npu_fused_infer_attention_score``.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import torch
from torch import nn

from .attention_interface import ATTENTION, NOT_CALLED, attend
from .proof import Findings, NotProven, attempt, compare
from .replaced_functions import ReplacedFunctions, observed

_OPERATOR = "npu_fused_infer_attention_score"
_SDPA = "scaled_dot_product_attention"
_Probe = Callable[[Any], object]


def fuse_own_attention(
    model: Any, probe: _Probe, functions: ReplacedFunctions, findings: Findings
) -> None:
    """Add what replaces the model's attention to ``functions``, and record it, or why not.

    ``probe(model)`` runs the model once.
    """
    reason = NOT_CALLED
    for fuse in (_fuse_methods, _fuse_alibi, _fuse_sdpa):
        try:
            differences = attempt(fuse, model, probe, functions)
        except NotProven as error:
            reason = f"not fused: {error}"
            continue
        if differences:
            findings.replaced(_OPERATOR, max(differences), nodes=len(differences))
            return
    findings.keep("", "attention", reason)


def _fuse_methods(model: Any, probe: _Probe, functions: ReplacedFunctions) -> list[float]:
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
    return [difference for *_, difference in replacements]


def _proven_method(
    module: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *_: Any
) -> tuple[Callable[..., Any], float]:
    """Return the fused method and its difference, on random tensors of a call's shapes."""
    query, key, value = (torch.randn_like(each) for each in (query, key, value))
    visible = _random_mask(query, key)
    method = _method(query.shape[-1] ** -0.5)
    expected = module._attn(query, key, value, _as_bias(visible))[0]
    return method, compare(expected, method(query, key, value, visible)[0], "attention")


def _method(scale: float) -> Callable[..., tuple[torch.Tensor, None]]:
    def _attn(
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attention_mask: torch.Tensor,
    ) -> tuple[torch.Tensor, None]:
        return attend(query, key, value, scale, attention_mask).transpose(1, 2), None

    return _attn


def _fuse_sdpa(model: Any, probe: _Probe, functions: ReplacedFunctions) -> list[float]:
    """Replace torch's function where the model calls it with a mask."""
    with observed(nn.functional, _SDPA) as calls:
        probe(model)
    differences = [_prove_sdpa(*arguments, **options) for arguments, options in calls]
    if calls:
        functions.add(nn.functional, _SDPA, _sdpa)
    return differences


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


def _fuse_alibi(model: Any, probe: _Probe, functions: ReplacedFunctions) -> list[float]:
    """Replace the forward pass of attention that takes ALiBi and splits a joint projection."""
    modules = [module for module in model.modules() if _takes_alibi(module)]
    differences = [_prove_alibi(module) for module in modules]
    for module in modules:
        functions.add(module, "forward", _alibi_forward(module))
    if modules:
        model.config._attn_implementation = ATTENTION  # for masks of visible keys
    return differences


def _takes_alibi(module: nn.Module) -> bool:
    parts = ("query_key_value", "_reshape", "inv_norm_factor", "dense")
    has_parts = all(hasattr(module, name) for name in parts)
    return has_parts and "alibi" in inspect.signature(module.forward).parameters


def _alibi_forward(module: Any) -> Callable[..., tuple[torch.Tensor, None]]:
    def forward(
        hidden_states: torch.Tensor,
        residual: torch.Tensor,
        alibi: torch.Tensor,
        attention_mask: torch.Tensor,
        layer_past: Any = None,
        **_: Any,
    ) -> tuple[torch.Tensor, None]:
        query, key, value = module._reshape(module.query_key_value(hidden_states))
        if layer_past is not None:
            key, value = layer_past.update(key, value, module.layer_idx)
        bias = alibi.unflatten(0, query.shape[:2])  # [B, N, 1, T]
        attended = attend(query, key, value, module.inv_norm_factor, attention_mask, bias)
        return module.dense(attended.flatten(2)) + residual, None

    return forward


def _prove_alibi(module: Any) -> float:
    hidden, residual = torch.randn(2, 2, 5, module.query_key_value.in_features)
    query, key, _ = module._reshape(module.query_key_value(hidden))
    visible = _random_mask(query, key)
    alibi = torch.randn(query.shape[0] * query.shape[1], 1, key.shape[2])
    expected = module(hidden, residual, alibi, _as_bias(visible))[0]
    return compare(expected, _alibi_forward(module)(hidden, residual, alibi, visible)[0], "output")


def _random_mask(query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    """Return a mask of visible keys [B, 1, S, T] without an order, at least one for a token."""
    visible = torch.rand(query.shape[0], 1, query.shape[2], key.shape[2]) < 0.5
    visible[..., 0] = True
    return visible


def _as_bias(visible: torch.Tensor) -> torch.Tensor:
    return torch.zeros(visible.shape).masked_fill(~visible, torch.finfo(torch.float32).min)
