"""The recurrent block of Griffin, as in RecurrentGemma: a convolution and a sum that gates decay.

Its module keeps its states in attributes, and takes in padding as if it were tokens. Here they are
those of a layer of transformers' cache, and padding is left out: a padded row gets what it gets
alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from .proof import Findings, attempt, compare
from .replaced_functions import ReplacedFunctions
from .state_layers import StateLayer, convolve

if TYPE_CHECKING:
    from .recurrences import Recurrences

_PARTS = ("linear_x", "linear_y", "linear_out", "conv_1d", "rg_lru", "act_fn")


def replace_gated_recurrence(
    model: Any, recurrences: Recurrences, functions: ReplacedFunctions, findings: Findings
) -> None:
    """Add the forward passes of recurrent blocks to ``functions``, each proven."""
    for name, module in model.named_modules():
        if not all(hasattr(module, part) for part in _PARTS):
            continue
        layer = next(int(part) for part in reversed(name.split(".")) if part.isdecimal())
        forward = _Block(module, layer, recurrences).forward
        difference = attempt(_prove, module, forward)
        functions.add(module, "forward", forward)
        recurrences.replaced = True
        findings.replaced("npu_fused_causal_conv1d", difference)
        findings.keep(name, "recurrence", "not fused: Scan over the tokens")


class _Block:
    """What stands for the forward pass of a block."""

    def __init__(self, module: Any, layer: int, recurrences: Recurrences) -> None:
        self._module, self._layer, self._recurrences = module, layer, recurrences

    def forward(
        self,
        input_states: torch.Tensor,
        position_ids: torch.Tensor,
        past_key_values: Any = None,
        **_: Any,
    ) -> tuple[torch.Tensor, None]:
        """Compute input_states [B, S, H] at position_ids [B, S]."""
        module = self._module
        states = None if past_key_values is None else past_key_values.layers[self._layer]
        gate = module.act_fn(module.linear_y(input_states))
        x = self._recurrences.without_padding(module.linear_x(input_states))
        x = x.transpose(1, 2)
        weight, bias = module.conv_1d.weight.squeeze(1), module.conv_1d.bias
        if isinstance(states, StateLayer):
            x = convolve(states, 0, x, weight, bias, None, self._recurrences.sequences)
        else:
            if states is not None:  # a run that shows which states there are
                states.update_conv_state(x, conv_kernel_size=weight.shape[1])
            x = module.conv_1d(x)[..., : x.shape[2]]
        x = self._sums(x.transpose(1, 2), position_ids, states)
        return module.linear_out(x * gate), None

    def _sums(self, x: torch.Tensor, position_ids: torch.Tensor, states: Any) -> torch.Tensor:
        """Return the gated sums of x [B, S, C], which a first token begins.

        Gates are computed in float32: their distance to 1 is what counts.
        """
        lru = self._module.rg_lru
        rows = x.reshape(-1, lru.num_attention_heads, lru.block_width).transpose(0, 1)

        def opened(weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
            product = torch.baddbmm(bias[:, None], rows, weight).transpose(0, 1).reshape(x.shape)
            return product.float().sigmoid()

        first = (position_ids == 0)[..., None]
        decay = opened(lru.recurrent_gate_weight, lru.recurrent_gate_bias)
        decay = -8.0 * decay * nn.functional.softplus(lru.recurrent_param.float())
        scale = torch.where(first, 1.0, (1 - (2 * decay).exp()).sqrt())
        new = x.float() * opened(lru.input_gate_weight, lru.input_gate_bias) * scale
        before = None if states is None else states.recurrent_states[0]
        output, state = self._recurrences.gated_sums(
            new, torch.where(first, 0.0, decay.exp()), before
        )
        if states is not None:
            states.update_recurrent_state(state)
        return output.to(x.dtype)


def _prove(module: Any, forward: Callable[..., tuple[torch.Tensor, None]]) -> float:
    """Compare outputs of more tokens than the convolution sees."""
    tokens = 2 * module.conv_1d.kernel_size[0] + 1
    x = torch.randn(1, tokens, module.linear_x.in_features)
    given: dict[str, Any] = {"position_ids": torch.arange(tokens)[None], "attention_mask": None}
    expected = module(x, **given, use_cache=False)[0]
    return compare(expected, forward(x, **given)[0], "recurrent block")
