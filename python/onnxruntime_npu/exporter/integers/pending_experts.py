"""Experts of a model that is being loaded, which a checkpoint has as quantised layers of each."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import nn
from transformers.core_model_loading import dot_natural_key

from ...converters.quantized_experts import first_name, is_experts
from ..weights.lazy_weight import LazyWeight, value_of
from .file_names import Place
from .format import FLOATS_OF_FEW_BITS, Format, Layer, check_shape
from .integer_weight import IntegerWeight, side_by_side, stored_alike
from .stored_experts import StoredExperts, floats_of_experts, stacked

# Floats [out, in] where the file has floats with scales.
_Weight = IntegerWeight | torch.Tensor


class PendingExperts(nn.Module):
    """Takes the place of experts while transformers loads the model, and knows their layers."""

    def __init__(self, experts: nn.Module) -> None:
        super().__init__()
        self._experts = [experts]  # no submodule: its weights are not loaded as they are
        self._layers: dict[str, list[list[str]]] = {}  # by weight and part, of all experts
        self._floats: set[str] = set()  # those of them that are not quantised

    @staticmethod
    def of(module: Any, place: Place) -> PendingExperts:
        """Return what takes the place of experts, or has done so; ValueError for other modules."""
        if isinstance(module, PendingExperts):
            return module
        names = {first_name(module), "down_proj"}
        others = sorted({name for name, _ in module.named_parameters()} - names)
        if not is_experts(module) or others or getattr(module, "is_transposed", False):
            raise ValueError(
                f"expected quantised experts with weights alone, got {place.module} "
                f"({type(module).__name__}){f' with {others[0]}' if others else ''}"
            )
        return PendingExperts(module)

    def add(self, place: Place, layer: str, *, floats: bool = False) -> None:
        """Take a layer of the file, quantised or of floats, for one of the experts."""
        if floats:
            self._floats.add(layer)
        assert place.parameter is not None
        parts = self._layers.setdefault(place.parameter, [[] for _ in range(place.parts)])
        parts[place.part].append(layer)

    def filled(
        self, reader: Format, tensors_of: Callable[[str], Mapping[str, torch.Tensor]]
    ) -> tuple[nn.Module, str | None]:
        """Return the experts with the weights of the file, and why these are only floats, if so.

        Raises ValueError if the file has not the layers of all experts.
        """
        (experts,) = self._experts
        found: dict[str, IntegerWeight | None] = {}
        why = "the experts of a layer are stored differently"
        for name in (first_name(experts), "down_proj"):
            shape = experts.get_parameter(name).shape
            weights = self._weights(name, shape, reader, tensors_of)
            integers = _integers(weights)
            if integers is None:
                some = any(layer in self._floats for part in self._layers[name] for layer in part)
                why = "the file has floats of some of them" if some else FLOATS_OF_FEW_BITS
            one = found[name] = None if integers is None else _as_one(integers)
            floats = partial(_floats, weights if one is None else one)
            lazy = LazyWeight.computed(floats, shape, torch.float32)
            setattr(experts, name, nn.Parameter(lazy, requires_grad=False))
        up, down = found.values()
        module: Any = experts
        module.stored = None if up is None or down is None else StoredExperts(up, down)
        return experts, None if module.stored else why

    def _weights(
        self,
        name: str,
        shape: torch.Size,
        reader: Format,
        tensors_of: Callable[[str], Mapping[str, torch.Tensor]],
    ) -> list[list[_Weight]]:
        """Return the weights of each expert's layers of one name."""
        count, columns, rows = shape
        parts = self._layers.get(name, [])
        for layers in parts or [[]]:
            if len(layers) != count:
                some = layers[0] if layers else name
                raise ValueError(
                    f"expected quantised layers of {count} experts, got {len(layers)} such as "
                    f"{some}"
                )
        every = zip(*(sorted(layers, key=dot_natural_key) for layers in parts), strict=True)
        sizes = rows, columns // len(parts)

        def weight(layer: str) -> _Weight:
            tensors = tensors_of(layer)
            if "bias" in tensors and tensors["bias"].any():
                raise ValueError(f"{layer}: expected experts without bias, got one that is not 0")
            if layer in self._floats:
                check_shape(f"{layer}.weight", tensors["weight"], columns // len(parts), rows)
                return tensors["weight"]
            return reader.weight(Layer(layer, layer, sizes), tensors)

        return [[weight(layer) for layer in layers] for layers in every]


def _integers(weights: list[list[_Weight]]) -> list[list[IntegerWeight]] | None:
    """Return weights if all are integers."""
    found = [[w for w in layers if isinstance(w, IntegerWeight)] for layers in weights]
    same = sum(map(len, found)) == sum(map(len, weights))
    return found if same else None


def _as_one(weights: list[list[IntegerWeight]]) -> IntegerWeight | None:
    """Return the weights of all experts as one, or None if they are stored differently."""
    if not all(stored_alike(layers[0], other) for layers in weights for other in layers):
        return None
    joined = [side_by_side(layers) for layers in weights]
    kinds = defaultdict(list)
    for weight in joined:
        scale = weight.input_scale
        step = None if scale is None else float(scale)
        kinds[weight.layout, weight.scale.shape, weight.group_size, step].append(weight)
    return stacked(joined) if len(kinds) == 1 else None


def _floats(weights: IntegerWeight | Sequence[Sequence[_Weight]]) -> torch.Tensor:
    if isinstance(weights, IntegerWeight):
        return floats_of_experts(weights)
    return torch.stack([torch.cat([_restored(w) for w in layers]) for layers in weights])


def _restored(weight: _Weight) -> torch.Tensor:
    return weight.floats() if isinstance(weight, IntegerWeight) else value_of(weight)
