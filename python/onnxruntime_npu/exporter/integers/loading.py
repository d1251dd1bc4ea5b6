"""Makes transformers load a quantised checkpoint's integers, without the packages it asks for.

transformers knows these formats, but has kernels for them in packages for other devices only.
"""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import torch
from safetensors import safe_open
from torch import nn
from transformers.pytorch_utils import Conv1D
from transformers.quantizers import auto
from transformers.quantizers.base import HfQuantizer
from transformers.utils.quantization_config import QuantizationConfigMixin

from ...subclasses import subclasses_in
from ..quiet_transformers import quiet_transformers
from ..roles.linear import sizes_of
from .file_names import FileNames
from .format import FLOATS_OF_FEW_BITS, Format, Layer
from .integer_weight import IntegerWeight
from .pending_experts import PendingExperts
from .stored_linear import StoredLinear, float_linear


def formats() -> dict[str, type[Format]]:
    """Return the formats of this folder's files by their ``quant_method``."""
    classes = subclasses_in(__package__, Format)
    return {name: each for each in classes for name in (each.method, *each.aliases)}


@dataclass
class Loaded:
    """What became of a quantised checkpoint, when its model is loaded.

    Attributes:
        left: the role of each quantised module that is taken as floats, and why.
        cache: how config.json rounds keys and values of the cache, or None.
        warnings: what else was left out, a line each.

    """

    left: dict[str, tuple[str, str]] = field(default_factory=dict)
    cache: str | None = None
    warnings: list[str] = field(default_factory=list)


@contextlib.contextmanager
def loaded_as_integers(method: str) -> Iterator[Loaded]:
    """Let transformers load checkpoints of a method into StoredLinear, if it is one of these.

    Experts get a StoredExperts as ``stored``.
    """
    known = formats()
    result = Loaded()
    if method not in known:
        yield result
        return

    class Quantizer(_Quantizer):
        format = known[method]
        loaded = result

    with (
        mock.patch.dict(auto.AUTO_QUANTIZATION_CONFIG_MAPPING, {method: _Config}),
        mock.patch.dict(auto.AUTO_QUANTIZER_MAPPING, {method: Quantizer}),
    ):
        yield result


def is_left_out(config: dict[str, Any]) -> bool:
    """Return whether transformers loads a model as if this ``quantization_config`` were not there.

    So it does with methods that it does not know; those of this folder's files it gets to know.
    """
    if config.get("quant_method") in formats():
        return False
    try:
        with quiet_transformers():
            return not auto.AutoHfQuantizer.supports_quant_method(config)
    except (TypeError, ValueError):  # no method that could be one: loading the model says so
        return False


class _Config(QuantizationConfigMixin):
    """``quantization_config`` of config.json, unchanged."""

    # What is loaded is torch's model again, as far as transformers is concerned.
    dequantize = True

    def __init__(self, **values: Any) -> None:
        self.quant_method = values["quant_method"]
        self.values = values


class _Pending(nn.Module):
    """The tensors of a layer as the file has them, to be loaded."""

    bias: nn.Parameter | None

    def __init__(
        self,
        name: str,
        stored_name: str,
        layer: nn.Linear | Conv1D,
        tensors: Mapping[str, tuple[Any, str]],
    ) -> None:
        super().__init__()
        classes = tuple(kind.__name__ for kind in type(layer).__mro__)
        self.layer = Layer(name, stored_name, sizes_of(layer), classes)
        bias = layer.bias
        if bias is None and "bias" in tensors:
            # GPTQ's tools give one to every layer, mostly of zeros.
            bias = nn.Parameter(torch.empty(self.layer.sizes[1], device="meta"))
        self.has_bias = layer.bias is not None
        self.register_parameter("bias", bias)
        self.names = [name for name in tensors if name != "bias"]
        for name in self.names:
            shape, dtype = tensors[name]
            self.register_buffer(name, torch.empty(shape, dtype=_DTYPES[dtype], device="meta"))
        if "weight" not in tensors:
            # GPT-2 initialises the weights of layers that it finds by name, but for loaded ones.
            self.weight = torch.empty(0)
            self.weight._is_hf_initialized = True  # type: ignore[attr-defined]


# Of safetensors; floats are loaded as float32, but for those of 8 bits, which have a scale.
_DTYPES = {
    "F8_E4M3": torch.float8_e4m3fn,
    "I8": torch.int8,
    "U8": torch.uint8,
    "I32": torch.int32,
    "I64": torch.int64,
    "F16": torch.float32,
    "BF16": torch.float32,
    "F32": torch.float32,
}
_FLOATS = ("F16", "BF16", "F32", "F64")


class _Quantizer(HfQuantizer):
    """Puts a place for the file's tensors where the model has linear layers and experts."""

    format: type[Format]
    loaded: Loaded

    def _process_model_before_weight_loading(
        self, model: Any, *, checkpoint_files: Sequence[str] = (), **_options: Any
    ) -> None:
        config: Any = self.quantization_config
        self._reader = self.format(config.values)
        self._files = checkpoint_files
        layers = _headers(checkpoint_files)
        stored = {
            name: tensors
            for name, tensors in layers.items()
            if self._reader.stores({key: dtype for key, (_, dtype) in tensors.items()})
        }
        _check_floats({name: layers[name] for name in layers.keys() - stored.keys()})
        names = FileNames(model)
        for name, tensors in stored.items():
            unknown = sorted({dtype for _, dtype in tensors.values()} - set(_DTYPES))
            if unknown:
                raise ValueError(
                    f"{name}: expected tensors of {', '.join(_DTYPES)}, got {', '.join(unknown)}"
                )
            place = names.place_of(name)
            layer = _submodule(model, place.module)
            if place.parameter is not None:
                pending = PendingExperts.of(layer, place)
                model.set_submodule(place.module, pending)
                pending.add(place, name)
            elif isinstance(layer, (nn.Linear, Conv1D)):  # both are stored the same way
                model.set_submodule(place.module, _Pending(place.module, name, layer, tensors))
                # A head with integers of its own is not the embedding, whatever config.json says.
                model.all_tied_weights_keys.pop(f"{place.module}.weight", None)
            else:
                raise ValueError(
                    f"expected quantised linear layers and experts, got {name}, which is "
                    f"{'not in the model' if layer is None else type(layer).__name__}"
                )

        for name in layers.keys() - stored.keys():
            if "weight" in layers[name] and (found := names.expert_of(name)) is not None:
                experts = _submodule(model, found.module)
                if isinstance(experts, PendingExperts):
                    experts.add(found, name, floats=True)

    def _process_model_after_weight_loading(self, model: Any, **_options: Any) -> None:
        with _opened(self._files) as tensors_of:
            for name, pending in list(model.named_modules()):
                if isinstance(pending, PendingExperts):
                    experts, why = pending.filled(self._reader, tensors_of)
                    model.set_submodule(name, experts)
                    if why is not None:
                        self.loaded.left[name] = "experts", why
                elif isinstance(pending, _Pending):
                    tensors = {key: getattr(pending, key) for key in pending.names}
                    model.set_submodule(name, self._layer(pending, tensors))
        self.loaded.cache, self.loaded.warnings = self._reader.cache, self._reader.warnings()

    def _layer(self, pending: _Pending, tensors: Mapping[str, torch.Tensor]) -> nn.Module:
        """Return the layer that computes with the tensors of the file."""
        bias = None if pending.bias is None else pending.bias.detach()
        if bias is not None and not pending.has_bias and not bias.any():
            bias = None
        weight = self._reader.weight(pending.layer, tensors)
        if isinstance(weight, IntegerWeight):
            return StoredLinear(weight, bias)
        self.loaded.left[pending.layer.name] = "linear", FLOATS_OF_FEW_BITS
        return float_linear(weight, bias)

    def is_serializable(self) -> bool:
        return False

    @property
    def is_trainable(self) -> bool:
        return False


def _check_floats(layers: Mapping[str, Mapping[str, tuple[Any, str]]]) -> None:
    """Refuse weights that a format does not restore: without their scale they are others."""
    for name, tensors in sorted(layers.items()):
        _, dtype = tensors.get("weight", (None, "F32"))
        if dtype not in _FLOATS:
            raise ValueError(f"{name}: expected a weight in floats of 16 bits or more, got {dtype}")


def _submodule(model: nn.Module, name: str) -> nn.Module | None:
    try:
        return model.get_submodule(name)
    except AttributeError:
        return None


def _headers(files: Sequence[str]) -> dict[str, dict[str, tuple[Any, str]]]:
    """Return shape and dtype of the tensors of each layer, by the last part of their names."""
    layers: dict[str, dict[str, tuple[Any, str]]] = defaultdict(dict)
    for path in files:
        with safe_open(path, "pt") as file:
            for key in file.keys():  # noqa: SIM118 - it is no mapping
                layer, _, name = key.rpartition(".")
                tensor = file.get_slice(key)
                layers[layer][name] = (tensor.get_shape(), tensor.get_dtype())
    return layers


@contextlib.contextmanager
def _opened(files: Sequence[str]) -> Iterator[Callable[[str], dict[str, torch.Tensor]]]:
    """Yield a function that reads the tensors of a layer, by the last part of their names."""
    with contextlib.ExitStack() as opened:
        places: dict[str, dict[str, Any]] = defaultdict(dict)
        for path in files:
            file = opened.enter_context(safe_open(path, "pt"))
            for key in file.keys():  # noqa: SIM118 - it is no mapping
                layer, _, name = key.rpartition(".")
                places[layer][name] = file

        def read(layer: str) -> dict[str, torch.Tensor]:
            tensors = {
                name: file.get_tensor(f"{layer}.{name}") for name, file in places[layer].items()
            }
            return {
                k: t.float() if t.is_floating_point() and t.itemsize > 1 else t
                for k, t in tensors.items()
            }

        yield read
