"""Writes genai_config.json, which describes an exported directory to onnxruntime-genai."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ..context_length import context_length
from .caches import Interface
from .caches.paged import BLOCK_SIZE
from .caches.step import State

# Defaults of the engine's section, for the user to change: requests in a batch; tokens of a step,
# for which running answers wait when prompts come; memory of a cache.
_MAX_BATCH = 64
_MAX_SCHEDULED = 512
_CACHE_BYTES = 256 * 2**20
# onnxruntime-genai refuses names that it does not know; any decoder is "decoder". Rows of these it
# computes anew when they outgrow the length that longrope's first factors are for.
_BY_NAME = ("phi3", "phimoe")
# Caches are in host memory, which kernels then read and update in place (docs/decisions/0021). An
# entry of the session and not of provider_options, because these would choose the provider.
SESSION_OPTIONS = {
    "log_id": "onnxruntime-genai",
    "ep.npuexecutionprovider.host_memory": "1",
    "provider_options": [],
}


def obstacle(interface: Interface) -> str | None:
    """Return why onnxruntime-genai cannot run a model; None if it can."""
    sizes = set(interface.decoder.cache_sizes)
    if not sizes:
        return "onnxruntime-genai expects layers that cache keys and values"
    if len(sizes) > 1 or any(
        each.key != each.value or (each.latent and interface.int8) for each in sizes
    ):
        return "onnxruntime-genai expects keys and values of one size and type"
    if any(each.index_key for each in sizes):
        return "onnxruntime-genai keeps no keys of an indexer beside keys and values"
    if any(state.place for state in interface.decoder.states):
        return "onnxruntime-genai expects one state of each kind in a layer"
    if interface.cache == "static":
        return "onnxruntime-genai has no static cache with per-row lengths"
    if interface.int8 and interface.scales_beside:
        return "onnxruntime-genai keeps no scales of tokens beside keys and values"
    return None


def write_config(path: Path, config: Any, generation: Any, interface: Interface) -> None:
    """Describe the exported model to onnxruntime-genai.

    No provider is named, so that the file works on any machine; choose one with
    ``og.Config.append_provider("NPUExecutionProvider")``.
    """
    eos = _token(config, generation, "eos_token_id")
    first_eos = eos[0] if isinstance(eos, list) else eos
    pad = _token(config, generation, "pad_token_id")
    sizes = interface.stored(interface.decoder.cache_sizes[0])
    text = config.get_text_config()  # of a model of images and text; else the same
    context = context_length(text.to_dict()) or 2048
    decoder: dict[str, Any] = {
        "session_options": SESSION_OPTIONS,
        "filename": "model.onnx",
        "head_size": sizes.key,
        "hidden_size": int(text.hidden_size),
        "num_attention_heads": interface.decoder.heads,
        "num_key_value_heads": sizes.heads,
        "num_hidden_layers": interface.layer_count,
        "inputs": {
            **{name: name for name in interface.leading_inputs},
            "past_key_names": "past_key_values.%d.key",
            "past_value_names": "past_key_values.%d.value",
            **_state_names(interface, "past"),
        },
        "outputs": {
            "logits": "logits",
            "present_key_names": "present.%d.key",
            "present_value_names": "present.%d.value",
            **_state_names(interface, "present"),
        },
    }
    kind = config.model_type if config.model_type in _BY_NAME else "decoder"
    states = interface.decoder.states
    if interface.cache == "dynamic" and states and not any(map(_is_recurrent, states)):
        kind = "lfm2"  # the one that keeps states of convolutions alone
        attending = set(interface.decoder.cached_layers)
        decoder["layer_types"] = [
            "full_attention" if layer in attending else "conv"
            for layer in range(interface.layer_count)
        ]
        decoder["conv_cache_size"] = states[0].shape[-1]
    model = {
        "type": kind,
        "vocab_size": int(interface.decoder.vocabulary),
        "context_length": context,
        "bos_token_id": _token(config, generation, "bos_token_id"),
        "eos_token_id": eos,
        "pad_token_id": first_eos if pad is None else pad,
        "decoder": decoder,
    }
    search = {
        "max_length": context,
        "min_length": 0,
        "do_sample": bool(getattr(generation, "do_sample", False)),
        "num_beams": 1,
        "num_return_sequences": 1,
        "past_present_share_buffer": False,
        "temperature": float(getattr(generation, "temperature", None) or 1.0),
        "top_k": int(getattr(generation, "top_k", None) or 50),
        "top_p": float(getattr(generation, "top_p", None) or 1.0),
        "repetition_penalty": 1.0,
        "length_penalty": 1.0,
    }
    model = {name: value for name, value in model.items() if value is not None}
    described: dict[str, Any] = {"model": model, "search": search}
    if interface.cache == "paged":
        decoder["state_groups"] = _state_groups(interface)
        described["engine"] = {
            "dynamic_batching": {
                "block_size": BLOCK_SIZE,
                "num_blocks": _blocks(interface, context),
                "max_batch_size": _MAX_BATCH,
                "max_scheduled_tokens": _MAX_SCHEDULED,
            }
        }
    path.write_text(json.dumps(described, indent=2) + "\n")


def _state_names(interface: Interface, when: str) -> dict[str, str]:
    """Return how the inputs or outputs of states are named, for each kind that the model has."""
    prefix = {"past": "past_key_values", "present": "present"}[when]
    kinds = sorted({state.kind for state in interface.decoder.states})
    return {f"{when}_{kind.removesuffix('_state')}_names": f"{prefix}.%d.{kind}" for kind in kinds}


def _state_groups(interface: Interface) -> list[dict[str, Any]]:
    """Return which layers keep what of a sequence, as the engine knows it."""
    layers = {"paged_kv": interface.decoder.cached_layers}
    for state in interface.decoder.states:
        group = layers.setdefault(f"fixed_{state.kind.removesuffix('_state')}", [])
        group.append(state.layer)
    return [{"kind": kind, "layer_ids": list(ids)} for kind, ids in layers.items()]


def _is_recurrent(state: State) -> bool:
    return state.kind == "recurrent_state"


def _blocks(interface: Interface, context: int) -> int:
    """Return how many blocks the engine's cache gets: one full context, or what fits the limit."""
    of_one = sum(tensor.nbytes for tensor in interface.empty_caches(1, 1))
    return max(-(-context // BLOCK_SIZE), _CACHE_BYTES // of_one)


def _token(config: Any, generation: Any, name: str) -> Any:
    value = getattr(generation, name, None)
    return getattr(config, name, None) if value is None else value
