"""A tested architecture, and settings that tiny configurations of several share."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

ALL_CACHES = ("dynamic", "static", "paged")
ROWS = ("dynamic", "static")  # attention that has no operator for blocks
GROWING = ("dynamic",)  # attention of the model's own


@dataclass(frozen=True)
class Architecture:
    """An architecture with its name in transformers."""

    model_type: str
    particulars: str  # of its decoder, or of the models that users know
    tested: dict[str, Any] = field(default_factory=dict)  # settings of the tested configuration
    rebuilt: bool = True  # from fused operators; else exported by its own forward pass
    caches: tuple[str, ...] = ALL_CACHES


ROUTED = "routed MLP"
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 48}
TOKENS = {"pad_token_id": 0, "eos_token_id": 2, "bos_token_id": 1}
LATENT = {
    "kv_lora_rank": 16,
    "q_lora_rank": 24,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 12,
    "num_key_value_heads": 4,
}
GROUPED = {
    "n_routed_experts": 4,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 48,
    "n_group": 2,
    "topk_group": 1,
    "first_k_dense_replace": 1,
}
GRANITE = {**TOKENS, "num_local_experts": 4, "num_experts_per_tok": 2}
