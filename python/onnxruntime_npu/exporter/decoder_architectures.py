"""Tested decoders of encoder-decoders, and encoders whose configuration makes them decoders."""

from __future__ import annotations

from .architecture import TOKENS, Architecture

_DECODER = {
    **TOKENS,
    "d_model": 64,
    "decoder_layers": 2,
    "decoder_attention_heads": 4,
    "decoder_ffn_dim": 112,
    "decoder_start_token_id": 1,
}
DECODERS = tuple(
    Architecture(model_type, particulars, tested, rebuilt=False)
    for model_type, particulars, tested in (
        (
            "bart",
            "the decoder; learned positions of a row's slots",
            {**_DECODER, "encoder_layers": 2},
        ),
        ("bert", "the decoder; learned positions", {**TOKENS, "is_decoder": True}),
        (
            "mbart",
            "the decoder; learned positions of a row's slots, norms before attention and MLP",
            {**_DECODER, "encoder_layers": 2},
        ),
        (
            "bigbird_pegasus",
            "the decoder; learned positions of a row's slots, norms before attention and MLP",
            {**_DECODER, "encoder_layers": 2, "attention_type": "original_full"},
        ),
        ("megatron-bert", "the decoder; norms before", {**TOKENS, "is_decoder": True}),
        (
            "roberta",
            "learned positions that begin after that of padding",
            {**TOKENS, "is_decoder": True},
        ),
        (
            "trocr",
            "the decoder; learned positions of a row's slots",
            _DECODER,
        ),
        (
            "whisper",
            "the decoder; learned positions",
            {**_DECODER, "max_target_positions": 128},
        ),
    )
)
