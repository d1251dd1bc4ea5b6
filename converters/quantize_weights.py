"""Replaces the linear layers of a float model by quantised ones."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import torch
from tqdm import tqdm

from .calibration import largest_inputs
from .quantized_linear import IntegerLinear, WeightOnlyLinear
from .schemes import Scheme, scheme_named

_SMALLEST_GROUP = 32


def quantize_weights(
    model: torch.nn.Module,
    scheme: str,
    *,
    group_size: int = 128,
    calibration: Iterable[Any] | None = None,
    skip: Collection[str] = ("lm_head",),
) -> torch.nn.Module:
    """Quantise the weights of a model's linear layers, in place.

    Weights are rounded to nearest, symmetrically, with the scale of each column (or group) that has
    the smallest squared error.

    Args:
        model: A float model: every ``torch.nn.Linear`` in it is replaced.
        scheme: ``"w8a16"`` or ``"w4a16"``, integer weights multiplied as floats, for models of
            float16 and bfloat16; ``"w8a8_dynamic"`` or ``"w8a8"``, integer products with a scale
            per token, or one per layer from calibration.
        group_size: Input features that share a scale in ``"w4a16"``: a multiple of 32.
        calibration: Batches of inputs, for ``"w8a8"``: token ids, or tuples or mappings of the
            model's arguments.
        skip: Names of layers to leave as they are: a layer's whole name, or its last parts.

    Returns:
        The model itself. Its layers call ``npu_weight_quant_batchmatmul``, or ``npu_quant_matmul``
        after ``npu_quantize`` or ``npu_dynamic_quant``, eagerly on every device and in exports.

    Raises:
        ValueError: for an unknown scheme, a group size, a dtype or a layer that it cannot take,
            and for ``"w8a8"`` without calibration. The model is then unchanged.

    """
    chosen = scheme_named(scheme)
    if chosen.grouped and (group_size < _SMALLEST_GROUP or group_size % _SMALLEST_GROUP):
        raise ValueError(
            f"[quantize_weights] expected a group_size that is a multiple of 32, got {group_size}"
        )
    layers: dict[str, torch.nn.Module] = {
        name: layer
        for name, layer in model.named_modules()
        if isinstance(layer, torch.nn.Linear) and not _skipped(name, skip)
    }
    if not layers:
        raise ValueError(
            "[quantize_weights] expected a model with torch.nn.Linear layers to quantise, got none"
        )
    largest = _calibrated(model, layers, chosen, calibration)
    replaced = {
        name: _quantized(layer, chosen, group_size, largest.get(name))
        for name, layer in tqdm(layers.items(), desc=f"Quantising to {scheme}", unit="layer")
    }
    for name, layer in replaced.items():
        parent, _, attribute = name.rpartition(".")
        setattr(model.get_submodule(parent), attribute, layer)
    return model


def _skipped(name: str, skip: Collection[str]) -> bool:
    return any(name == entry or name.endswith(f".{entry}") for entry in skip)


def _calibrated(
    model: torch.nn.Module,
    layers: dict[str, torch.nn.Module],
    scheme: Scheme,
    calibration: Iterable[Any] | None,
) -> dict[str, float]:
    if scheme.activation != "static":
        if calibration is not None:
            raise ValueError(
                f"[quantize_weights] expected calibration with w8a8 only, got it with {scheme.name}"
            )
        return {}
    if calibration is None:
        raise ValueError(
            "[quantize_weights] expected calibration inputs for w8a8, got none; w8a8_dynamic needs "
            "none"
        )
    return largest_inputs(model, layers, calibration)


def _quantized(
    layer: torch.nn.Module, scheme: Scheme, group_size: int, largest_input: float | None
) -> torch.nn.Module:
    assert isinstance(layer, torch.nn.Linear)
    if scheme.activation == "float":
        quantized: torch.nn.Module = WeightOnlyLinear(layer, scheme, group_size)
    else:
        quantized = IntegerLinear(layer, largest_input)
    return quantized.train(layer.training)
