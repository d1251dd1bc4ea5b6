"""The list of tested architectures, which are exported and compared with transformers.

The command's help, the errors and a table of docs/models.md are generated from it, and tests/export
runs a model of each; ``python -m onnxruntime_npu.exporter.architectures docs/models.md`` writes it.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_ALL_CACHES = ("dynamic", "static", "paged")
_ROWS = ("dynamic", "static")  # attention that has no operator for blocks
_GROWING = ("dynamic",)  # attention of the model's own


@dataclass(frozen=True)
class Architecture:
    """An architecture with its name in transformers."""

    model_type: str
    particulars: str  # of its decoder, or of the models that users know
    tested: dict[str, Any] = field(default_factory=dict)  # settings of the tested configuration
    rebuilt: bool = True  # from fused operators; else exported by its own forward pass
    caches: tuple[str, ...] = _ALL_CACHES


_ROUTED = "routed MLP"
_EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 48}
_WINDOWS: dict[str, Any] = {
    "layer_types": ["sliding_attention", "full_attention"],
    "sliding_window": 4,
}
_TOKENS = {"pad_token_id": 0, "eos_token_id": 2, "bos_token_id": 1}
_LATENT = {
    "kv_lora_rank": 16,
    "q_lora_rank": 24,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 12,
    "num_key_value_heads": 4,
}
_GROUPED = {
    "n_routed_experts": 4,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 48,
    "n_group": 2,
    "topk_group": 1,
    "first_k_dense_replace": 1,
}
_ROUTED_FEW = {**_TOKENS, **_EXPERTS, "head_dim": 16}
_GRANITE = {**_TOKENS, "num_local_experts": 4, "num_experts_per_tok": 2}
_TOWER = {"hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 2}
_CODEGEN = {"n_layer": 2, "n_head": 4, "n_embd": 64, "rotary_dim": 8, "n_positions": 128}
# Two layers of a kind each, and two that use their keys and values.
_SHARED = {
    **_WINDOWS,
    **_TOKENS,
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
        f"{_ROUTED} and shared experts",
        {**_TOKENS, "moe_num_experts": 4, "moe_topk": 2, "moe_num_shared_experts": 1},
    ),
    Architecture("arcee", "an MLP of squared ReLU, kept", _TOKENS),
    Architecture("cwm", "sliding window of some layers", {**_TOKENS, **_WINDOWS, "head_dim": 16}),
    Architecture(
        "dots1",
        f"{_ROUTED} and a shared expert, norms of queries and keys",
        {**_TOKENS, **_GROUPED, "head_dim": 16},
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
        {**_GROUPED, "head_dim": 16},
    ),
    Architecture(
        "hy_v3",
        "routing with a bias and a shared expert, norms of queries and keys",
        {**_ROUTED_FEW, "num_shared_experts": 1, "first_k_dense_replace": 1},
    ),
    Architecture(
        "jais2", "LayerNorm and an MLP of squared ReLU, kept", {**_TOKENS, "head_dim": 16}
    ),
    Architecture("llama", "Llama, SmolLM2; any rotary scaling, embedding and head tied or not"),
    Architecture("ministral", "sliding window", {"sliding_window": 4, "head_dim": 16}),
    Architecture("mistral", "sliding window", {"sliding_window": 4}),
    Architecture("mixtral", _ROUTED, {"num_local_experts": 4}),
    Architecture(
        "nemotron", "partial rotation, LayerNorm and an MLP of squared ReLU, kept", _TOKENS
    ),
    Architecture("olmo", "norms without weights, kept", _TOKENS),
    Architecture(
        "phi3",
        "joint projections, partial rotation, longrope",
        {
            **_TOKENS,
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
            **_TOKENS,
            "vision_config": {**_TOWER, "num_hidden_layers": 1, "image_size": 28, "crop_size": 28},
            "audio_config": {
                **_TOWER,
                "num_blocks": 1,
                "nemo_conv_channels": 8,
                "ext_pw_out_channel": 32,
            },
        },
    ),
    Architecture("phimoe", f"{_ROUTED}, LayerNorm, kept", {**_TOKENS, "num_local_experts": 4}),
    Architecture("qwen2", "bias of query, key and value; sliding window of some layers"),
    Architecture(
        "qwen2_moe",
        f"{_ROUTED} and a shared expert",
        {**_EXPERTS, "shared_expert_intermediate_size": 48},
    ),
    Architecture("qwen3", "norms of queries and keys, head size of its own", {"head_dim": 32}),
    Architecture("qwen3_moe", f"{_ROUTED}, norms of queries and keys", _EXPERTS),
    Architecture("smollm3", "layers without rotation", _TOKENS),
    Architecture(
        "solar_open",
        "grouped routing and a shared expert",
        {**_TOKENS, **_GROUPED, "head_dim": 16},
    ),
    Architecture("stablelm", "partial rotation, LayerNorm, kept"),
    Architecture(
        "starcoder2",
        "LayerNorm and an MLP without gate, kept; sliding window",
        {**_TOKENS, "sliding_window": 4},
    ),
)
ORIGINAL = tuple(
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
        ("apertus", "an MLP of xIELU, norms of queries and keys", _TOKENS),
        (
            "bart",
            "the decoder; learned positions of a row's slots",
            {
                "d_model": 64,
                "encoder_layers": 2,
                "decoder_layers": 2,
                "decoder_attention_heads": 4,
                "decoder_ffn_dim": 112,
            },
        ),
        ("bert", "the decoder; learned positions", {**_TOKENS, "is_decoder": True}),
        ("biogpt", "learned positions from the third row, scaled embedding", _TOKENS),
        ("bitnet", "norms inside attention and MLP", _TOKENS),
        ("bloom", "ALiBi", {"n_layer": 2, "n_head": 4}, _GROWING),
        ("codegen", "joint projections in blocks, partial rotation in pairs", _CODEGEN, _ROWS),
        ("cohere", "interleaved rotation, LayerNorm, scaled logits", _TOKENS),
        ("cohere2", "sliding window, layers without rotation", {**_TOKENS, "sliding_window": 4}),
        (
            "cohere2_moe",
            f"{_ROUTED}, interleaved rotation, a parallel block",
            {**_ROUTED_FEW, "sliding_window": 4, "logit_scale": 4.0},
        ),
        (
            "ctrl",
            "sinusoidal positions",
            {"n_embd": 64, "dff": 112, "n_layer": 2, "n_head": 4, "n_positions": 128},
        ),
        (
            "deepseek_v2",
            "latent attention, rotary tables of complex numbers, routing limited to groups",
            {**_LATENT, **_GROUPED, "topk_method": "group_limited_greedy"},
        ),
        ("deepseek_v3", "latent attention, grouped routing", {**_LATENT, **_GROUPED}),
        ("diffllama", "the difference of two attentions", _TOKENS, _ROWS),
        ("doge", "a mask that depends on values", _TOKENS, _ROWS),
        ("ernie4_5", "interleaved rotation", _TOKENS),
        (
            "ernie4_5_moe",
            f"{_ROUTED}, interleaved rotation",
            {
                **_TOKENS,
                "moe_intermediate_size": 48,
                "moe_k": 2,
                "moe_num_experts": 4,
                "moe_num_shared_experts": 1,
            },
        ),
        ("exaone4", "norms after attention and MLP, sliding window", {"sliding_window": 4}),
        ("falcon", "one key/value head, or groups; rotation or ALiBi", {}, _GROWING),
        (
            "flex_olmo",
            f"{_ROUTED}, norms after attention and MLP",
            {**_TOKENS, "num_experts": 4, "num_experts_per_tok": 2},
        ),
        ("gemma", "scaled embedding, GeGLU", {"head_dim": 16}),
        (
            "gemma2",
            "capped scores and logits, four norms a layer, sliding window of some layers",
            {**_WINDOWS, "head_dim": 16},
            _ROWS,
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
            _ROWS,
        ),
        ("glm", "partial rotation in pairs", {"head_dim": 16, "pad_token_id": 0}),
        ("glm4", "partial rotation in pairs, four norms", {"head_dim": 16, "pad_token_id": 0}),
        (
            "glm4_moe_lite",
            "latent attention, grouped routing",
            {**_TOKENS, **_LATENT, **_GROUPED, "mlp_layer_types": ["dense", "sparse"]},
        ),
        ("gpt2", "learned positions, LayerNorm, an MLP without gate", {}),
        ("gpt_bigcode", "one key/value head, learned positions", _TOKENS),
        (
            "gpt_neo",
            "sliding window of some layers, unscaled scores",
            {
                **_TOKENS,
                "num_layers": 2,
                "num_heads": 4,
                "attention_types": [[["global", "local"], 1]],
                "window_size": 4,
            },
            _GROWING,
        ),
        ("gpt_neox", "partial rotation, parallel residual", {}),
        (
            "gpt_oss",
            "sinks, routed MLP with biases, sliding window",
            {"head_dim": 16, "num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 4},
            _ROWS,
        ),
        ("gptj", "partial rotation in pairs, a parallel block", {"rotary_dim": 8}, _ROWS),
        (
            "granite",
            "factors of embedding, residual and logits",
            {"embedding_multiplier": 2.0, "residual_multiplier": 0.5, "logits_scaling": 2.0},
        ),
        ("granitemoe", _ROUTED, {"num_local_experts": 4, "num_experts_per_tok": 2}),
        ("granitemoe_swa", f"{_ROUTED}, sinks, sliding window", {**_GRANITE, **_WINDOWS}, _ROWS),
        (
            "granitemoeshared",
            f"{_ROUTED} and a shared MLP",
            {**_GRANITE, "shared_intermediate_size": 48},
        ),
        ("granite_swa", "sinks, sliding window", {**_TOKENS, **_WINDOWS}, _ROWS),
        ("helium", "rotation in pairs", {**_TOKENS, "head_dim": 16}),
        ("hunyuan_v1_dense", "norms after rotation", {"head_dim": 16, **_TOKENS}),
        (
            "hunyuan_v1_moe",
            f"{_ROUTED} and a shared expert",
            {"head_dim": 16, "num_experts": 4, "moe_topk": 2, **_TOKENS},
        ),
        (
            "hyperclovax",
            "factors of embedding, residual and logits, norms after attention and MLP",
            {**_TOKENS, "head_dim": 16},
        ),
        (
            "jetmoe",
            "experts of attention, routed MLP",
            {**_GRANITE, "kv_channels": 16},
            _ROWS,
        ),
        (
            "laguna",
            "gated attention, routed MLP and a shared expert, rotary tables of kinds of layers",
            {**_ROUTED_FEW, "shared_expert_intermediate_size": 48},
        ),
        (
            "llama4_text",
            "chunked attention, rotary tables of complex numbers, every token through all experts",
            {
                "head_dim": 16,
                "num_local_experts": 4,
                "intermediate_size_mlp": 112,
                "moe_layers": [1],
                "no_rope_layers": [1, 0],
                "attention_chunk_size": 4,
                "layer_types": ["chunked_attention", "full_attention"],
            },
            _ROWS,
        ),
        ("mellum", f"{_ROUTED}, rotary tables of kinds of layers", _ROUTED_FEW),
        (
            "mimo_v2_flash",
            "values smaller than keys, sinks of sliding layers, grouped routing",
            {
                **_WINDOWS,
                **_GROUPED,
                "head_dim": 16,
                "v_head_dim": 12,
                "swa_head_dim": 16,
                "swa_v_head_dim": 12,
                "swa_num_attention_heads": 4,
                "swa_num_key_value_heads": 2,
                "mlp_layer_types": ["dense", "sparse"],
            },
            _ROWS,
        ),
        (
            "minicpm3",
            "latent attention, scaled residuals",
            {**_TOKENS, **_LATENT, "head_dim": 8},
        ),
        (
            "minimax_m2",
            f"{_ROUTED}, partial rotation",
            {**_TOKENS, "head_dim": 16, "num_experts_per_tok": 2, "num_local_experts": 4},
        ),
        (
            "ministral3",
            "queries scaled beyond the trained length",
            {**_TOKENS, "head_dim": 16},
        ),
        (
            "modernbert-decoder",
            "LayerNorm, gated GELU, sliding window",
            {**_TOKENS, "local_attention": 4, "global_attn_every_n_layers": 2},
        ),
        (
            "mpt",
            "ALiBi of the whole context",
            {"d_model": 64, "n_heads": 4, "n_layers": 2, "max_seq_len": 128},
            _GROWING,
        ),
        ("nanochat", "norms without weights, reversed rotation, capped logits", _TOKENS),
        ("olmo2", "norms after attention and MLP", _TOKENS),
        ("olmo3", "the same with a sliding window", {**_TOKENS, "sliding_window": 4}),
        ("olmoe", f"{_ROUTED}, norms of queries and keys", {**_TOKENS, **_EXPERTS}),
        ("opt", "learned positions", {"ffn_dim": 112, "word_embed_proj_dim": 64}),
        ("phi", "partial rotation, a parallel block", {}),
        ("persimmon", "partial rotation, norms of queries and keys", _TOKENS),
        (
            "roberta",
            "learned positions that begin after that of padding",
            {**_TOKENS, "is_decoder": True},
        ),
        (
            "trocr",
            "the decoder; learned positions of a row's slots",
            {
                **_TOKENS,
                "d_model": 64,
                "decoder_layers": 2,
                "decoder_attention_heads": 4,
                "decoder_ffn_dim": 112,
            },
            _ROWS,
        ),
        ("vaultgemma", "capped scores and logits", {**_TOKENS, **_WINDOWS, "head_dim": 16}, _ROWS),
        (
            "xglm",
            "sinusoidal positions",
            {**_TOKENS, "d_model": 64, "ffn_dim": 112, "num_layers": 2, "attention_heads": 4},
            _ROWS,
        ),
        ("youtu", "latent attention", {**_TOKENS, **_LATENT}),
    )
)
ARCHITECTURES = (*REBUILT, *ORIGINAL)

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
