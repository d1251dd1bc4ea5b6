"""What every format of quantised checkpoints has to say about itself."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from .integer_weight import IntegerWeight

_BITS = range(2, 9)
FLOATS_OF_FEW_BITS = "the file has floats of 8 bits or fewer"


@dataclass(frozen=True)
class Layer:
    """What a format may go by to find what config.json says of a layer.

    Attributes:
        name: in the model; of one of several experts that the model has as one, in the file.
        stored_name: in the file, which is that of another version of transformers.
        sizes: in_features and out_features.
        classes: names of the class of the layer and of what it is derived from.

    """

    name: str
    stored_name: str
    sizes: tuple[int, int]
    classes: tuple[str, ...] = ("Linear", "Module")


class Format(ABC):
    """One ``quant_method`` of config.json: how a linear layer's tensors make up its weight."""

    method: ClassVar[str]
    aliases: ClassVar[tuple[str, ...]] = ()

    def __init__(self, config: Mapping[str, Any]) -> None:
        """Take ``quantization_config`` of config.json; ValueError for what is not supported."""
        self.config = config
        self._left_out: dict[str, dict[str, None]] = defaultdict(dict)

    @property
    def cache(self) -> str | None:
        """How config.json rounds keys and values of the cache, None if it does not."""
        return None

    def leave_out(self, what: str, layer: Layer) -> None:
        """Note that something is not done for a layer, for a line of the report."""
        self._left_out[what][layer.name] = None

    def warnings(self) -> list[str]:
        """Return what was left out, a line each, once all layers are read."""
        return [
            f"{what}: left out for {len(names)} layers, such as {next(iter(names))}"
            for what, names in self._left_out.items()
        ]

    def stores(self, tensors: Mapping[str, str]) -> bool:
        """Return whether a layer's tensors, dtype by name, are a quantised weight."""
        return "qweight" in tensors

    def restored(self, _layer: Layer, _tensors: Mapping[str, torch.Tensor]) -> torch.Tensor | None:
        """Return the weight [out, in] of a layer of scaled floats, None if it has integers.

        Arguments and errors are those of ``read``.
        """
        return None

    def weight(
        self, layer: Layer, tensors: Mapping[str, torch.Tensor]
    ) -> IntegerWeight | torch.Tensor:
        """Return what ``restored`` or ``read`` returns; errors name the layer.

        Floats that are not finite are refused, too: these tensors are no parameters of the model.
        """
        for key, value in tensors.items():
            if value.is_floating_point() and not bool(value.float().isfinite().all()):
                raise ValueError(f"{layer.name}: expected finite {key}, got some that are not")
        try:
            floats = self.restored(layer, tensors)
            return self.read(layer, tensors) if floats is None else floats
        except (ValueError, IndexError) as error:
            raise ValueError(f"{layer.name}: {error}") from error

    @abstractmethod
    def read(self, layer: Layer, tensors: Mapping[str, torch.Tensor]) -> IntegerWeight:
        """Return the weight of a layer.

        Args:
            layer: of the model.
            tensors: by the last part of their names; floats are float32.

        Raises:
            ValueError: tensors are missing, or their shapes or values do not fit.

        """


def taken(tensors: Mapping[str, torch.Tensor], name: str) -> torch.Tensor:
    """Return a tensor that a layer must have."""
    if name not in tensors:
        raise ValueError(f"expected a tensor {name}, got {', '.join(sorted(tensors))}")
    return tensors[name]


def group_size(rows: int, groups: int, declared: Any) -> int:
    """Return how many of ``rows`` input features share a scale, if there are ``groups`` of them.

    ``declared``: the size that the checkpoint gives, which comes first: where the last group is
    smaller, as many groups may divide the features evenly, too (64 and 32 of 96). Some layers have
    others than the configuration, such as one group.
    """
    if isinstance(declared, int) and declared > 0 and -(-rows // declared) == groups:
        return declared
    if groups >= 1 and rows % groups == 0:
        return rows // groups
    raise ValueError(f"expected groups of {declared} for {rows} input features, got {groups}")


def check_shape(name: str, tensor: torch.Tensor, *shape: int) -> None:
    """Refuse a tensor of another shape."""
    if tuple(tensor.shape) != shape:
        raise ValueError(f"expected {name} of shape {list(shape)}, got {list(tensor.shape)}")


def bits_of(name: str, words: int, size: int, declared: Any) -> int:
    """Return how many bits each of ``size`` integers has in so many words of 32 bits.

    ``declared``: those that the checkpoint gives, which come first: a few integers may be as many
    words with others. Some layers have others than the configuration.
    """
    first = [declared] if declared in _BITS else []
    for bits in (*first, *_BITS):
        if size > 0 and -(-size * bits // 32) == words:
            return bits
    raise ValueError(f"expected {name} with 2 to 8 bits for {size} integers, got {words} words")
