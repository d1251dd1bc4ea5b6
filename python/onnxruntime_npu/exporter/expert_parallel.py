"""The experts that one of several ranks has of a decoder.

Each rank has all tokens between layers, so none has to be sent to an expert's rank: a rank computes
the rows of its own experts, and what they add to each token is summed over the ranks, by one
``npu_mm_all_reduce_base``.
"""

from __future__ import annotations

import copy
import itertools
from typing import Any

import torch
from torch import nn

from ..errors import ArgumentError, ExportError
from .proof import Findings
from .roles.decoder import Decoder
from .roles.experts import RoutedExperts
from .roles.layer import DecoderLayer
from .tensor_parallel import Share

GROUP = "expert_parallel"  # what the file calls all ranks, for the provider's option `groups`


class ExpertsOfRank(nn.Module):
    """Some of a layer's experts, floats or integers; the results are those of all."""

    def __init__(self, whole: Any, own: range) -> None:
        super().__init__()
        self.experts = whole.part(own)
        self.group = GROUP

    def forward(
        self, hidden_states: torch.Tensor, top_k_index: torch.Tensor, top_k_weights: torch.Tensor
    ) -> torch.Tensor:
        """Transform hidden_states [tokens, H] by experts [tokens, k] with weights [tokens, k]."""
        added = self.experts(hidden_states, top_k_index, top_k_weights)
        # A product over no columns leaves the addend to be summed.
        nothing = added.new_zeros(0, added.shape[1])
        return torch.ops.npu.npu_mm_all_reduce_base(added[:, :0], nothing, self.group, x3=added)


def _experts_of(layer: nn.Module) -> Any:
    """Return the layer's experts, or None."""
    from ..converters.quantized_experts import QuantizedExperts

    found = getattr(layer.mlp, "experts", None)
    return found if isinstance(found, (RoutedExperts, QuantizedExperts)) else None


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
            held = itertools.chain(mlp.parameters(), mlp.buffers())
            shared: dict[int, Any] = {id(weight): weight for weight in held}
            own = ExpertsOfRank(experts, share.of(experts.total))
            mlp = copy.deepcopy(mlp, shared | {id(experts): own})
            findings.replaced("npu_mm_all_reduce_base", 0.0)
        layers.append(DecoderLayer(layer.input_norm, layer.attention, layer.post_norm, mlp))
    return Decoder(decoder.embedding, decoder.head, decoder.rotary, layers, decoder.norm)
