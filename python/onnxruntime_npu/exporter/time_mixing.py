"""The two modules of a layer of RWKV, which mix each token with the one before it.

Its code keeps five tensors for all layers in a list, and takes in padding as if it were tokens.
Here they are states of a layer of transformers' cache: the last token that either module has seen,
in the place of a convolution's, and weighted sums.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from .model_cache import is_time_mixing
from .proof import Findings, attempt, compare
from .replaced_functions import ReplacedFunctions
from .state_layers import StateLayer, convolve

if TYPE_CHECKING:
    from .recurrences import Recurrences

_CHANNELS = ("time_mix_key", "time_mix_receptance", "key", "value", "receptance", "time_shift")
_ATTENTION, _FEED_FORWARD = 0, 1  # places of what the modules have seen last
_Forward = Callable[..., "tuple[torch.Tensor, Any]"]


def replace_time_mixing(
    model: Any, recurrences: Recurrences, functions: ReplacedFunctions, findings: Findings
) -> None:
    """Add the forward passes of the modules to ``functions``, each proven."""
    for name, module in model.named_modules():
        if not all(hasattr(module, part) for part in _CHANNELS):
            continue
        attends = is_time_mixing(module)
        forward = (_attention if attends else _feed_forward)(module, recurrences)
        difference = attempt(_prove, module, forward)
        functions.add(module, "forward", forward)
        findings.replaced("npu_fused_causal_conv1d", difference)
        if attends:
            recurrences.replaced = True
            findings.keep(name, "recurrence", "not fused: Scan over the tokens")


def divide_weights(model: Any) -> None:
    """Divide the weights that RWKV divides in place when it first runs: they may be in a file."""
    for module in model.modules():
        if getattr(module, "layers_are_rescaled", True):
            continue
        every = module.config.rescale_every
        for index, block in enumerate(module.blocks if every > 0 else ()):
            for linear in (block.attention.output, block.feed_forward.value):
                weight = linear.weight.detach() / 2 ** (index // every)
                linear.weight = nn.Parameter(weight, requires_grad=False)
        module.layers_are_rescaled = True


def _attention(module: Any, recurrences: Recurrences) -> _Forward:
    def forward(hidden: torch.Tensor, state: Any = None, **_: Any) -> tuple[torch.Tensor, Any]:
        layer = None if state is None else state.layers[module.layer_id]
        hidden, before = _shifted(hidden, layer, _ATTENTION, recurrences)
        key = module.key(_mixed(hidden, before, module.time_mix_key))
        value = module.value(_mixed(hidden, before, module.time_mix_value))
        gate = module.receptance(_mixed(hidden, before, module.time_mix_receptance)).sigmoid()
        sums = None if layer is None else layer.recurrent_states[0]
        decay = -module.time_decay.float().exp()
        means, sums = recurrences.weighted_means(key, value, decay, module.time_first, sums)
        if layer is not None:
            layer.update_recurrent_state(sums)
        return module.output(gate * means.to(gate.dtype)), state

    return forward


def _feed_forward(module: Any, recurrences: Recurrences) -> _Forward:
    def forward(hidden: torch.Tensor, state: Any = None) -> tuple[torch.Tensor, Any]:
        layer = None if state is None else state.layers[module.layer_id]
        hidden, before = _shifted(hidden, layer, _FEED_FORWARD, recurrences)
        key = module.key(_mixed(hidden, before, module.time_mix_key)).relu().square()
        gate = module.receptance(_mixed(hidden, before, module.time_mix_receptance)).sigmoid()
        return gate * module.value(key), state

    return forward


def _mixed(hidden: torch.Tensor, before: torch.Tensor, share: torch.Tensor) -> torch.Tensor:
    return hidden * share + before * (1 - share)


def _shifted(
    hidden: torch.Tensor, layer: Any, place: int, recurrences: Recurrences
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return hidden [B, S, C] without padding, and the token before each."""
    hidden = recurrences.without_padding(hidden)
    columns = hidden.transpose(1, 2)
    if not isinstance(layer, StateLayer):
        if layer is not None:  # a run that shows which states there are
            layer.update_conv_state(columns, place, conv_kernel_size=2)
        return hidden, nn.functional.pad(hidden, (0, 0, 1, 0))[:, :-1]
    taps = torch.tensor([[1.0, 0.0]], dtype=hidden.dtype).repeat(hidden.shape[2], 1)
    before = convolve(layer, place, columns, taps, None, None, recurrences.sequences)
    return hidden, before.transpose(1, 2)


def _prove(module: Any, forward: _Forward) -> float:
    """Compare outputs of some tokens."""
    x = torch.randn(1, 7, module.key.in_features)
    return compare(module(x)[0], forward(x)[0], "output of time mixing")
