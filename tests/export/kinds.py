"""Which kinds of models and caches each run of the tests exports, and which only longer ones."""

from __future__ import annotations

import pytest
from onnxruntime_npu.exporter.architectures import ARCHITECTURES, INDEXED, ORIGINAL, REBUILT

from .conftest import CONFIGS, caches_of, marks_of

# Kinds whose parts those of others show, too: --exhaustive runs them.
REPEATED_KINDS = (
    "afmoe",
    "apertus",
    "arcee",
    "aria_text",
    "axk1",
    "axk2",
    "bailing_hybrid",
    "bamba",
    "bart",
    "beam",
    "bert",
    "biogpt",
    "bitnet",
    "codegen",
    "cohere2",
    "cohere2_moe",
    "cohere_compass_text",
    "ctrl",
    "cwm",
    "deepseek_v2",
    "diffllama",
    "doge",
    "dots1",
    "dots3_note_text",
    "ernie4_5",
    "ernie4_5_moe",
    "exaone4",
    "exaone_moe",
    "falcon-groups",
    "falcon_mamba",
    "flex_olmo",
    "flint",
    "gemma",
    "gemma4_text",
    "gemma4_unified_text",
    "glm",
    "glm4_moe",
    "glm4_moe_lite",
    "glm_moe_dsa",
    "gpt_bigcode",
    "gpt_neo",
    "gpt_neox",
    "gpt_neox_japanese",
    "granite",
    "granite_swa",
    "granitemoe",
    "granitemoe_swa",
    "granitemoehybrid",
    "granitemoeshared",
    "helium",
    "hrm_text",
    "hunyuan_v1_dense",
    "hunyuan_v1_moe",
    "hy_v3",
    "hy_v4",
    "hyperclovax",
    "inkling_text",
    "internlm3",
    "iquestcoder",
    "jais2",
    "jamba",
    "jetmoe",
    "kolibri1",
    "laguna",
    "lfm2_moe",
    "lfm3",
    "longcat_flash",
    "mamba2",
    "mbart",
    "mellum",
    "mimo_v2_flash",
    "minicpm3",
    "minimax",
    "minimax_m2",
    "minimax_m3_vl_text",
    "ministral",
    "ministral3",
    "modernbert-decoder",
    "nanochat",
    "nemotron",
    "nemotron_h",
    "olmo3",
    "olmo_hybrid",
    "olmoe",
    "persimmon",
    "phi4_multimodal",
    "phimoe",
    "qwen2",
    "qwen3_5_moe_text",
    "qwen3_5_text",
    "qwen3_moe",
    "roberta",
    "roformer",
    "smollm3",
    "solar_open",
    "stablelm",
    "trocr",
    "vaultgemma",
    "whisper",
    "xglm",
    "xlm",
    "youtu",
    "zamba2",
)
# Kinds of which one part differs from those left, which the tests of roles show by itself: an
# export of each takes ten seconds and more on slow machines.
SLOW_KINDS = (
    "bigbird_pegasus",
    "cohere",
    "dbrx",
    "deepseek_v4",
    "falcon",
    "falcon-alibi",
    "gemma3n_text",
    "glm4",
    "gptj",
    "inkling2_text",
    "kimi_linear",
    "lfm2",
    "llama4_text",
    "mamba",
    "megatron-bert",
    "mistral",
    "mpt",
    "olmo",
    "olmo2",
    "opt",
    "phi",
    "phi3",
    "qwen2_moe",
    "qwen4_exp_text",
    "recurrent_gemma",
    "rwkv",
    "starcoder2",
    "xlstm",
    "zamba",
    "zaya",
)


def marks_of_kind(kind):
    return marks_of(kind, REPEATED_KINDS, SLOW_KINDS)


# Every run proves all caches of kinds that are not repeated (test_caches.py), --exhaustive exports
# them all. Other runs leave out those of models in their original form, which differ in masks and
# in what attention reads, but for one of each kind; of rebuilt models static ones but for a few,
# whose layers all caches share, and paged ones, of which test_paged.py has some.
KINDS_OF_ATTENTION = ("gemma3_text", "gpt_oss", "deepseek_v3")
PAGED = ("gemma3_text", "deepseek_v3")
REBUILT_STATIC = ("llama", "mistral", "mixtral", "qwen3")
REPEATED = {
    *((a.model_type, "paged") for a in ARCHITECTURES if a.model_type not in PAGED),
    *(
        (a.model_type, "static")
        for a in (*ORIGINAL, *INDEXED)
        if a.model_type not in KINDS_OF_ATTENTION
    ),
    *((a.model_type, "static") for a in REBUILT if a.model_type not in REBUILT_STATIC),
    *((kind, cache) for kind in REPEATED_KINDS for cache in ("dynamic", "static", "paged")),
    ("llama-tied", "static"),
    ("llama-tied", "paged"),
}
FORMS = [
    pytest.param(
        *form, marks=pytest.mark.exhaustive if form in REPEATED else marks_of_kind(form[0])
    )
    for form in ((kind, cache) for kind in CONFIGS for cache in caches_of(kind))
]
