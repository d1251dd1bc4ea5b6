"""Layers of a cache of transformers whose states a step gives, and the convolutions that read them.

Transformers' modules update the state of a convolution by a method of the cache, which returns the
columns that ``causal_conv1d_fn`` is then called with. Here the method notes them, and the function,
which is replaced while the model runs, updates the state by ``npu_fused_causal_conv1d``. A module
may also convolve by itself what the method returns: the kept columns and the new ones.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import nn
from transformers.activations import ACT2FN
from transformers.cache_utils import LinearAttentionAndFullAttentionLayer, LinearAttentionLayer

from .caches.sequences import Sequences
from .caches.step import LayerCache
from .compressed_cache import CompressedLayer
from .convolved_padding import ConvolvedPadding
from .model_cache import Cached, LayerKind, filled_cache
from .proof import Findings, NotProven, attempt
from .replaced_functions import ReplacedFunctions, observed_calls

if TYPE_CHECKING:
    from .recurrences import Recurrences

_CONVOLUTION, _OF_SINGLE_TOKENS = "causal_conv1d_fn", "causal_conv1d_update"
_FUSED = {None: "None", "silu": "silu", "swish": "silu"}


def convolves(model: Any) -> bool:
    """Return whether the module of a model's layers has the functions that are replaced."""
    return hasattr(_module_of(model), _CONVOLUTION)


def _module_of(model: Any) -> Any:
    """Return the module of Python of a model's layers, or of those of its text."""
    return sys.modules[type(model.get_decoder()).__module__]


def report_convolutions(model: Any, run: Callable[[Any], Any], findings: Findings) -> None:
    """Report the convolutions that the operator replaces, which are proven with the whole model.

    ``run`` runs the model once.
    """
    if not convolves(model):
        return
    module = _module_of(model)
    calls = attempt(observed_calls, lambda: run(model), module, _CONVOLUTION)
    if calls:
        findings.replaced("npu_fused_causal_conv1d", 0.0, nodes=len(calls))


class _Noted(NamedTuple):
    """What a layer's convolution is about to read."""

    place: int
    shown: torch.Tensor  # what the module got to read
    new: torch.Tensor  # columns [B, C, S]
    kept: torch.Tensor  # the state before them


class StateLayer(LinearAttentionLayer):
    """States of one layer, a row for each sequence.

    ``joins``: the module gets kept columns with the new ones, as from transformers' layers.
    """

    def __init__(self, count: int, convolved: bool) -> None:
        """Take the number of states; ``convolved``: the model has the functions."""
        super().__init__(count)
        self._convolved = convolved
        self.noted: _Noted | None = None
        self.joins = False
        self.padding: ConvolvedPadding | None = None  # of a growing cache

    def update_conv_state(
        self, conv_states: torch.Tensor, state_idx: int = 0, *_: Any, **__: Any
    ) -> torch.Tensor:
        """Note new columns [B, C, S] and return what a convolution of them reads."""
        if self.padding is not None:
            conv_states = self.padding.cleared(conv_states)
        if not self._convolved:
            return super().update_conv_state(conv_states, state_idx)
        self.refuse_unread()
        kept, shown = self.conv_states[state_idx], conv_states
        assert kept is not None
        if self.joins:
            shown = torch.cat([kept, conv_states], -1)
            self.conv_states[state_idx] = shown[..., -kept.shape[-1] :].to(kept.dtype)
        self.noted = _Noted(state_idx, shown, conv_states, kept)
        return shown

    def refuse_unread(self) -> None:
        """Raise NotProven if a convolution did not read the last columns, and had no others."""
        if self.noted is not None and not self.joins:
            raise NotProven(
                "it convolves cached columns by itself, which a cache of rows or blocks keeps in "
                "another order"
            )

    def update_recurrent_state(
        self, recurrent_states: torch.Tensor, state_idx: int = 0, **_: Any
    ) -> torch.Tensor:
        """Replace the states [B, ..]."""
        self.recurrent_states[state_idx] = recurrent_states
        return recurrent_states


class GrowingStateLayer(  # type: ignore[misc, override]
    StateLayer, LinearAttentionAndFullAttentionLayer
):
    """States beside keys and values that grow by concatenation."""


def _growing_layer(model: Any, slots: Any) -> Callable[[LayerKind], Any]:
    """Return what makes the layers of a growing cache of a model that have states."""
    convolved = convolves(model)

    def layer(kind: LayerKind) -> StateLayer | CompressedLayer:
        if kind.own is not None:
            return CompressedLayer(slots)
        return (GrowingStateLayer if kind.attends else StateLayer)(kind.states, convolved)

    return layer


@contextmanager
def growing_cache(
    model: Any,
    cached: Cached,
    past: Sequence[LayerCache | tuple[torch.Tensor, torch.Tensor]],
    states: Sequence[torch.Tensor],
    recurrences: Recurrences,
    mask: torch.Tensor,
    padding: ConvolvedPadding,
) -> Iterator[Any]:
    """Yield a cache of transformers, which a run of the model inside lets grow.

    ``past``: keys and values [B, N, T, D] of the layers that attend; ``mask`` [B, T + S]: 0 for
    padding, new tokens included; ``padding``: that of the model's runs.
    """
    new_layer = _growing_layer(model, mask.shape[1])
    cache = filled_cache(cached.kinds, past, cached.states, states, new_layer)
    layers = [layer for layer in cache.layers if isinstance(layer, StateLayer)]
    if past:
        _give_positions(cache, mask[:, : past[0][0].shape[2]])
    convolving = convolved(model, layers, None)
    with recurrences.reading(cache, mask=mask), padding_read(layers, mask, padding), convolving:
        yield cache


@contextmanager
def padding_read(
    layers: Sequence[StateLayer], mask: torch.Tensor, padding: ConvolvedPadding
) -> Iterator[None]:
    """Let layers of a growing cache clear the padding inside, where ``mask`` [B, T + S] is 0."""
    for layer in layers:
        layer.padding = padding
    with padding.reading(mask):
        yield


def _give_positions(cache: Any, mask: torch.Tensor) -> None:
    """Give layers with an indexer the positions [3, B, T] of past tokens, which it may rotate by.

    ``mask`` [B, T]: 0 for padding.
    """
    positions = (mask.cumsum(1) - 1).clamp(min=0).expand(3, -1, -1)
    for layer in cache.layers:
        if hasattr(layer, "indexer_position_ids"):
            layer.indexer_position_ids = positions


@contextmanager
def convolved(
    model: Any, layers: Sequence[StateLayer], sequences: Sequences | None
) -> Iterator[None]:
    """Let the convolutions of a model update the states of the layers inside.

    These are [B, C, taps], as transformers has them, or with ``sequences`` [B, taps - 1, C], as the
    operator has them.
    """
    functions = ReplacedFunctions()
    if convolves(model):
        module = _module_of(model)
        convolutions = _Convolutions(layers, sequences)
        functions.add(module, _CONVOLUTION, convolutions.of_tokens)
        functions.add(module, _OF_SINGLE_TOKENS, convolutions.of_single_tokens)
    for layer in layers:
        layer.joins = sequences is None
    with functions.replaced():
        yield
    for layer in layers:
        layer.refuse_unread()


class _Convolutions:
    """What stands for the functions of a module; weights are [C, taps]."""

    def __init__(self, layers: Sequence[StateLayer], sequences: Sequences | None) -> None:
        self._layers, self._sequences = layers, sequences

    def of_tokens(
        self,
        hidden_states: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None = None,
        activation: str | None = None,
        **_: Any,
    ) -> torch.Tensor:
        """Convolve hidden_states [B, C, S], which a layer has noted."""
        for layer in self._layers:
            noted = layer.noted
            if noted is not None and noted.shown is hidden_states:
                layer.noted, layer.conv_states[noted.place] = None, noted.kept
                return convolve(
                    layer, noted.place, noted.new, weight, bias, activation, self._sequences
                )
        raise NotProven("its convolution reads other columns than those of the cache")

    def of_single_tokens(
        self,
        hidden_states: torch.Tensor,
        conv_state: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None = None,
        activation: str | None = None,
    ) -> torch.Tensor:
        """Convolve hidden_states [B, C, 1] after a state, which is not traced."""
        for layer in self._layers:
            for place, state in layer.conv_states.items():
                if state is conv_state:
                    return convolve(
                        layer, place, hidden_states, weight, bias, activation, self._sequences
                    )
        raise NotProven("its convolution reads another state than those of the cache")


def convolve(
    layer: StateLayer,
    place: int,
    hidden: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    activation: str | None,
    sequences: Sequences | None,
) -> torch.Tensor:
    """Convolve hidden [B, C, S] by weight [C, taps] after a state of a layer, and update it.

    ``sequences``: as of ``convolved``.
    """
    state = layer.conv_states[place]
    assert state is not None
    # Of the weight's dtype, which some models keep in float32 in any precision.
    new, kept = hidden.transpose(1, 2).to(weight.dtype), state.to(weight.dtype)
    options = {"bias": bias, "activation": _FUSED.get(activation, "None")}
    operator = torch.ops.npu.npu_fused_causal_conv1d
    if sequences is None:
        kept = kept[:, :, 1:].transpose(1, 2).contiguous()
        out = operator(new, weight.t(), kept, **options)
        kept = nn.functional.pad(kept.transpose(1, 2), (1, 0))
    else:
        borders, rows = sequences.ranges
        options |= {"query_start_loc": borders, "cache_indices": rows}
        out = operator(new.flatten(0, 1), weight.t(), kept, **options)
        out = out.unflatten(0, new.shape[:2])
    layer.conv_states[place] = kept.to(state.dtype)
    out = out.transpose(1, 2)
    if activation not in _FUSED:
        out = ACT2FN[activation](out)
    return out.to(hidden.dtype)
