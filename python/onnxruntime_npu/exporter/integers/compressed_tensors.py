"""compressed-tensors: integers of llm-compressor, with or without quantised activations.

Formats ``pack-quantized`` (``weight_packed`` int32 [out, in * bits / 32]), ``int-quantized`` and
``naive-quantized`` (``weight`` int8 [out, in]); ``weight_scale`` [out, groups], [out, 1] or [1].
Formats ``float-quantized``, ``mxfp8-quantized``, ``mxfp4-pack-quantized`` and
``nvfp4-pack-quantized`` are restored as floats.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import torch

from .bits import unpacked_whole
from .format import Format, Layer, check_shape, group_size, taken
from .integer_weight import DYNAMIC, FLOAT, STATIC, IntegerWeight
from .scaled_floats import scaled_floats

_DENSE, _MARLIN = "dense", "marlin-24"
_EXPRESSION = "re:"
_IN_WEIGHTS = ("weight_input", "weight_output")
_FLOAT8 = "F8_E4M3"


class CompressedTensors(Format):
    """``W[o, i] = (q[o, i] - zero[o, g]) * scale[o, g]`` with i in group g."""

    method = "compressed-tensors"

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__(config)
        sparse = (config.get("sparsity_config") or {}).get("format") or _DENSE
        layout = sparse if sparse != _DENSE else config.get("format")
        if sparse != _DENSE or layout == _MARLIN:
            raise ValueError(
                f"expected a format without zeros left out, such as pack-quantized, got {layout!r}"
            )
        online = sorted(_transforms(config) - set(_IN_WEIGHTS))
        if online:
            raise ValueError(
                f"expected transforms of the weights ({', '.join(_IN_WEIGHTS)}), got "
                f"transform_config with {', '.join(online)}"
            )

    def stores(self, tensors: Mapping[str, str]) -> bool:
        """Return whether a layer has integers, or floats of few bits."""
        return "weight_packed" in tensors or tensors.get("weight") in ("I8", _FLOAT8)

    def restored(self, layer: Layer, tensors: Mapping[str, torch.Tensor]) -> torch.Tensor | None:
        """Return ``W[o, i] = w[o, i] * scale[o, i]`` of few bits, computed when it is used."""
        described = self._scheme(layer)["weights"]
        if described.get("type") != "float":
            return None
        return scaled_floats(tensors, described, layer.sizes)

    def read(self, layer: Layer, tensors: Mapping[str, torch.Tensor]) -> IntegerWeight:
        """Return the weight of a layer."""
        rows, columns = layer.sizes
        scheme = self._scheme(layer)
        weights = scheme["weights"]
        bits = weights.get("num_bits", 8)
        if weights.get("type", "int") != "int" or bits not in range(1, 9):
            raise ValueError(
                f"expected integers of 1 to 8 bits, or floats of 4 or 8, got {_kind(weights)}"
            )
        middle = 2 ** (bits - 1)
        if "weight_packed" in tensors:
            words = taken(tensors, "weight_packed")
            values = unpacked_whole(words.t().contiguous(), bits, rows) - middle
        else:
            values = taken(tensors, "weight").t()
            if values.dtype != torch.int8:
                raise ValueError(f"expected weight in int8, got {values.dtype}")
        check_shape("weight", values, rows, columns)
        scale = taken(tensors, "weight_scale")
        # A scale for all outputs, for each, or for each group of each.
        scale = scale.reshape(1, 1).expand(columns, 1) if scale.numel() == 1 else scale
        scale = scale.reshape(columns, -1)
        groups = scale.shape[1]
        size = group_size(rows, groups, weights.get("group_size"))
        offset = None
        zeros = tensors.get("weight_zero_point")
        if zeros is not None:
            if zeros.dtype == torch.int32:
                zeros = unpacked_whole(zeros, bits, columns) - middle
            zeros = zeros.reshape(1, 1) if zeros.numel() == 1 else zeros.reshape(columns, -1)
            offset = -zeros.float().expand(columns, groups).t()
        order = _order(tensors.get("weight_g_idx"), rows, size)
        if order is not None:
            values = values[order]
        activation, input_scale = self._activation(layer, scheme, tensors)
        return IntegerWeight.packed(
            values.to(torch.int8), bits, scale.t(), offset, size, order, activation, input_scale
        )

    @property
    def cache(self) -> str | None:
        """How config.json rounds keys and values of the cache, None if it does not."""
        scheme = self.config.get("kv_cache_scheme")
        return f"kv_cache_scheme of {_kind(scheme)}" if scheme else None

    def warnings(self) -> list[str]:
        """Return what was left out: of layers, and of groups for other modules, as attention."""
        others = [
            f"config_groups.{name} of config.json rounds activations of "
            f"{', '.join(group.get('targets') or ())}, but no weights: it is left out"
            for name, group in _groups(self.config).items()
            if not group.get("weights")
        ]
        return [*super().warnings(), *others]

    def _scheme(self, layer: Layer) -> Mapping[str, Any]:
        """Return the group of the configuration that a layer belongs to.

        One that targets the layer's name comes before those that target a regular expression, and
        they before those that target its class, each in alphabetical order; of several with one
        target the last.
        """
        groups = [group for group in _groups(self.config).values() if group.get("weights")]
        by_target: dict[str, Any] = {t: group for group in groups for t in group["targets"]}
        targets = sorted(by_target, key=lambda target: (target.startswith(_EXPRESSION), target))
        names = layer.name, layer.stored_name
        named = (target for target in targets if any(_is_named(n, target) for n in names))
        classes = (target for target in targets if target in layer.classes)
        target = next(named, None) or next(classes, None)
        if target is None:
            raise ValueError(
                f"expected a group in config_groups whose targets name the layer or its class, "
                f"{layer.classes[0]}, got {', '.join(targets) or 'none'}"
            )
        scheme: Mapping[str, Any] = by_target[target]
        if scheme.get("output_activations"):
            kind = _kind(scheme["output_activations"])
            self.leave_out(f"rounding outputs to {kind} (output_activations)", layer)
        return scheme

    def _activation(
        self, layer: Layer, scheme: Mapping[str, Any], tensors: Mapping[str, torch.Tensor]
    ) -> tuple[str, torch.Tensor | None]:
        """Return how a layer's input is rounded, and the scale if it is static."""
        inputs = scheme.get("input_activations")
        if not inputs:
            return FLOAT, None
        dynamic = inputs.get("dynamic", False)
        one_scale = inputs.get("strategy") in (None, "token" if dynamic else "tensor")
        if _kind(inputs) != "int8" or not one_scale:
            how = f" with a scale for each {inputs['strategy']}" if inputs.get("strategy") else ""
            self.leave_out(f"rounding inputs to {_kind(inputs)}{how}", layer)
            return FLOAT, None
        if dynamic:
            return DYNAMIC, None
        scale = taken(tensors, "input_scale")
        check_shape("input_scale", scale.reshape(-1), 1)
        return STATIC, scale.reshape(1).float()


def _groups(config: Mapping[str, Any]) -> Mapping[str, Mapping[str, Any]]:
    groups: Mapping[str, Any] = config.get("config_groups") or {}
    for name, group in groups.items():
        if not isinstance(group, Mapping) or not group.get("targets"):
            raise ValueError(f"expected config_groups.{name} with targets, got {group}")
    return groups


def _is_named(name: str, target: str) -> bool:
    if target.startswith(_EXPRESSION):
        return re.match(target.removeprefix(_EXPRESSION), name) is not None
    return target == name


def _kind(described: Mapping[str, Any]) -> str:
    """Return what values are rounded to, such as int8, asymmetric int8 or float8."""
    symmetric = "" if described.get("symmetric", True) else "asymmetric "
    return f"{symmetric}{described.get('type', 'int')}{described.get('num_bits', 8)}"


def _transforms(config: Mapping[str, Any]) -> set[str]:
    """Return where rotations of the model are applied."""
    schemes = ((config.get("transform_config") or {}).get("config_groups") or {}).values()
    return {str(part.get("location")) for scheme in schemes for part in scheme.get("apply") or ()}


def _order(of_row: torch.Tensor | None, rows: int, size: int) -> torch.Tensor | None:
    """Return the input features sorted by their group; None if they are."""
    in_order = torch.arange(rows) // size
    if of_row is None or torch.equal(of_row.long(), in_order) or bool((of_row == -1).all()):
        return None
    check_shape("weight_g_idx", of_row, rows)
    order = torch.argsort(of_row.long(), stable=True)
    if not torch.equal(of_row.long()[order], in_order):
        raise ValueError(f"expected weight_g_idx with {size} rows in each group")
    return order
