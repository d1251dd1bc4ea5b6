"""compressed-tensors: integers of llm-compressor, with or without quantised activations.

Formats ``pack-quantized`` (``weight_packed`` int32 [out, in * bits / 32]), ``int-quantized`` and
``naive-quantized`` (``weight`` int8 [out, in]); ``weight_scale`` [out, groups], [out, 1] or [1].
Format ``float-quantized`` (``weight`` float8 [out, in]) is restored as floats, also with a scale
for each block of outputs and inputs.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import torch

from ..weights.lazy_weight import LazyWeight
from .bits import unpacked
from .format import Format, check_shape, group_size, taken
from .integer_weight import DYNAMIC, FLOAT, STATIC, IntegerWeight

_LAYER = "Linear"
_EXPRESSION = "re:"
_IN_WEIGHTS = ("weight_input", "weight_output")
_FLOAT8 = "F8_E4M3"


class CompressedTensors(Format):
    """``W[o, i] = (q[o, i] - zero[o, g]) * scale[o, g]`` with i in group g."""

    method = "compressed-tensors"

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__(config)
        online = sorted(_transforms(config) - set(_IN_WEIGHTS))
        if online:
            raise ValueError(
                f"expected transforms of the weights ({', '.join(_IN_WEIGHTS)}), got "
                f"transform_config with {', '.join(online)}"
            )

    def stores(self, tensors: Mapping[str, str]) -> bool:
        """Return whether a layer has integers, or floats of 8 bits."""
        return "weight_packed" in tensors or tensors.get("weight") in ("I8", _FLOAT8)

    def restored(
        self, name: str, tensors: Mapping[str, torch.Tensor], sizes: tuple[int, int]
    ) -> torch.Tensor | None:
        """Return ``W[o, i] = w[o, i] * scale[o, i]`` of floats of 8 bits, computed when used."""
        weight = tensors.get("weight")
        if weight is None or weight.dtype != torch.float8_e4m3fn:
            return None
        rows, columns = sizes
        check_shape("weight", weight, columns, rows)
        described = self._scheme(name).get("weights") or {}
        scale = taken(tensors, "weight_scale").float()
        if described.get("strategy") == "block":
            high, wide = described["block_structure"]
        else:
            scale = scale.reshape(1, 1) if scale.numel() == 1 else scale.reshape(columns, -1)
            high = columns if scale.numel() == 1 else 1
            wide = group_size(rows, scale.shape[1], described.get("group_size"))
        check_shape("weight_scale", scale, -(-columns // high), -(-rows // wide))

        def product() -> torch.Tensor:
            spread = scale.repeat_interleave(wide, 1)[:, :rows].repeat_interleave(high, 0)
            return weight.float() * spread[:columns]

        return LazyWeight.computed(product, (columns, rows), torch.float32)

    def read(
        self, name: str, tensors: Mapping[str, torch.Tensor], sizes: tuple[int, int]
    ) -> IntegerWeight:
        """Return the weight of a layer."""
        rows, columns = sizes
        scheme = self._scheme(name)
        weights = scheme.get("weights") or {}
        bits = weights.get("num_bits")
        if weights.get("type", "int") != "int" or bits not in (2, 3, 4, 8):
            raise ValueError(
                f"expected integers of 2, 3, 4 or 8 bits, got {weights.get('type')} of {bits}"
            )
        middle = 2 ** (bits - 1)
        if "weight_packed" in tensors:
            words = taken(tensors, "weight_packed")
            values = unpacked(words.t().contiguous(), bits, rows) - middle
        else:
            values = taken(tensors, "weight").t()
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
                zeros = unpacked(zeros, bits, columns) - middle
            zeros = zeros.reshape(1, 1) if zeros.numel() == 1 else zeros.reshape(columns, -1)
            offset = -zeros.float().expand(columns, groups).t()
        order = _order(tensors.get("weight_g_idx"), rows, size)
        if order is not None:
            values = values[order]
        activation, input_scale = _activation(scheme, tensors)
        return IntegerWeight.packed(
            values.to(torch.int8), bits, scale.t(), offset, size, order, activation, input_scale
        )

    def _scheme(self, name: str) -> Mapping[str, Any]:
        """Return the group of the configuration that a layer belongs to.

        One that targets the layer's name comes before those that target a regular expression, and
        they before those that target all linear layers; of several with one target the last.
        """
        groups: Mapping[str, Any] = self.config.get("config_groups") or {}
        by_target = {t: group for group in groups.values() for t in group.get("targets") or ()}
        expressions = (target for target in sorted(by_target) if target.startswith(_EXPRESSION))
        found = (t for t in expressions if re.match(t.removeprefix(_EXPRESSION), name))
        target = name if name in by_target else next(found, _LAYER)
        if target not in by_target:
            raise ValueError("expected a group in config_groups for the layer, got none")
        scheme: Mapping[str, Any] = by_target[target]
        return scheme


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


def _activation(
    scheme: Mapping[str, Any], tensors: Mapping[str, torch.Tensor]
) -> tuple[str, torch.Tensor | None]:
    """Return how a layer's input is rounded, and the scale if it is static."""
    inputs = scheme.get("input_activations")
    if inputs is None:
        return FLOAT, None
    kind = (inputs.get("type", "int"), inputs.get("num_bits"), inputs.get("symmetric", True))
    if kind != ("int", 8, True):
        raise ValueError(f"expected symmetric int8 activations, got {dict(inputs)}")
    if inputs.get("dynamic"):
        if inputs.get("strategy", "token") != "token":
            raise ValueError(f"expected a scale for each token, got {inputs.get('strategy')!r}")
        return DYNAMIC, None
    scale = taken(tensors, "input_scale")
    check_shape("input_scale", scale.reshape(-1), 1)
    return STATIC, scale.reshape(1).float()
