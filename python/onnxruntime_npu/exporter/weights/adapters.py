"""Reads LoRA adapters, as peft saves them, and merges them into the weights of a model."""

from __future__ import annotations

import json
import math
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

from ...errors import ArgumentError, ExportError
from ..roles.linear import sizes_of
from .lazy_weight import LazyWeight, value_of
from .parameters import not_finite
from .safetensors_file import SafetensorsFile

_CONFIG = "adapter_config.json"
_WEIGHTS = "adapter_model.safetensors"
_PREFIX = "base_model.model."
_PARTS = {"lora_A.weight", "lora_B.weight"}
# What else peft trains, or changes in the model that the adapter is for; and what it is.
_OTHERS = {
    "use_dora": "DoRA",
    "use_qalora": "QALoRA",
    "lora_bias": "biases",
    "layer_replication": "repeated layers",
    "modules_to_save": "whole modules",
    "target_parameters": "parameters of experts",
    "trainable_token_indices": "tokens",
    "alora_invocation_tokens": "tokens that switch it",
    "arrow_config": "a routing of adapters",
}
# Ways to start that leave the model's own weights as they are.
_STARTS = (True, False, "gaussian", "orthogonal", "eva")
_PATTERNS = {"r": "rank_pattern", "lora_alpha": "alpha_pattern"}


class Change(NamedTuple):
    """What an adapter adds to a layer's weight: ``scale * B @ A``, A [r, in] and B [out, r]."""

    layer: nn.Module  # torch.nn.Linear, or Conv1D of transformers
    a: LazyWeight
    b: LazyWeight
    scale: float


def read_adapter(model: nn.Module, folder: str | Path) -> dict[str, Change]:
    """Return what an adapter changes, by the names of the model's layers.

    The scale is lora_alpha / r, or lora_alpha / sqrt(r) with use_rslora; rank_pattern and
    alpha_pattern are followed.

    Args:
        model: a transformers model.
        folder: a directory with adapter_config.json and adapter_model.safetensors.

    Raises ArgumentError for a path without an adapter, ExportError for one that does not fit the
    model, or that does more than add to linear layers.
    """
    folder = Path(folder)
    for name in (_CONFIG, _WEIGHTS):
        if not (folder / name).is_file():
            raise ArgumentError(f"expected an adapter's directory with {name}, got {folder}")
    config = _config(folder)
    changes = {}
    for name, (a, b) in _read(model, folder).items():
        layer = _layer(model, name, folder)
        rank = _of(config, "r", name)
        sizes = (rank, *sizes_of(layer))
        got = (tuple(a.shape), tuple(b.shape))
        expected = ((sizes[0], sizes[1]), (sizes[2], sizes[0]))
        if got != expected:
            raise ExportError(
                f"{folder}: expected A and B of {name} to be {list(expected[0])} and "
                f"{list(expected[1])}, got {list(got[0])} and {list(got[1])}"
            )
        divisor = math.sqrt(rank) if config.get("use_rslora") else rank
        changes[name] = Change(layer, a, b, _of(config, "lora_alpha", name) / divisor)
    return changes


def merge_adapters(model: nn.Module, folders: Iterable[str | Path]) -> None:
    """Add adapters to the weights of their layers: ``W + scale * B @ A``, in float32.

    The sums are computed when the weights are used. Only the layers of the model change, not their
    parameters. The errors are those of ``read_adapter``; the model is in float32.
    """
    # All are read first: what they have of the model's own weights is compared with these.
    for changes in [read_adapter(model, folder) for folder in folders]:
        for layer, a, b, scale in changes.values():
            layer.weight = nn.Parameter(_merged(layer, a, b, scale), requires_grad=False)


def _merged(layer: Any, a: LazyWeight, b: LazyWeight, scale: float) -> LazyWeight:
    weight = layer.weight.detach()
    transposed = not isinstance(layer, nn.Linear)

    def total() -> torch.Tensor:
        change = b.float() @ a.float()
        return torch.add(weight, change.t() if transposed else change, alpha=scale)

    return LazyWeight.computed(total, weight.shape, torch.float32)


def _config(folder: Path) -> dict[str, Any]:
    try:
        config = json.loads((folder / _CONFIG).read_bytes())
    except (ValueError, RecursionError) as error:
        raise ExportError(f"{folder / _CONFIG} is no JSON: {error}") from error
    if not isinstance(config, dict) or config.get("peft_type") != "LORA":
        got = config.get("peft_type") if isinstance(config, dict) else config
        raise ExportError(f"{folder}: expected an adapter of peft_type LORA, got {got!r}")
    others = [what for key, what in _OTHERS.items() if config.get(key)]
    if config.get("bias", "none") != "none":
        others.append("biases")
    if others:
        raise ExportError(
            f"{folder}: expected a LoRA adapter of weights alone, got one with "
            f"{', '.join(sorted(set(others)))}: merge it with peft's merge_and_unload"
        )
    start = config.get("init_lora_weights", True)
    if start not in _STARTS:
        raise ExportError(
            f"{folder}: init_lora_weights {start!r} changes the model's own weights: convert the "
            f"adapter to plain LoRA, as peft's documentation shows"
        )
    for key, pattern in _PATTERNS.items():
        for expression in _pattern(config, key):
            try:
                re.compile(expression)
            except re.error as error:
                raise ExportError(
                    f"{folder / _CONFIG}: {pattern}: expected regular expressions, got "
                    f"{expression!r}"
                ) from error
        for value in (config.get(key), *_pattern(config, key).values()):
            if not isinstance(value, (int, float)) or not 0 < value < math.inf:
                raise ExportError(f"{folder / _CONFIG}: expected {key} > 0, got {value!r}")
    return config


def _pattern(config: Mapping[str, Any], key: str) -> dict[str, Any]:
    found = config.get(_PATTERNS[key])
    return found if isinstance(found, dict) else {}


def _of(config: Mapping[str, Any], key: str, name: str) -> Any:
    """Return a layer's value: of the first regular expression for the end of its name, if any."""
    for expression, value in _pattern(config, key).items():
        if re.fullmatch(rf"(.*\.)?({expression})", name):
            return value
    return config[key]


def _read(model: nn.Module, folder: Path) -> dict[str, tuple[LazyWeight, LazyWeight]]:
    """Return A [r, in] and B [out, r] of each layer.

    Weights of the model itself, which peft adds where a head or an embedding is adapted, must be
    the model's.
    """
    file = SafetensorsFile(folder / _WEIGHTS)
    found: dict[str, dict[str, LazyWeight]] = defaultdict(dict)
    for key in file.keys():  # noqa: SIM118 - it is no mapping
        layer, _, part = key.removeprefix(_PREFIX).rpartition(".lora_")
        part = f"lora_{part}"
        tensor = file.get_slice(key)[...]
        own = _own_weight(model, key)
        if own is not None:
            if not _same(own, tensor):
                raise ExportError(
                    f"{folder / _WEIGHTS}: expected the model's own values of {key}, got others: "
                    f"merge the adapter with peft's merge_and_unload"
                )
            continue
        if not key.startswith(_PREFIX) or part not in _PARTS or not isinstance(tensor, LazyWeight):
            raise ExportError(
                f"{folder / _WEIGHTS}: expected lora_A.weight and lora_B.weight of linear layers, "
                f"got {key}"
            )
        if not_finite(tensor):
            raise ExportError(f"{folder / _WEIGHTS}: {key} has values that are not finite")
        found[layer][part] = tensor
    for layer, parts in found.items():
        if set(parts) != _PARTS:
            raise ExportError(f"{folder / _WEIGHTS}: expected A and B of {layer}, got one of them")
    if not found:
        raise ExportError(f"{folder / _WEIGHTS} holds no layer")
    return {name: (parts["lora_A.weight"], parts["lora_B.weight"]) for name, parts in found.items()}


def _own_weight(model: nn.Module, key: str) -> torch.Tensor | None:
    """Return the model's weight that a key names, None if it names something else."""
    name = key.removeprefix(_PREFIX).replace(".base_layer.", ".")
    try:
        return model.get_parameter(name)
    except AttributeError:
        return None


def _same(own: torch.Tensor, tensor: torch.Tensor) -> bool:
    """Whether a tensor is a weight, in its own dtype."""
    stored = value_of(tensor)
    return torch.equal(value_of(own).to(stored.dtype), stored)


def _layer(model: nn.Module, name: str, folder: Path) -> Any:
    from transformers.pytorch_utils import Conv1D

    try:
        layer = model.get_submodule(name)
    except AttributeError as error:
        raise ExportError(
            f"{folder}: expected an adapter of {type(model).__name__}, which has no layer {name}"
        ) from error
    if not isinstance(layer, (nn.Linear, Conv1D)):
        raise ExportError(
            f"{folder}: expected a linear layer with float weights, got {name}, which is "
            f"{type(layer).__name__}"
        )
    return layer
