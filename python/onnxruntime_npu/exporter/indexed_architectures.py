"""Tested architectures that attend to keys which an indexer has chosen, or to compressed ones."""

from __future__ import annotations

from .architecture import EXPERTS, GROUPED, GROWING, LATENT, ROUTED, ROWS, TOKENS, Architecture

# Few keys are chosen of those of a prompt, by so many heads that no two keys have equal scores.
_CHOSEN = {"index_n_heads": 32, "index_head_dim": 16, "index_topk": 4}
_LATENTS = {**LATENT, **GROUPED, **_CHOSEN}
_CHOICE = "latent attention to keys that an indexer chooses"
_COMPRESSED = {
    **TOKENS,
    **EXPERTS,
    "num_hidden_layers": 3,
    "layer_types": [
        "sliding_attention",
        "compressed_sparse_attention",
        "heavily_compressed_attention",
    ],
    "compress_rates": {"compressed_sparse_attention": 2, "heavily_compressed_attention": 4},
    "mlp_layer_types": ["hash_moe", "moe", "moe"],
    "sliding_window": 4,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "q_lora_rank": 24,
    "qk_rope_head_dim": 8,
    "o_groups": 2,
    "o_lora_rank": 12,
    "index_n_heads": 16,
    "index_head_dim": 16,
    "index_topk": 2,
    "n_routed_experts": 4,
    "hc_mult": 3,
    "hc_sinkhorn_iters": 3,
}
INDEXED = (
    Architecture(
        "deepseek_v4",
        f"a window and compressed keys, of which an indexer chooses, {ROUTED}, several residuals",
        _COMPRESSED,
        rebuilt=False,
        caches=GROWING,
    ),
    *(
        Architecture(model_type, particulars, {**TOKENS, **tested}, rebuilt=False, caches=ROWS)
        for model_type, particulars, tested in (
            ("axk2", f"{_CHOICE}, gated, grouped routing", _LATENTS),
            ("deepseek_v32", f"{_CHOICE}, grouped routing", _LATENTS),
            ("dots3_note_text", f"{_CHOICE}, gated, {ROUTED}", _LATENTS),
            ("glm_moe_dsa", f"{_CHOICE}, or an earlier layer's, grouped routing", _LATENTS),
            (
                "hy_v4",
                f"{_CHOICE}, gated, with sinks, {ROUTED}, several residuals",
                {**_LATENTS, "head_dim": 8, "num_local_experts": 4},
            ),
            (
                "minimax_m3_vl_text",
                f"blocks of keys that an indexer chooses for each head, or all of them, {ROUTED}",
                {
                    "head_dim": 16,
                    "rotary_dim": 8,
                    "layer_types": ["full_attention", "minimax_m3_sparse"],
                    "mlp_layer_types": ["dense", "sparse"],
                    "dense_intermediate_size": 96,
                    "shared_intermediate_size": 48,
                    "num_local_experts": 4,
                    "num_experts_per_tok": 2,
                    "index_n_heads": 2,
                    "index_head_dim": 16,
                    "index_block_size": 4,
                    "index_topk_blocks": 2,
                },
            ),
        )
    ),
)
