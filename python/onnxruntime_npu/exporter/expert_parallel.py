"""The experts that one of several ranks has of a decoder.

Each rank has all tokens between layers, so none has to be sent to an expert's rank: a rank computes
the rows of its own experts, and what they add to each token is summed over the ranks, by one
``npu_mm_all_reduce_base``.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import nn

from ..errors import ArgumentError, ExportError
from .proof import Findings
from .roles.decoder import Decoder
from .roles.experts import ExpertsParts, RoutedExperts
from .roles.layer import DecoderLayer
from .tensor_parallel import Share

GROUP = "expert_parallel"  # what the file calls all ranks, for the provider's option `groups`


class ExpertsOfRank(RoutedExperts):
    """Some of a layer's experts; the results are those of all."""

    def __init__(self, whole: RoutedExperts, own: range) -> None:
        def part(name: str) -> torch.Tensor | None:
            weight = getattr(whole, name)
            return None if weight is None else weight.detach()[own.start : own.stop]

        up, down = part(whole.up_name), part("down_proj")
        assert up is not None and down is not None
        up_bias, down_bias = part(f"{whole.up_name}_bias"), part("down_proj_bias")
        super().__init__(ExpertsParts(up, down, up_bias, down_bias, whole.rest))
        self.total = whole.total
        self.own = [own.start, own.stop]
        self.group = GROUP

    def forward(
        self, hidden_states: torch.Tensor, top_k_index: torch.Tensor, top_k_weights: torch.Tensor
    ) -> torch.Tensor:
        """Transform hidden_states [tokens, H] by experts [tokens, k] with weights [tokens, k]."""
        added = super().forward(hidden_states, top_k_index, top_k_weights)
        # A product over no columns leaves the addend to be summed.
        nothing = added.new_zeros(0, added.shape[1])
        return torch.ops.npu.npu_mm_all_reduce_base(added[:, :0], nothing, self.group, x3=added)


def _experts_of(layer: nn.Module) -> RoutedExperts | None:
    found: Any = getattr(layer.mlp, "experts", None)
    return found if isinstance(found, RoutedExperts) else None


def check_divisible(decoder: object, ranks: int) -> None:
    """Refuse a decoder whose experts cannot be divided among so many ranks."""
    experts = [_experts_of(layer) for layer in getattr(decoder, "layers", ())]
    counts = [one.total for one in experts if one is not None]
    if not isinstance(decoder, Decoder) or not counts:
        raise ExportError(
            f"cannot divide the experts among {ranks} ranks: expected a model with experts that is "
            "rebuilt from fused operators, got one without: pass expert_parallel=1"
        )
    if min(counts) < ranks:
        raise ArgumentError(
            f"expected expert_parallel of at most the model's {min(counts)} experts, got {ranks}"
        )


def with_own_experts(decoder: Decoder, rank: int, ranks: int, findings: Findings) -> Decoder:
    """Return the decoder with the experts of one rank. No weights are copied."""
    share, layers = Share(rank, ranks), []
    whole: Any = decoder.layers
    for layer in whole:
        mlp, experts = layer.mlp, _experts_of(layer)
        if experts is not None:
            shared: dict[int, Any] = {id(weight): weight for weight in mlp.parameters()}
            own = ExpertsOfRank(experts, share.of(experts.total))
            mlp = copy.deepcopy(mlp, shared | {id(experts): own})
            findings.replaced("npu_mm_all_reduce_base", 0.0)
        layers.append(DecoderLayer(layer.input_norm, layer.attention, layer.post_norm, mlp))
    return Decoder(decoder.embedding, decoder.head, decoder.rotary, layers, decoder.norm)
