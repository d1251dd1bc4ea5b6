"""Fused forward passes of attention modules that project, cache and attend in one method.

Each form below reads a module by its parts, and is proven on the given one.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from typing import Any, NamedTuple

import torch
from torch import nn

from .alibi import Alibi
from .attention_form import BATCH, NEW, Form, Forward, heads_of, random_mask
from .attention_interface import ATTENTION, attend_visible
from .biased_forward import BiasInMask, BiasOfContext, BiasOfRows
from .proof import compare
from .replaced_functions import Call, ReplacedFunctions, observed


class Fused(NamedTuple):
    """What became of the attention of a model's own.

    Attributes:
        differences: of each replacement.
        biased: whether scores have a bias by the numbers of keys.
    """

    differences: list[float]
    biased: bool = False


class _Projections(Form):
    """As in XGLM: four projections, and queries that are scaled before."""

    parts = ("q_proj", "k_proj", "v_proj", "out_proj", "num_heads", "scaling", "layer_idx")
    arguments = ("hidden_states", "key_value_states", "past_key_values", "attention_mask")

    def takes(self, module: nn.Module) -> bool:
        """Leave attention to an encoder, which the models are built without."""
        return super().takes(module) and bool(getattr(module, "is_decoder", False))

    def forward(self, module: Any, alibi: Alibi | None) -> Forward:
        def forward(
            hidden_states: torch.Tensor,
            attention_mask: torch.Tensor,
            past_key_values: Any = None,
            **_: Any,
        ) -> tuple[torch.Tensor, None]:
            projections = module.q_proj, module.k_proj, module.v_proj
            parts = (heads_of(project(hidden_states), module.num_heads) for project in projections)
            attended = _attended(module, parts, module.scaling, attention_mask, past_key_values)
            return module.out_proj(attended), None

        return forward

    def example(self, module: Any, alibi: Alibi | None) -> dict[str, torch.Tensor]:
        return {"hidden_states": torch.randn(BATCH, NEW, module.q_proj.in_features)}


class _HeadsOfBert(Form):
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

    def forward(self, module: Any, alibi: Alibi | None) -> Forward:
        def forward(
            hidden_states: torch.Tensor,
            attention_mask: torch.Tensor,
            past_key_values: Any = None,
            **_: Any,
        ) -> tuple[torch.Tensor, None]:
            projections = module.query, module.key, module.value
            heads = module.num_attention_heads
            parts = (heads_of(project(hidden_states), heads) for project in projections)
            scale = module.attention_head_size**-0.5
            return _attended(module, parts, scale, attention_mask, past_key_values), None

        return forward

    def example(self, module: Any, alibi: Alibi | None) -> dict[str, torch.Tensor]:
        return {"hidden_states": torch.randn(BATCH, NEW, module.query.in_features)}


_FORMS: tuple[Form, ...] = (
    BiasOfRows(),
    BiasOfContext(),
    BiasInMask(),
    _Projections(),
    _HeadsOfBert(),
)


def fuse_forward(model: Any, probe: Callable[[Any], object], functions: ReplacedFunctions) -> Fused:
    """Replace the forward passes of a model's attention.

    Modules are recognised by their parts; those that ``probe(model)`` does not call are left, as
    attention to an encoder in decoders that are used without one.
    """
    found = [(module, form) for module in model.modules() for form in _FORMS if form.takes(module)]
    with ExitStack() as stack:
        observations = [stack.enter_context(observed(module, "forward")) for module, _ in found]
        probe(model)
    called = [
        (module, form, form.alibi(module, _named(module, calls[0])))
        for (module, form), calls in zip(found, observations, strict=True)
        if calls
    ]
    differences = [_prove(*each) for each in called]
    for module, form, alibi in called:
        functions.add(module, "forward", form.forward(module, alibi))
        if alibi is not None:
            form.replace_more(module, functions)
    if called:
        model.config._attn_implementation = ATTENTION  # for masks of visible keys
    return Fused(differences, any(alibi is not None for *_, alibi in called))


def _named(module: nn.Module, call: Call) -> dict[str, Any]:
    """Return the arguments of a call by their names."""
    args, options = call
    return dict(inspect.signature(module.forward).bind(*args, **options).arguments)


def _prove(module: Any, form: Form, alibi: Alibi | None) -> float:
    given = form.example(module, alibi)
    visible = random_mask(BATCH, NEW, NEW)
    expected = module(**given, attention_mask=form.mask(module, visible, given))[0]
    fused = form.forward(module, alibi)
    return compare(expected, fused(**given, attention_mask=visible)[0], "output")


def _attended(
    module: Any, parts: Iterable[torch.Tensor], scale: float, visible: torch.Tensor, cache: Any
) -> torch.Tensor:
    """Attend by queries, keys and values [B, N, S, D] of a layer; returns [B, S, N * D]."""
    query, key, value = parts
    if cache is not None:
        key, value = cache.update(key, value, module.layer_idx)
    return attend_visible(query, key, value, scale, visible).flatten(2)
