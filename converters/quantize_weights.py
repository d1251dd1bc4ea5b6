"""Replaces the linear layers and experts of a float model by quantised ones."""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterable, Iterator
from typing import Any

import torch
from onnxruntime_npu.progress import progress

from .calibration import rounded_for_inputs, seen_inputs
from .input_scales import STATIC_ERROR, InputScales, SeenInputs, input_scales
from .quantized_experts import QuantizedExperts, is_experts
from .quantized_linear import GroupedIntegerLinear, IntegerLinear, WeightOnlyLinear
from .schemes import SCHEMES, Scheme, scheme_named

_SMALLEST_GROUP = 32


def quantize_weights(
    model: torch.nn.Module,
    scheme: str,
    *,
    group_size: int = 128,
    inner_precise: int = 0,
    calibration: Iterable[Any] | None = None,
    static_error: float = STATIC_ERROR,
    skip: Collection[str] = ("lm_head",),
) -> torch.nn.Module:
    """Quantise the weights of a model's linear layers and experts, in place.

    Weights are rounded to nearest, symmetrically, with the scale of each column (or group) that has
    the smallest squared error. With calibration, the linear layers of ``"w4a16"`` are rounded for
    the inputs that they get, so that errors cancel out in their outputs; those whose errors offsets
    make smaller have them. Those of ``"w8a8"`` and ``"w8a8_dynamic"`` get factors that take large
    features of activations over into the weights.

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
            ``"w8a8"`` needs them, ``"w8a8_dynamic"`` is better with them, ``"w4a16"`` takes one
            batch.
        static_error: What rounding may change in the outputs of a layer of ``"w8a8"`` with one
            scale for all tokens: the root mean square, relative to the outputs, and three times as
            much for a single token. Layers that err by more have a scale per token. 0 gives all
            layers one, ``math.inf`` none.
        skip: Names of layers to leave as they are: a layer's whole name, or its last parts.

    Returns:
        The model itself, or what replaces it if it is one layer. Layers call
        ``npu_weight_quant_batchmatmul``, or ``npu_quant_matmul`` after ``npu_quantize`` or
        ``npu_dynamic_quant``, experts ``npu_grouped_matmul``, eagerly on every device and in
        exports.

    Raises:
        ValueError: for an unknown scheme, a group size, a dtype or a layer that it cannot take,
            for ``"w8a8"`` without calibration, for calibration that a scheme does not take, and for
            a negative ``static_error``. The model is then unchanged.

    """
    replaced = dict(
        quantized_layers(
            model,
            scheme,
            group_size=group_size,
            inner_precise=inner_precise,
            calibration=calibration,
            static_error=static_error,
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
    static_error: float = STATIC_ERROR,
    skip: Collection[str] = ("lm_head",),
) -> Iterator[tuple[str, torch.nn.Module]]:
    """Yield the name and the replacement of each layer of ``quantize_weights``, one by one.

    The model stays unchanged, or the caller puts in what it has got, so that memory need not hold
    all weights twice. The arguments and errors are those of ``quantize_weights``.
    """
    chosen = scheme_named(scheme)
    _check_calibration(chosen, calibration)
    if chosen.grouped and (group_size < _SMALLEST_GROUP or group_size % _SMALLEST_GROUP):
        raise ValueError(
            f"[quantize_weights] expected a group_size that is a multiple of 32, got {group_size}"
        )
    if inner_precise not in (0, 1) or (inner_precise and chosen.activation != "float"):
        raise ValueError(
            f"[quantize_weights] expected inner_precise 0, or 1 with w8a16 or w4a16, got "
            f"{inner_precise} with {scheme}"
        )
    if not static_error >= 0:
        raise ValueError(
            f"[quantize_weights] expected a static_error of at least 0, got {static_error}"
        )
    named = [(name, layer) for name, layer in model.named_modules() if not _skipped(name, skip)]
    linear = {name: layer for name, layer in named if is_linear(layer)}
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
    scales = None
    rounded: dict[str, torch.nn.Module] = {}
    if calibration is not None and chosen.compensated:
        rounding = functools.partial(_compensated, group_size, inner_precise)
        rounded = rounded_for_inputs(model, linear, rounding, calibration)
        yield from rounded.items()
    elif calibration is not None and linear:
        seen = seen_inputs(model, linear, calibration)
        scales = _LayerScales(seen, linear, chosen, static_error)
    left = {name: layer for name, layer in layers.items() if name not in rounded}
    for name, layer in progress(left.items(), f"Quantising to {scheme}", "layer"):
        yield name, _quantized(name, layer, chosen, group_size, inner_precise, scales)


def is_linear(layer: torch.nn.Module) -> bool:
    """Whether a layer is linear, and no class of its own that multiplies in another way."""
    return isinstance(layer, torch.nn.Linear) and type(layer).forward is torch.nn.Linear.forward


def _skipped(name: str, skip: Collection[str]) -> bool:
    return any(name == entry or name.endswith(f".{entry}") for entry in skip)


def _check_calibration(scheme: Scheme, calibration: Iterable[Any] | None) -> None:
    if calibration is None and scheme.activation == "static":
        raise ValueError(
            "[quantize_weights] expected calibration inputs for w8a8, got none; w8a8_dynamic needs "
            "none"
        )
    if calibration is not None and not scheme.calibrated:
        raise ValueError(
            f"[quantize_weights] expected calibration with "
            f"{', '.join(name for name, each in SCHEMES.items() if each.calibrated)} only, got it "
            f"with {scheme.name}"
        )


class _LayerScales:
    """Scales of the layers' inputs, chosen when the first layer that takes an input is rounded."""

    def __init__(
        self,
        seen: dict[tuple[str, ...], SeenInputs],
        layers: dict[str, torch.nn.Linear],
        scheme: Scheme,
        static_error: float,
    ) -> None:
        self._seen, self._layers = seen, layers
        self._static, self._static_error = scheme.activation == "static", static_error
        self._names = {name: names for names in seen for name in names}
        missing = [name for name in layers if name not in self._names]
        if missing and self._static:
            raise ValueError(
                f"[quantize_weights] expected calibration inputs that reach every layer, got none "
                f"for {', '.join(missing[:3])}{' and others' if len(missing) > 3 else ''}; leave "
                f"such layers out with skip=, or use w8a8_dynamic"
            )
        self._chosen: dict[tuple[str, ...], InputScales] = {}

    def of(self, name: str) -> InputScales | None:
        """Return the scales of a layer's input, or None if calibration has not seen it."""
        names = self._names.get(name)
        if names is None:
            return None
        if names not in self._chosen:
            weights = [self._layers[each].weight for each in names]
            self._chosen[names] = input_scales(
                weights, self._seen.pop(names), static=self._static, most=self._static_error
            )
        return self._chosen[names]


def _compensated(
    group_size: int, inner_precise: int, layer: torch.nn.Linear, moments: torch.Tensor
) -> torch.nn.Module:
    rounded = WeightOnlyLinear.compensated(layer, moments, group_size, inner_precise)
    return rounded.train(layer.training)


def _quantized(
    name: str,
    layer: torch.nn.Module,
    scheme: Scheme,
    group_size: int,
    inner_precise: int,
    scales: _LayerScales | None,
) -> torch.nn.Module:
    quantized: torch.nn.Module
    if not isinstance(layer, torch.nn.Linear):
        quantized = QuantizedExperts.rounded(layer, scheme, group_size)
    elif scheme.activation == "float":
        quantized = WeightOnlyLinear.rounded(layer, scheme, group_size, inner_precise)
    elif scheme.weight_bits == 4:
        quantized = GroupedIntegerLinear.rounded(layer, scheme, group_size)
    else:
        quantized = IntegerLinear.rounded(layer, None if scales is None else scales.of(name))
    return quantized.train(layer.training)
