"""The list of tested architectures, which are exported and compared with transformers.

The command's help, the errors and a table of docs/models.md are generated from it, and tests/export
runs a model of each; ``python -m onnxruntime_npu.exporter.architectures docs/models.md`` writes it.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from .architecture import (
    EXPERTS,
    GRANITE,
    GROUPED,
    LATENT,
    ROUTED,
    ROWS,
    TOKENS,
    Architecture,
)
from .decoder_architectures import DECODERS
from .indexed_architectures import INDEXED
from .recomputed_architectures import RECOMPUTED
from .recurrent_architectures import RECURRENT

_WINDOWS: dict[str, Any] = {
    "layer_types": ["sliding_attention", "full_attention"],
    "sliding_window": 4,
}
_ROUTED_FEW = {**TOKENS, **EXPERTS, "head_dim": 16}
_TOWER = {"hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 2}
_CODEGEN = {"n_layer": 2, "n_head": 4, "n_embd": 64, "rotary_dim": 8, "n_positions": 128}
# Two layers of a kind each, and two that use their keys and values.
_SHARED = {
    **_WINDOWS,
    **TOKENS,
    "num_hidden_layers": 4,
    "num_kv_shared_layers": 2,
    "layer_types": 2 * _WINDOWS["layer_types"],
    "head_dim": 16,
    "vocab_size_per_layer_input": 97,
    "hidden_size_per_layer_input": 16,
}
REBUILT = (
    Architecture(
        "aria_text",
        f"{ROUTED} and shared experts",
        {**TOKENS, "moe_num_experts": 4, "moe_topk": 2, "moe_num_shared_experts": 1},
    ),
    Architecture("arcee", "an MLP of squared ReLU, kept", TOKENS),
    Architecture("cwm", "sliding window of some layers", {**TOKENS, **_WINDOWS, "head_dim": 16}),
    Architecture(
        "dots1",
        f"{ROUTED} and a shared expert, norms of queries and keys",
        {**TOKENS, **GROUPED, "head_dim": 16},
    ),
    Architecture(
        "exaone_moe",
        "routing with a bias and a shared expert, sliding window of some layers",
        {
            **_ROUTED_FEW,
            **_WINDOWS,
            "num_shared_experts": 1,
            "n_group": 1,
            "topk_group": 1,
            "first_k_dense_replace": 1,
        },
    ),
    Architecture(
        "glm4_moe",
        "partial rotation, grouped routing and a shared expert",
        {**GROUPED, "head_dim": 16},
    ),
    Architecture(
        "hy_v3",
        "routing with a bias and a shared expert, norms of queries and keys",
        {**_ROUTED_FEW, "num_shared_experts": 1, "first_k_dense_replace": 1},
    ),
    Architecture("internlm3", "head size of its own", {**TOKENS, "head_dim": 16}),
    Architecture("iquestcoder", "head size of its own", {**TOKENS, "head_dim": 16}),
    Architecture("jais2", "LayerNorm and an MLP of squared ReLU, kept", {**TOKENS, "head_dim": 16}),
    Architecture("llama", "Llama, SmolLM2; any rotary scaling, embedding and head tied or not"),
    Architecture("ministral", "sliding window", {"sliding_window": 4, "head_dim": 16}),
    Architecture("mistral", "sliding window", {"sliding_window": 4}),
    Architecture("mixtral", ROUTED, {"num_local_experts": 4}),
    Architecture(
        "nemotron", "partial rotation, LayerNorm and an MLP of squared ReLU, kept", TOKENS
    ),
    Architecture("olmo", "norms without weights, kept", TOKENS),
    Architecture(
        "phi3",
        "joint projections, partial rotation, longrope",
        {
            **TOKENS,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 1e4,
                "partial_rotary_factor": 0.75,
            },
        },
    ),
    Architecture(
        "phi4_multimodal",
        "the text part; joint projections",
        {
            **TOKENS,
            "vision_config": {**_TOWER, "num_hidden_layers": 1, "image_size": 28, "crop_size": 28},
            "audio_config": {
                **_TOWER,
                "num_blocks": 1,
                "nemo_conv_channels": 8,
                "ext_pw_out_channel": 32,
            },
        },
    ),
    Architecture("phimoe", f"{ROUTED}, LayerNorm, kept", {**TOKENS, "num_local_experts": 4}),
    Architecture("qwen2", "bias of query, key and value; sliding window of some layers"),
    Architecture(
        "qwen2_moe",
        f"{ROUTED} and a shared expert",
        {**EXPERTS, "shared_expert_intermediate_size": 48},
    ),
    Architecture("qwen3", "norms of queries and keys, head size of its own", {"head_dim": 32}),
    Architecture("qwen3_moe", f"{ROUTED}, norms of queries and keys", EXPERTS),
    Architecture("smollm3", "layers without rotation", TOKENS),
    Architecture(
        "solar_open",
        "grouped routing and a shared expert",
        {**TOKENS, **GROUPED, "head_dim": 16},
    ),
    Architecture("stablelm", "partial rotation, LayerNorm, kept"),
    Architecture(
        "starcoder2",
        "LayerNorm and an MLP without gate, kept; sliding window",
        {**TOKENS, "sliding_window": 4},
    ),
)
_OF_DECODERS_ALONE = tuple(
    Architecture(model_type, particulars, tested, False, *caches)
    for model_type, particulars, tested, *caches in (
        (
            "afmoe",
            "gated attention, four norms a layer, routing with a bias, sliding window",
            {
                **_ROUTED_FEW,
                **_WINDOWS,
                "num_dense_layers": 1,
                "num_shared_experts": 1,
                "n_group": 1,
                "topk_group": 1,
            },
        ),
        ("apertus", "an MLP of xIELU, norms of queries and keys", TOKENS),
        ("axk1", "latent attention, grouped routing", {**TOKENS, **LATENT, **GROUPED}),
        (
            "beam",
            "gated attention, layers without rotation, grouped routing, sliding window, capped "
            "scores",
            {
                **TOKENS,
                **EXPERTS,
                **_WINDOWS,
                "head_dim": 16,
                "mlp_layer_types": ["dense", "sparse"],
                "n_group": 2,
                "topk_group": 1,
            },
        ),
        ("biogpt", "learned positions from the third row, scaled embedding", TOKENS),
        ("bitnet", "norms inside attention and MLP", TOKENS),
        ("bloom", "ALiBi", {"n_layer": 2, "n_head": 4}),
        ("codegen", "joint projections in blocks, partial rotation in pairs", _CODEGEN),
        ("cohere", "interleaved rotation, LayerNorm, scaled logits", TOKENS),
        ("cohere2", "sliding window, layers without rotation", {**TOKENS, "sliding_window": 4}),
        (
            "cohere2_moe",
            f"{ROUTED}, interleaved rotation, a parallel block",
            {**_ROUTED_FEW, "sliding_window": 4, "logit_scale": 4.0},
        ),
        (
            "cohere_compass_text",
            "rotary tables of kinds of layers, LayerNorm, scaled logits, sliding window",
            {
                **TOKENS,
                "sliding_window": 4,
                "layer_types": ["sliding_attention", "full_attention"],
                "rope_parameters": {
                    kind: {"rope_type": "default", "rope_theta": theta}
                    for kind, theta in (("sliding_attention", 1e4), ("full_attention", 1e5))
                },
            },
        ),
        (
            "ctrl",
            "sinusoidal positions",
            {"n_embd": 64, "dff": 112, "n_layer": 2, "n_head": 4, "n_positions": 128},
        ),
        (
            "dbrx",
            f"{ROUTED} of stacked matrices, clipped queries, keys and values",
            {
                "d_model": 64,
                "n_heads": 4,
                "n_layers": 2,
                "max_seq_len": 128,
                "attn_config": {"kv_n_heads": 2, "clip_qkv": 1.0, "rope_theta": 1e4},
                "ffn_config": {"ffn_hidden_size": 48, "moe_num_experts": 4, "moe_top_k": 2},
            },
        ),
        (
            "deepseek_v2",
            "latent attention, rotary tables of complex numbers, routing limited to groups",
            {**LATENT, **GROUPED, "topk_method": "group_limited_greedy"},
        ),
        ("deepseek_v3", "latent attention, grouped routing", {**LATENT, **GROUPED}),
        ("diffllama", "the difference of two attentions", TOKENS, ROWS),
        ("doge", "a mask that depends on values", TOKENS, ROWS),
        ("ernie4_5", "interleaved rotation", TOKENS),
        (
            "ernie4_5_moe",
            f"{ROUTED}, interleaved rotation",
            {
                **TOKENS,
                "moe_intermediate_size": 48,
                "moe_k": 2,
                "moe_num_experts": 4,
                "moe_num_shared_experts": 1,
            },
        ),
        ("exaone4", "norms after attention and MLP, sliding window", {"sliding_window": 4}),
        ("falcon", "one key/value head, or groups; rotation or ALiBi", {}),
        (
            "flex_olmo",
            f"{ROUTED}, norms after attention and MLP",
            {**TOKENS, "num_experts": 4, "num_experts_per_tok": 2},
        ),
        ("flint", "sinks, norms of queries and keys, layers without rotation", TOKENS),
        ("gemma", "scaled embedding, GeGLU", {"head_dim": 16}),
        (
            "gemma2",
            "capped scores and logits, four norms a layer, sliding window of some layers",
            {**_WINDOWS, "head_dim": 16},
            ROWS,
        ),
        (
            "gemma3_text",
            "rotary tables of two kinds of layers, sliding window",
            {
                "head_dim": 16,
                "sliding_window": 4,
                "layer_types": ["sliding_attention", "full_attention"],
            },
        ),
        (
            "gemma3n_text",
            "layers that use the keys and values of others, sparse MLP, four residuals",
            {
                **_SHARED,
                "laurel_rank": 8,
                "altup_num_inputs": 2,
                "activation_sparsity_pattern": [0.95, 0.0, 0.0, 0.0],
            },
        ),
        (
            "gemma4_text",
            "layers that use the keys and values of others, two head sizes",
            {**_SHARED, "global_head_dim": 32},
            ROWS,
        ),
        (
            "gemma4_unified_text",
            "layers that use the keys and values of others, two head sizes",
            {**_SHARED, "global_head_dim": 32},
            ROWS,
        ),
        ("glm", "partial rotation in pairs", {"head_dim": 16, "pad_token_id": 0}),
        ("glm4", "partial rotation in pairs, four norms", {"head_dim": 16, "pad_token_id": 0}),
        (
            "glm4_moe_lite",
            "latent attention, grouped routing",
            {**TOKENS, **LATENT, **GROUPED, "mlp_layer_types": ["dense", "sparse"]},
        ),
        ("gpt2", "learned positions, LayerNorm, an MLP without gate", {}),
        ("gpt_bigcode", "one key/value head, learned positions", TOKENS),
        (
            "gpt_neo",
            "sliding window of some layers, unscaled scores",
            {
                **TOKENS,
                "num_layers": 2,
                "num_heads": 4,
                "attention_types": [[["global", "local"], 1]],
                "window_size": 4,
            },
        ),
        ("gpt_neox", "partial rotation, parallel residual", {}),
        (
            "gpt_oss",
            "sinks, routed MLP with biases, sliding window",
            {"head_dim": 16, "num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 4},
        ),
        (
            "gpt_neox_japanese",
            "rotation, a bias of the last layer's attention",
            {**TOKENS, "rotary_pct": 0.5},
        ),
        ("gptj", "partial rotation in pairs, a parallel block", {"rotary_dim": 8}),
        (
            "granite",
            "factors of embedding, residual and logits",
            {"embedding_multiplier": 2.0, "residual_multiplier": 0.5, "logits_scaling": 2.0},
        ),
        ("granitemoe", ROUTED, {"num_local_experts": 4, "num_experts_per_tok": 2}),
        ("granitemoe_swa", f"{ROUTED}, sinks, sliding window", {**GRANITE, **_WINDOWS}),
        (
            "granitemoeshared",
            f"{ROUTED} and a shared MLP",
            {**GRANITE, "shared_intermediate_size": 48},
        ),
        ("granite_swa", "sinks, sliding window", {**TOKENS, **_WINDOWS}),
        ("helium", "rotation in pairs", {**TOKENS, "head_dim": 16}),
        (
            "hrm_text",
            "two stacks of layers in cycles, gated attention",
            {**TOKENS, "head_dim": 16},
        ),
        ("hunyuan_v1_dense", "norms after rotation", {"head_dim": 16, **TOKENS}),
        (
            "hunyuan_v1_moe",
            f"{ROUTED} and a shared expert",
            {"head_dim": 16, "num_experts": 4, "moe_topk": 2, **TOKENS},
        ),
        (
            "hyperclovax",
            "factors of embedding, residual and logits, norms after attention and MLP",
            {**TOKENS, "head_dim": 16},
        ),
        (
            "jetmoe",
            "experts of attention, routed MLP",
            {**GRANITE, "kv_channels": 16},
            ROWS,
        ),
        ("kolibri1", f"{ROUTED}, norms of queries and keys, four norms", _ROUTED_FEW),
        (
            "laguna",
            "gated attention, routed MLP and a shared expert, rotary tables of kinds of layers",
            {**_ROUTED_FEW, "shared_expert_intermediate_size": 48},
        ),
        (
            "llama4_text",
            "chunked attention, rotary tables of complex numbers, experts of scaled tokens",
            {
                "head_dim": 16,
                "num_local_experts": 4,
                "intermediate_size_mlp": 112,
                "moe_layers": [1],
                "no_rope_layers": [1, 0],
                "attention_chunk_size": 4,
                "layer_types": ["chunked_attention", "full_attention"],
            },
            ROWS,
        ),
        (
            "longcat_flash",
            f"latent attention twice a layer, {ROUTED} of which some experts do nothing",
            {
                **TOKENS,
                **LATENT,
                "head_dim": 8,
                "num_layers": 2,
                "ffn_hidden_size": 112,
                "expert_ffn_hidden_size": 48,
                "n_routed_experts": 4,
                "zero_expert_num": 2,
                "moe_topk": 2,
            },
        ),
        ("mellum", f"{ROUTED}, rotary tables of kinds of layers", _ROUTED_FEW),
        (
            "mimo_v2_flash",
            "values smaller than keys, sinks of sliding layers, grouped routing",
            {
                **_WINDOWS,
                **GROUPED,
                "head_dim": 16,
                "v_head_dim": 12,
                "swa_head_dim": 16,
                "swa_v_head_dim": 12,
                "swa_num_attention_heads": 4,
                "swa_num_key_value_heads": 2,
                "mlp_layer_types": ["dense", "sparse"],
            },
        ),
        (
            "minicpm3",
            "latent attention, scaled residuals",
            {**TOKENS, **LATENT, "head_dim": 8},
        ),
        (
            "minimax_m2",
            f"{ROUTED}, partial rotation",
            {**TOKENS, "head_dim": 16, "num_experts_per_tok": 2, "num_local_experts": 4},
        ),
        (
            "ministral3",
            "queries scaled beyond the trained length",
            {**TOKENS, "head_dim": 16},
        ),
        (
            "modernbert-decoder",
            "LayerNorm, gated GELU, sliding window",
            {**TOKENS, "local_attention": 4, "global_attn_every_n_layers": 2},
        ),
        (
            "mpt",
            "ALiBi of the whole context",
            {"d_model": 64, "n_heads": 4, "n_layers": 2, "max_seq_len": 128},
        ),
        ("nanochat", "norms without weights, reversed rotation, capped logits", TOKENS),
        ("olmo2", "norms after attention and MLP", TOKENS),
        ("olmo3", "the same with a sliding window", {**TOKENS, "sliding_window": 4}),
        ("olmoe", f"{ROUTED}, norms of queries and keys", {**TOKENS, **EXPERTS}),
        ("opt", "learned positions", {"ffn_dim": 112, "word_embed_proj_dim": 64}),
        ("phi", "partial rotation, a parallel block", {}),
        ("persimmon", "partial rotation, norms of queries and keys", TOKENS),
        ("vaultgemma", "capped scores and logits", {**TOKENS, **_WINDOWS, "head_dim": 16}, ROWS),
        (
            "xglm",
            "sinusoidal positions",
            {**TOKENS, "d_model": 64, "ffn_dim": 112, "num_layers": 2, "attention_heads": 4},
        ),
        ("youtu", "latent attention", {**TOKENS, **LATENT}),
    )
)
ORIGINAL = (*_OF_DECODERS_ALONE, *DECODERS)
ARCHITECTURES = (*REBUILT, *ORIGINAL, *INDEXED, *RECURRENT, *RECOMPUTED)

_BEGIN, _END = "<!-- architectures: begin -->", "<!-- architectures: end -->"


def supported() -> str:
    """Return the architectures that are rebuilt from fused operators, in one phrase."""
    names = ", ".join(architecture.model_type for architecture in REBUILT)
    return f"{names} and what computes the same"


def table() -> str:
    """Return the table of docs/models.md."""
    lines = [
        "| `model_type` | what is particular to it | form | caches |",
        "|---|---|---|---|",
    ]
    for each in ARCHITECTURES:
        form = "rebuilt" if each.rebuilt else "original"
        lines.append(
            f"| `{each.model_type}` | {each.particulars} | {form} | {', '.join(each.caches)} |"
        )
    return "\n".join(lines)


def with_table(document: str) -> str:
    """Return a document with the table between its two marks."""
    return with_text_between(document, _BEGIN, _END, table())


def with_text_between(document: str, begin: str, end: str, text: str) -> str:
    """Return a document with the text between two marks; ValueError where it has not both."""
    before, first, rest = document.partition(begin)
    _, last, after = rest.partition(end)
    if not (first and last):
        raise ValueError(f"expected {begin} and {end} in the document")
    return f"{before}{begin}\n{text}\n{end}{after}"


if __name__ == "__main__":
    path = Path(sys.argv[1])
    path.write_text(with_table(path.read_text()))
