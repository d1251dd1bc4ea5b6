"""Replaces the linear layers and experts of a float model by quantised ones."""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterable, Iterator
from typing import Any

import torch
from onnxruntime_npu.progress import progress

from .calibration import largest_inputs, rounded_for_inputs
from .quantized_experts import QuantizedExperts, is_experts
from .quantized_linear import GroupedIntegerLinear, IntegerLinear, WeightOnlyLinear
from .schemes import Scheme, scheme_named

_SMALLEST_GROUP = 32


def quantize_weights(
    model: torch.nn.Module,
    scheme: str,
    *,
    group_size: int = 128,
    inner_precise: int = 0,
    calibration: Iterable[Any] | None = None,
    skip: Collection[str] = ("lm_head",),
) -> torch.nn.Module:
    """Quantise the weights of a model's linear layers and experts, in place.

    Weights are rounded to nearest, symmetrically, with the scale of each column (or group) that has
    the smallest squared error. With calibration, the linear layers of ``"w4a16"`` are rounded for
    the inputs that they get, so that errors cancel out in their outputs; those whose errors offsets
    make smaller have them.

    Args:
        model: A float model: every ``torch.nn.Linear`` in it is replaced, and every block of
            experts that has their weights in three axes, ``gate_up_proj`` (or ``up_proj``) and
            ``down_proj``, as in transformers.
        scheme: ``"w8a16"`` or ``"w4a16"``, integer weights multiplied as floats, for models of
            float16 and bfloat16; ``"w8a8_dynamic"`` or ``"w8a8"``, integer products with a scale
            per token, or one per layer from calibration; ``"w4a8"``, integer products of int4
            weights with a scale per token, for models of float16 and bfloat16. Experts have a
            scale per token in ``"w8a8"``, too.
        group_size: Input features that share a scale in ``"w4a16"`` and ``"w4a8"``: a multiple of
            32. A layer whose input features they do not divide has one scale per column where the
            operator needs equal groups: in ``"w4a8"`` and in experts.
        inner_precise: 1 multiplies integers in the linear layers of ``"w8a16"`` and ``"w4a16"``,
            for speed: activations are rounded to int8, with a scale for each group of a row.
        calibration: Batches of inputs: token ids, or tuples or mappings of the model's arguments.
            ``"w8a8"`` needs them, ``"w4a16"`` takes one batch.
        skip: Names of layers to leave as they are: a layer's whole name, or its last parts.

    Returns:
        The model itself, or what replaces it if it is one layer. Layers call
        ``npu_weight_quant_batchmatmul``, or ``npu_quant_matmul`` after ``npu_quantize`` or
        ``npu_dynamic_quant``, experts ``npu_grouped_matmul``, eagerly on every device and in
        exports.

    Raises:
        ValueError: for an unknown scheme, a group size, a dtype or a layer that it cannot take,
            for ``"w8a8"`` without calibration, and for calibration that a scheme does not take.
            The model is then unchanged.

    """
    replaced = dict(
        quantized_layers(
            model,
            scheme,
            group_size=group_size,
            inner_precise=inner_precise,
            calibration=calibration,
            skip=skip,
        )
    )
    if "" in replaced:
        return replaced[""]
    for name, layer in replaced.items():
        model.set_submodule(name, layer)
    return model


def quantized_layers(
    model: torch.nn.Module,
    scheme: str,
    *,
    group_size: int = 128,
    inner_precise: int = 0,
    calibration: Iterable[Any] | None = None,
    skip: Collection[str] = ("lm_head",),
) -> Iterator[tuple[str, torch.nn.Module]]:
    """Yield the name and the replacement of each layer of ``quantize_weights``, one by one.

    The model stays unchanged, or the caller puts in what it has got, so that memory need not hold
    all weights twice. The arguments and errors are those of ``quantize_weights``.
    """
    chosen = scheme_named(scheme)
    if chosen.grouped and (group_size < _SMALLEST_GROUP or group_size % _SMALLEST_GROUP):
        raise ValueError(
            f"[quantize_weights] expected a group_size that is a multiple of 32, got {group_size}"
        )
    if inner_precise not in (0, 1) or (inner_precise and chosen.activation != "float"):
        raise ValueError(
            f"[quantize_weights] expected inner_precise 0, or 1 with w8a16 or w4a16, got "
            f"{inner_precise} with {scheme}"
        )
    named = [(name, layer) for name, layer in model.named_modules() if not _skipped(name, skip)]
    linear = {name: layer for name, layer in named if isinstance(layer, torch.nn.Linear)}
    for each in linear.values():
        chosen.check_dtype(each.weight.dtype)
    layers: dict[str, torch.nn.Module] = {**linear} | {
        name: layer for name, layer in named if is_experts(layer)
    }
    if not layers:
        raise ValueError(
            "[quantize_weights] expected a model with torch.nn.Linear layers or experts to "
            "quantise, got none"
        )
    largest: dict[str, float] = {}
    rounded: dict[str, torch.nn.Module] = {}
    if chosen.compensated and calibration is not None:
        rounding = functools.partial(_compensated, group_size, inner_precise)
        rounded = rounded_for_inputs(model, linear, rounding, calibration)
        yield from rounded.items()
    else:
        largest = _calibrated(model, linear, chosen, calibration)
    left = {name: layer for name, layer in layers.items() if name not in rounded}
    for name, layer in progress(left.items(), f"Quantising to {scheme}", "layer"):
        yield name, _quantized(layer, chosen, group_size, inner_precise, largest.get(name))


def _skipped(name: str, skip: Collection[str]) -> bool:
    return any(name == entry or name.endswith(f".{entry}") for entry in skip)


def _calibrated(
    model: torch.nn.Module,
    layers: dict[str, torch.nn.Linear],
    scheme: Scheme,
    calibration: Iterable[Any] | None,
) -> dict[str, float]:
    if scheme.activation != "static":
        if calibration is not None:
            raise ValueError(
                f"[quantize_weights] expected calibration with w8a8 or w4a16 only, got it with "
                f"{scheme.name}"
            )
        return {}
    if calibration is None:
        raise ValueError(
            "[quantize_weights] expected calibration inputs for w8a8, got none; w8a8_dynamic needs "
            "none"
        )
    return largest_inputs(model, layers, calibration)


def _compensated(
    group_size: int, inner_precise: int, layer: torch.nn.Linear, moments: torch.Tensor
) -> torch.nn.Module:
    rounded = WeightOnlyLinear.compensated(layer, moments, group_size, inner_precise)
    return rounded.train(layer.training)


def _quantized(
    layer: torch.nn.Module,
    scheme: Scheme,
    group_size: int,
    inner_precise: int,
    largest_input: float | None,
) -> torch.nn.Module:
    quantized: torch.nn.Module
    if not isinstance(layer, torch.nn.Linear):
        quantized = QuantizedExperts(layer, scheme, group_size)
    elif scheme.activation == "float":
        quantized = WeightOnlyLinear.rounded(layer, scheme, group_size, inner_precise)
    elif scheme.weight_bits == 4:
        quantized = GroupedIntegerLinear.rounded(layer, scheme, group_size)
    else:
        quantized = IntegerLinear.rounded(layer, largest_input)
    return quantized.train(layer.training)
