"""A recurrence over tokens, which a graph for any number of them has as ONNX's Scan."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch


def over_tokens(
    step: Callable[..., tuple[torch.Tensor, ...]],
    states: Sequence[torch.Tensor],
    given: Sequence[torch.Tensor],
    *fixed: torch.Tensor,
) -> tuple[torch.Tensor, ...]:
    """Return the states after all tokens, and the outputs [S, ..], of given [S, ..].

    step(*states, *given of a token, *fixed) returns the next states and an output.
    """
    if torch.compiler.is_exporting():
        # Not torch's function scan(), which compiles: what it keeps of a model breaks the next one.
        return tuple(torch.ops.higher_order.scan(step, list(states), list(given), fixed))
    outputs = []
    for token in zip(*given, strict=True):
        *states, output = step(*states, *token, *fixed)
        outputs.append(output)
    return *states, torch.stack(outputs)
