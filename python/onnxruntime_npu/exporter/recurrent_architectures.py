"""Tested architectures whose layers keep states of a fixed size.

Beside a growing cache a row of theirs is padded before its first token only.
"""

from __future__ import annotations

from .architecture import (
    ALL_CACHES,
    EXPERTS,
    GRANITE,
    GROWING,
    LATENT,
    ROUTED,
    ROWS,
    TOKENS,
    Architecture,
)

_CONVOLVED = ["conv", "full_attention"]
_MAMBA2 = {
    "mamba_n_heads": 8,
    "mamba_d_head": 16,
    "mamba_d_state": 8,
    "mamba_n_groups": 2,
    "mamba_chunk_size": 4,
}
_DELTA = {
    **TOKENS,
    "layer_types": ["linear_attention", "full_attention"],
    "linear_num_value_heads": 4,
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 12,
    "head_dim": 16,
}
_RELATIVE = {
    **TOKENS,
    "head_dim": 16,
    "swa_num_attention_heads": 4,
    "swa_num_key_value_heads": 2,
    "swa_head_dim": 16,
    "sliding_window_size": 4,
    "d_rel": 8,
    "rel_extent": 6,
    "layer_types": ["hybrid_sliding", "hybrid"],
    "unpadded_vocab_size": 97,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 48,
}
_SHARED_EXPERT = {**EXPERTS, "shared_expert_intermediate_size": 48}
# Of those without blocks for several sequences: the model expands latents itself, or has no keys
# and values; or, for Zaya, its convolutions take rows of one length only; or, for Inkling and
# Qwen4-Exp, biases of distances and groups of keys count the places of a growing cache.
_CACHES = {
    **dict.fromkeys(
        ("bailing_hybrid", "falcon_mamba", "kimi_linear", "mamba", "mamba2", "rwkv", "xlstm"),
        ROWS,
    ),
    **dict.fromkeys(("inkling2_text", "inkling_text", "qwen4_exp_text", "zaya"), GROWING),
}
RECURRENT = tuple(
    Architecture(
        model_type, particulars, settings, rebuilt=False, caches=_CACHES.get(model_type, ALL_CACHES)
    )
    for model_type, particulars, settings in (
        (
            "bailing_hybrid",
            f"delta rule with a gate of every key element, or latent attention, {ROUTED}",
            {
                **TOKENS,
                **LATENT,
                "head_dim": 16,
                "layer_group_size": 2,
                "num_local_experts": 4,
                "num_experts_per_tok": 2,
                "moe_intermediate_size": 48,
                "n_group": 2,
                "topk_group": 1,
                "first_k_dense_replace": 1,
            },
        ),
        (
            "bamba",
            "Mamba-2 or attention",
            {**TOKENS, **_MAMBA2, "attn_layer_indices": [1]},
        ),
        (
            "falcon_h1",
            "Mamba-2 beside attention in every layer",
            {**TOKENS, **_MAMBA2, "mamba_d_ssm": 128, "head_dim": 16},
        ),
        ("falcon_mamba", "Mamba", {**TOKENS, "state_size": 8}),
        (
            "granitemoehybrid",
            f"Mamba-2 or attention, {ROUTED}",
            {
                **GRANITE,
                **_MAMBA2,
                "layer_types": ["mamba", "attention"],
                "shared_intermediate_size": 48,
            },
        ),
        (
            "inkling2_text",
            f"convolved keys and values, biases of distances, sinks of queries, {ROUTED}",
            {**_RELATIVE, "n_layers_per_attn_res_block": 1, "log_scaling_n_floor": 4},
        ),
        (
            "inkling_text",
            f"convolutions around attention and MLP, biases of distances, {ROUTED}",
            {**_RELATIVE, "mlp_layer_types": ["dense", "sparse"]},
        ),
        (
            "jamba",
            f"Mamba or attention, {ROUTED}",
            {
                **TOKENS,
                **EXPERTS,
                "attn_layer_period": 2,
                "attn_layer_offset": 1,
                "expert_layer_period": 2,
                "expert_layer_offset": 1,
                "mamba_d_state": 8,
            },
        ),
        (
            "kimi_linear",
            f"delta rule with a gate of every key element, or latent attention, {ROUTED}",
            {
                **TOKENS,
                **LATENT,
                "q_lora_rank": None,
                "layer_types": ["linear_attention", "full_attention"],
                "linear_head_dim": 16,
                "linear_num_heads": 4,
                "num_local_experts": 4,
                "num_experts_per_tok": 2,
                "moe_intermediate_size": 48,
            },
        ),
        ("lfm2", "short convolutions or attention", {**TOKENS, "layer_types": _CONVOLVED}),
        (
            "lfm2_moe",
            f"short convolutions or attention, {ROUTED}",
            {**TOKENS, **EXPERTS, "layer_types": _CONVOLVED, "num_dense_layers": 1},
        ),
        (
            "lfm3",
            "short convolutions or attention",
            {**TOKENS, "head_dim": 16, "num_hidden_layers": 4},
        ),
        ("mamba", "Mamba", {**TOKENS, "state_size": 8}),
        (
            "mamba2",
            "Mamba-2",
            {
                **TOKENS,
                "num_heads": 8,
                "head_dim": 16,
                "state_size": 8,
                "n_groups": 2,
                "chunk_size": 4,
            },
        ),
        (
            "minimax",
            f"sums that decay, or attention, {ROUTED}",
            {
                **TOKENS,
                "head_dim": 16,
                "block_size": 4,
                "num_local_experts": 4,
                "layer_types": ["linear_attention", "full_attention"],
            },
        ),
        (
            "nemotron_h",
            "Mamba-2, attention or ReLU² MLP",
            {
                **TOKENS,
                "num_hidden_layers": 3,
                "layers_block_type": ["mamba", "attention", "mlp"],
                "mamba_num_heads": 8,
                "mamba_head_dim": 16,
                "ssm_state_size": 8,
                "n_groups": 2,
                "chunk_size": 4,
                "head_dim": 16,
            },
        ),
        ("olmo_hybrid", "gated delta rule or attention", _DELTA),
        (
            "qwen3_5_moe_text",
            f"gated delta rule or attention, {ROUTED}",
            {**_DELTA, **_SHARED_EXPERT},
        ),
        ("qwen3_5_text", "gated delta rule or attention", _DELTA),
        ("qwen3_next", f"gated delta rule or attention, {ROUTED}", {**_DELTA, **_SHARED_EXPERT}),
        (
            "qwen4_exp_text",
            "gated delta rule, or attention to groups of keys that an indexer chooses, hashed "
            f"n-grams, several residuals, {ROUTED}",
            {
                **_DELTA,
                **_SHARED_EXPERT,
                "hc_count": 3,
                "hc_lowrank": 12,
                "indexer_n_heads": 32,
                "indexer_kv_heads": 1,
                "indexer_head_dim": 16,
                "indexer_budget": 4,
                "indexer_compress_ratio": 2,
                "rope_parameters": {
                    "rope_type": "default",
                    "rope_theta": 100.0,
                    "mrope_section": [2, 3, 3],
                },
                "ple_layer_ids": [1],
                "ple_embed_dim": 32,
                "ple_conv_kernel_size": 3,
                "heads_per_ngram": 4,
                "ngram_vocab_size_base": 50,
                "make_ngram_vocab_size_divisible_by": 8,
                "eos_token_id": 5,  # which the tests' prompts have within
            },
        ),
        (
            "recurrent_gemma",
            "sums that gates decay, or attention with a window",
            {**TOKENS, "num_hidden_layers": 3, "attention_window_size": 6},
        ),
        (
            "rwkv",
            "means with weights that decay",
            {**TOKENS, "context_length": 128, "rescale_every": 1},
        ),
        (
            "xlstm",
            "memories of matrices that gates open",
            # Its size of a memory is rounded to 64 columns, that of its layers is not.
            {**TOKENS, "num_blocks": 2, "num_heads": 4, "qk_dim_factor": 1.0, "chunk_size": 4},
        ),
        (
            "zaya",
            f"convolved keys and queries, {ROUTED}",
            {
                **TOKENS,
                "head_dim": 16,
                "num_experts": 4,
                "moe_intermediate_size": 48,
                "router_hidden_size": 16,
            },
        ),
        (
            "zamba",
            "Mamba with heads, or with attention of one block that layers share",
            {
                **TOKENS,
                "num_hidden_layers": 4,
                "layers_block_type": 2 * ["mamba", "hybrid"],
                "attention_head_dim": 32,
                "mamba_d_state": 8,
                "mamba_dt_rank": 4,
                "n_mamba_heads": 2,
            },
        ),
        (
            "zamba2",
            "Mamba-2, or with attention of one block that layers share",
            {
                **TOKENS,
                "layers_block_type": ["mamba", "hybrid"],
                "n_mamba_heads": 8,
                "mamba_ngroups": 2,
                "mamba_d_state": 8,
                "chunk_size": 4,
                "attention_head_dim": 32,
                "adapter_rank": 4,
                "num_mem_blocks": 1,
            },
        ),
    )
)
