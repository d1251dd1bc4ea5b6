"""Describes an exported encoder-decoder of sound to onnxruntime-genai, which has no others."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from .encoder_decoder import DecoderPart, EncoderPart
from .genai import SESSION_OPTIONS

# The only number of frames that onnxruntime-genai takes: 30 seconds.
_FRAMES = 3000


def write_genai_config(
    path: Path, encoder: EncoderPart, decoder: DecoderPart, files: tuple[str, ...]
) -> str | None:
    """Write genai_config.json for the files of encoder and decoder; return why not, or None."""
    if encoder.encoder.main_input != "input_features":
        return "no genai_config.json: onnxruntime-genai has encoder-decoders of sound only"
    if decoder.cache_position:
        return "no genai_config.json: onnxruntime-genai runs encoder-decoders whose cache grows"
    if decoder.masked:
        return "no genai_config.json: onnxruntime-genai takes no mask of sound"
    shape = encoder.dimensions()["input_features"]
    if shape[-1] != _FRAMES:
        return f"no genai_config.json: onnxruntime-genai takes {_FRAMES} frames, not {shape[-1]}"
    config, generation = encoder.model.config, encoder.model.generation_config
    heads, size, _ = decoder.sizes[0].own
    own, cross = ({k: f"%d.{of}.{k}" for k in ("key", "value")} for of in ("decoder", "encoder"))
    sizes = {
        "session_options": SESSION_OPTIONS,
        "head_size": size,
        "hidden_size": encoder.dimensions()["last_hidden_state"][-1],
        "num_attention_heads": heads,
        "num_key_value_heads": heads,
        "num_hidden_layers": len(decoder.sizes),
    }
    context = int(config.max_target_positions)
    model = {
        "type": "whisper",
        "vocab_size": decoder.vocabulary,
        "context_length": context,
        "encoder": {
            **sizes,
            "filename": files[0],
            "inputs": {"audio_features": "input_features"},
            "outputs": {
                "encoder_hidden_states": "last_hidden_state",
                "cross_present_key_names": f"present.{cross['key']}",
                "cross_present_value_names": f"present.{cross['value']}",
            },
        },
        "decoder": {
            **sizes,
            "filename": files[1],
            "inputs": {
                "input_ids": "input_ids",
                "past_key_names": f"past_key_values.{own['key']}",
                "past_value_names": f"past_key_values.{own['value']}",
                "cross_past_key_names": f"past_key_values.{cross['key']}",
                "cross_past_value_names": f"past_key_values.{cross['value']}",
            },
            "outputs": {
                "logits": "logits",
                "present_key_names": f"present.{own['key']}",
                "present_value_names": f"present.{own['value']}",
            },
        },
    }
    for name in ("bos_token_id", "eos_token_id", "pad_token_id"):
        token: Any = getattr(generation, name, None)
        if token is None:
            token = getattr(config, name, None)
        if token is not None:
            model[name] = token
    search = {
        "max_length": context,
        "do_sample": False,
        "num_beams": 1,
        "past_present_share_buffer": False,
        "top_k": 1,
    }
    path.write_text(json.dumps({"model": model, "search": search}, indent=2) + "\n")
    return None
