"""Layers of a cache of transformers whose states are those of the sequences of a step.

Convolutions and recurrences find in ``Sequences`` where the tokens of each begin and end.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch.nn.functional import embedding
from transformers.activations import ACT2FN
from transformers.cache_utils import LinearAttentionLayer

from .caches.sequences import Sequences
from .proof import NotProven
from .replaced_functions import ReplacedFunctions

_CONVOLUTION = "causal_conv1d_fn"


class Convolved(NamedTuple):
    """What the convolution of a layer, which follows the update of its state, is about to read."""

    new: torch.Tensor  # [B, C, S], or [1, C, T], which the layer was given
    columns: torch.Tensor  # of all states and then of new tokens, [columns, C]
    kept: int  # columns of a state


class StateLayer(LinearAttentionLayer):
    """States of one layer, a row for each sequence; of all rows alike without ``sequences``."""

    def __init__(self, count: int, sequences: Sequences | None) -> None:
        super().__init__(count)
        self._sequences = sequences
        self.convolved: Convolved | None = None

    def update_conv_state(
        self, conv_states: torch.Tensor, state_idx: int = 0, *_: Any, **__: Any
    ) -> torch.Tensor:
        """Add new columns [B, C, S] to the states; return them, for a convolution to read."""
        if self._sequences is None:
            return super().update_conv_state(conv_states, state_idx)
        state = self.conv_states[state_idx]
        assert state is not None
        new = conv_states.transpose(1, 2).flatten(0, 1).to(state.dtype)
        columns = torch.cat([state.transpose(1, 2).flatten(0, 1), new])
        kept = state.shape[-1]
        self.convolved = Convolved(conv_states, columns, kept)
        self.conv_states[state_idx] = embedding(self._sequences.kept(kept), columns).transpose(1, 2)
        return conv_states

    def update_recurrent_state(
        self, recurrent_states: torch.Tensor, state_idx: int = 0, **_: Any
    ) -> torch.Tensor:
        """Replace the states [B, ..]."""
        self.recurrent_states[state_idx] = recurrent_states
        return recurrent_states


@contextmanager
def convolved(
    model: Any, layers: Sequence[StateLayer], sequences: Sequences | None
) -> Iterator[None]:
    """Let ``causal_conv1d_fn`` of a model's module read the states of the layers inside."""
    module = sys.modules[type(model).__module__]
    functions = ReplacedFunctions()
    if layers and sequences is not None and hasattr(module, _CONVOLUTION):
        functions.add(module, _CONVOLUTION, _causal_convolution(layers, sequences))
    with functions.replaced():
        yield


def _causal_convolution(
    layers: Sequence[StateLayer], sequences: Sequences
) -> Callable[..., torch.Tensor]:
    """Return what stands for the function."""

    def convolve(
        hidden_states: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None = None,
        activation: str | None = None,
        **options: Any,
    ) -> torch.Tensor:
        """Convolve hidden_states [B, C, S] by weight [C, taps], after the states of the layer."""
        given = next(
            (x.convolved for x in layers if x.convolved and x.convolved.new is hidden_states), None
        )
        if given is None:
            raise NotProven("its convolution reads other columns than those of the cache")
        columns = given.columns.to(weight.dtype)
        seen = sequences.seen(given.kept, weight.shape[1])
        out = torch.zeros(()) if bias is None else bias.float()
        for at, tap in zip(seen.unbind(0), weight.float().unbind(1), strict=True):
            out = out + embedding(at, columns).float() * tap
        out = out.to(weight.dtype).transpose(1, 2)
        if activation is not None:
            out = ACT2FN[activation](out)
        return out.to(hidden_states.dtype)

    return convolve
