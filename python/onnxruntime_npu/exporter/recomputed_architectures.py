"""Tested architectures that are exported without a cache: every step runs all tokens of a row."""

from __future__ import annotations

from .architecture import GROWING, TOKENS, Architecture

RECOMPUTED = tuple(
    Architecture(model_type, particulars, settings, rebuilt=False, caches=GROWING)
    for model_type, particulars, settings in (
        (
            "openai-gpt",
            "takes no cache: all tokens are run again",
            {"n_layer": 2, "n_head": 4, "n_embd": 64, "n_positions": 128},
        ),
        (
            "roformer",
            "the decoder, whose cache does not take tokens one by one: all are run again",
            {**TOKENS, "is_decoder": True, "embedding_size": 64},
        ),
        (
            "xlm",
            "with `causal`; takes no cache: all tokens are run again",
            {**TOKENS, "causal": True, "n_langs": 1, "emb_dim": 64, "n_layers": 2, "n_heads": 4},
        ),
    )
)
