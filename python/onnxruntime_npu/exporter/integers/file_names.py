"""Where a checkpoint's layers are in the model: transformers renames some, and merges experts."""

from __future__ import annotations

from typing import Any, NamedTuple

from transformers import conversion_mapping, core_model_loading


class Place(NamedTuple):
    """A module, and of experts the weight and which of the layers side by side in it."""

    module: str
    parameter: str | None = None
    part: int = 0
    parts: int = 1


class FileNames:
    """Finds the places of layers by the names that a file has for them."""

    def __init__(self, model: Any) -> None:
        mapping = conversion_mapping.get_model_conversion_mapping(model)
        loading: Any = core_model_loading
        self._converters = [each for each in mapping if isinstance(each, loading.WeightConverter)]
        self._renamings = [each for each in mapping if isinstance(each, loading.WeightRenaming)]
        self._prefix, self._names = model.base_model_prefix, model.state_dict()

    def place_of(self, layer: str) -> Place:
        """Return the place of a layer; ValueError if its weight is arranged in another way."""
        own = f"{layer}.weight"
        name, pattern = core_model_loading.rename_source_key(
            own, self._renamings, self._converters, self._prefix, self._names
        )
        if pattern is None or name not in self._names:
            return Place((own if own in self._names else name).removesuffix(".weight"))
        converter = next(each for each in self._converters if pattern in each.source_patterns)
        steps = [type(step).__name__ for step in converter.operations]
        if steps not in (["MergeModulelist"], ["MergeModulelist", "Concatenate"]):
            raise ValueError(
                f"expected quantised layers as the model has them or experts of their own, got "
                f"{layer}, which transformers arranges by {', '.join(steps)}"
            )
        module, _, parameter = name.rpartition(".")
        sources = converter.source_patterns
        return Place(module, parameter, sources.index(pattern), len(sources))

    def expert_of(self, layer: str) -> Place | None:
        """Return the place of a layer of one of the experts; None for others."""
        try:
            place = self.place_of(layer)
        except ValueError:
            return None
        return None if place.parameter is None else place
