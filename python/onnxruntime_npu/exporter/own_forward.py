"""Fused forward passes of attention modules that project, cache and attend in one method.

Each form below reads a module by its parts, and is proven on the given one.
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from typing import Any

import torch
from torch import nn

from .attention_interface import ATTENTION, attend, attend_visible
from .proof import compare
from .replaced_functions import ReplacedFunctions, observed

_Forward = Callable[..., tuple[torch.Tensor, None]]
_BATCH, _NEW = 2, 5  # of the proof


class _Form(ABC):
    """Modules that attend alike."""

    parts: tuple[str, ...]  # attributes of the module
    arguments: tuple[str, ...]  # of its forward pass

    def takes(self, module: nn.Module) -> bool:
        """Whether a module has the parts and arguments."""
        if not all(hasattr(module, name) for name in self.parts):
            return False
        return set(self.arguments) <= set(inspect.signature(module.forward).parameters)

    @abstractmethod
    def forward(self, module: Any) -> _Forward:
        """Return the fused forward pass, whose mask [B, 1, S, T] is of visible keys."""

    @abstractmethod
    def example(self, module: Any) -> dict[str, torch.Tensor]:
        """Return arguments without a mask, of [_BATCH, _NEW, ..]."""

    def mask(self, visible: torch.Tensor) -> torch.Tensor:
        """Return the mask that the original takes; by default it is added to the scores."""
        return added_mask(visible)


class _Alibi(_Form):
    """As in Bloom and Falcon: a joint projection, ALiBi by head and key, and a residual."""

    parts = ("query_key_value", "_reshape", "inv_norm_factor", "dense")
    arguments = ("hidden_states", "residual", "alibi", "attention_mask", "layer_past")

    def forward(self, module: Any) -> _Forward:
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

    def example(self, module: Any) -> dict[str, torch.Tensor]:
        hidden, residual = torch.randn(2, _BATCH, _NEW, module.query_key_value.in_features)
        query, key, _ = module._reshape(module.query_key_value(hidden))
        alibi = torch.randn(query.shape[0] * query.shape[1], 1, key.shape[2])
        return {"hidden_states": hidden, "residual": residual, "alibi": alibi}


class _LastPositions(_Form):
    """As in MPT: a joint projection and ALiBi of the longest context, whose end counts."""

    parts = ("Wqkv", "out_proj", "softmax_scale", "clip_qkv", "n_heads", "layer_idx")
    arguments = ("hidden_states", "position_bias", "past_key_values", "attention_mask")

    def forward(self, module: Any) -> _Forward:
        def forward(
            hidden_states: torch.Tensor,
            position_bias: torch.Tensor,
            past_key_values: Any = None,
            attention_mask: Any = None,
            **_: Any,
        ) -> tuple[torch.Tensor, None]:
            joint = module.Wqkv(hidden_states)
            if module.clip_qkv:
                joint = joint.clamp(min=-module.clip_qkv, max=module.clip_qkv)
            query, key, value = (_heads(part, module.n_heads) for part in joint.chunk(3, -1))
            if past_key_values is not None:
                key, value = past_key_values.update(key, value, module.layer_idx)
            first = position_bias.shape[2] - key.shape[2]
            bias = position_bias[None, :, :, first:].to(query.dtype)  # [1, N, 1, T]
            attended = attend(query, key, value, module.softmax_scale, attention_mask, bias)
            return module.out_proj(attended.flatten(2)), None

        return forward

    def example(self, module: Any) -> dict[str, torch.Tensor]:
        bias = torch.randn(module.n_heads, 1, 2 * _NEW)
        return {
            "hidden_states": torch.randn(_BATCH, _NEW, module.Wqkv.in_features),
            "position_bias": bias,
        }

    def mask(self, visible: torch.Tensor) -> torch.Tensor:
        """Return the keys that are hidden."""
        return ~visible


class _Projections(_Form):
    """As in XGLM: four projections, and queries that are scaled before."""

    parts = ("q_proj", "k_proj", "v_proj", "out_proj", "num_heads", "scaling", "layer_idx")
    arguments = ("hidden_states", "key_value_states", "past_key_values", "attention_mask")

    def takes(self, module: nn.Module) -> bool:
        """Leave attention to an encoder, which the models are built without."""
        return super().takes(module) and bool(getattr(module, "is_decoder", False))

    def forward(self, module: Any) -> _Forward:
        def forward(
            hidden_states: torch.Tensor,
            attention_mask: torch.Tensor,
            past_key_values: Any = None,
            **_: Any,
        ) -> tuple[torch.Tensor, None]:
            projections = module.q_proj, module.k_proj, module.v_proj
            parts = (_heads(project(hidden_states), module.num_heads) for project in projections)
            attended = _attended(module, parts, module.scaling, attention_mask, past_key_values)
            return module.out_proj(attended), None

        return forward

    def example(self, module: Any) -> dict[str, torch.Tensor]:
        return {"hidden_states": torch.randn(_BATCH, _NEW, module.q_proj.in_features)}


class _HeadsOfBert(_Form):
    """As in Megatron-BERT, RemBERT and BigBird: three projections, and no output's."""

    parts = ("query", "key", "value", "attention_head_size", "num_attention_heads", "layer_idx")
    arguments = ("hidden_states", "attention_mask", "encoder_hidden_states", "past_key_values")
    _unused = ("encoder_attention_mask", "output_attentions", "kwargs")

    def takes(self, module: nn.Module) -> bool:
        """Leave attention that takes more, as RoFormer's positions, and that of encoders."""
        if not super().takes(module) or not getattr(module, "is_decoder", False):
            return False
        others = set(inspect.signature(module.forward).parameters) - set(self.arguments)
        return others <= set(self._unused)

    def forward(self, module: Any) -> _Forward:
        def forward(
            hidden_states: torch.Tensor,
            attention_mask: torch.Tensor,
            past_key_values: Any = None,
            **_: Any,
        ) -> tuple[torch.Tensor, None]:
            projections = module.query, module.key, module.value
            heads = module.num_attention_heads
            parts = (_heads(project(hidden_states), heads) for project in projections)
            scale = module.attention_head_size**-0.5
            return _attended(module, parts, scale, attention_mask, past_key_values), None

        return forward

    def example(self, module: Any) -> dict[str, torch.Tensor]:
        return {"hidden_states": torch.randn(_BATCH, _NEW, module.query.in_features)}


_FORMS: tuple[_Form, ...] = (_Alibi(), _LastPositions(), _Projections(), _HeadsOfBert())


def fuse_forward(
    model: Any, probe: Callable[[Any], object], functions: ReplacedFunctions
) -> list[float]:
    """Replace the forward passes of a model's attention; return the difference of each.

    Modules are recognised by their parts; those that ``probe(model)`` does not call are left, as
    attention to an encoder in decoders that are used without one.
    """
    found = [(module, form) for module in model.modules() for form in _FORMS if form.takes(module)]
    with ExitStack() as stack:
        observations = [stack.enter_context(observed(module, "forward")) for module, _ in found]
        probe(model)
    found = [each for each, calls in zip(found, observations, strict=True) if calls]
    differences = [_prove(module, form) for module, form in found]
    for module, form in found:
        functions.add(module, "forward", form.forward(module))
    if found:
        model.config._attn_implementation = ATTENTION  # for masks of visible keys
    return differences


def _prove(module: Any, form: _Form) -> float:
    given = form.example(module)
    visible = random_mask(_BATCH, _NEW, _NEW)
    expected = module(**given, attention_mask=form.mask(visible))[0]
    return compare(expected, form.forward(module)(**given, attention_mask=visible)[0], "output")


def _attended(
    module: Any, parts: Iterable[torch.Tensor], scale: float, visible: torch.Tensor, cache: Any
) -> torch.Tensor:
    """Attend by queries, keys and values [B, N, S, D] of a layer; returns [B, S, N * D]."""
    query, key, value = parts
    if cache is not None:
        key, value = cache.update(key, value, module.layer_idx)
    return attend_visible(query, key, value, scale, visible).flatten(2)


def _heads(x: torch.Tensor, count: int) -> torch.Tensor:
    """Return [B, N, S, D] of [B, S, N * D]."""
    return x.unflatten(-1, (count, -1)).transpose(1, 2)


def random_mask(batch: int, new: int, total: int) -> torch.Tensor:
    """Return a mask of visible keys [B, 1, S, T] without an order, at least one for a token."""
    visible = torch.rand(batch, 1, new, total) < 0.5
    visible[..., 0] = True
    return visible


def added_mask(visible: torch.Tensor) -> torch.Tensor:
    """Return what transformers adds to the scores for a mask of visible keys."""
    return torch.zeros(visible.shape).masked_fill(~visible, torch.finfo(torch.float32).min)
