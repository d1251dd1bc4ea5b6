"""Calls of attention whose result no output depends on, such as those of a layer that is not read.

They are recorded as fused, but tracing drops them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from .attention_interface import ATTENTION, recorded_calls
from .proof import Findings, attempt


def forget_unused_attention(
    probe: Callable[[], Sequence[torch.Tensor]], findings: Findings
) -> None:
    """Take such calls out of the findings.

    ``probe`` runs the model, whose attention is fused, and returns its outputs.
    """
    from transformers import AttentionInterface

    fused = AttentionInterface()[ATTENTION]
    marked: list[tuple[list[str], torch.Tensor]] = []

    def mark(*args: Any, **options: Any) -> tuple[torch.Tensor, None]:
        with recorded_calls() as calls:
            attended, weights = fused(*args, **options)
        marker = torch.zeros((), requires_grad=True)
        marked.append((calls.fused, marker))
        return attended + marker, weights

    def gradients() -> Sequence[torch.Tensor | None]:
        with torch.enable_grad():
            total = torch.stack([output.float().sum() for output in probe()]).sum()
            markers = [marker for _, marker in marked]
            return torch.autograd.grad(total, markers, allow_unused=True) if markers else []

    AttentionInterface.register(ATTENTION, mark)
    try:
        found = attempt(gradients)
    finally:
        AttentionInterface.register(ATTENTION, fused)
    for (operators, _), gradient in zip(marked, found, strict=True):
        for op in operators if gradient is None else ():
            findings.expected_nodes[op] -= 1
            if not findings.expected_nodes[op]:
                del findings.expected_nodes[op]
