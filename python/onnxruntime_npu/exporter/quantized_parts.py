"""Quantised weights of encoders and of models in several files, rounded after the proofs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from transformers.pytorch_utils import Conv1D

from ..errors import ArgumentError, ExportError
from .module_replacement import Probe, contributing_calls
from .proof import Findings
from .quantization import NONE, check_scheme, fits, keeps_exact
from .roles.linear import replace_by_torch

_ROUNDING = "npu_dynamic_quant"


def schemes() -> tuple[str, ...]:
    """Return the names of the choices: those that need no calibration."""
    from ..converters import SCHEMES

    return (NONE, *(name for name, each in SCHEMES.items() if each.activation != "static"))


def check_quant(name: str, dtype: torch.dtype) -> None:
    """Refuse a scheme that does not exist, or does not take the dtype."""
    if name not in schemes():
        raise ArgumentError(f"expected quant to be one of {', '.join(schemes())}, got {name!r}")
    check_scheme(name, dtype, None)


@dataclass
class UsedLinears:
    """The linear layers that the outputs of one file depend on, before any was replaced."""

    inputs: dict[str, list[int]]  # by name, the number of the tensor that each call takes
    all_names: set[str]  # also of those that other files use, or none
    findings: Findings  # of the file

    def calls(self, name: str) -> int:
        """Return how often a layer is called."""
        return max(map(len, self._replaced_by(name)), default=0)

    def inputs_of(self, name: str) -> set[int]:
        """Return what a layer's calls may take."""
        return {number for numbers in self._replaced_by(name) for number in numbers}

    def _replaced_by(self, name: str) -> list[list[int]]:
        """Return the inputs of the layers that one replaced: it joins some in their place."""
        if name in self.all_names:
            return [self.inputs.get(name, [])]
        place = name.rpartition(".")[0]
        return [n for used, n in self.inputs.items() if used.rpartition(".")[0] == place]


def used_linears(model: nn.Module, probe: Probe, findings: Findings) -> UsedLinears:
    """Return the linear layers that the outputs of ``probe(model)`` depend on."""
    layers: dict[nn.Module, str] = {
        module: name
        for name, module in model.named_modules()
        if isinstance(module, (nn.Linear, Conv1D))
    }
    taken: dict[str, list[torch.Tensor]] = {name: [] for name in layers.values()}

    def take(module: nn.Module, arguments: tuple[torch.Tensor, ...]) -> None:
        taken[layers[module]].append(arguments[0])

    hooks = [module.register_forward_pre_hook(take) for module in layers]
    try:
        calls = contributing_calls(model, list(layers), probe)
    finally:
        for hook in hooks:
            hook.remove()
    used = {layers[module] for module in calls}
    numbers = {name: [id(tensor) for tensor in taken[name]] for name in used}
    return UsedLinears(numbers, set(layers.values()), findings)


def quantize_parts(model: Any, scheme: str, used: Sequence[UsedLinears]) -> None:
    """Quantise the linear layers and experts that the files use, in place; add to the findings.

    The head, and layers that a scheme cannot take, stay floats; the latter are listed.
    """
    from ..converters import quantize_weights
    from ..converters.quantized_experts import QuantizedExperts, is_experts

    whole = nn.ModuleDict({"model": model})  # whose layers' names are no endings of others'
    replace_by_torch(whole)
    chosen: dict[str, list[UsedLinears]] = {}
    skip = []
    for name, module in whole.named_modules():
        if is_experts(module):
            part = f"{_in_model(name)}."
            chosen[name] = [f for f in used if any(n.startswith(part) for n in f.inputs)]
        elif isinstance(module, nn.Linear):
            chosen[name] = _files_of(model, name, module, scheme, used)
            if not chosen[name]:
                skip.append(name)
    try:
        quantize_weights(whole, scheme, skip=skip)
    except ValueError as error:
        raise ExportError(str(error)) from error
    for file in used:
        rounded: set[int] = set()  # layers that take one tensor share its rounding
        for name, files in chosen.items():
            if file not in files:
                continue
            rounded_layer: Any = whole.get_submodule(name)
            for op, count in rounded_layer.operators.items():
                if isinstance(rounded_layer, QuantizedExperts):
                    file.findings.quantized(op, count)
                elif op == _ROUNDING:
                    rounded |= file.inputs_of(_in_model(name))
                else:
                    file.findings.quantized(op, count * file.calls(_in_model(name)))
        if rounded:
            file.findings.quantized(_ROUNDING, len(rounded))


def _files_of(
    model: Any, name: str, module: nn.Linear, scheme: str, used: Sequence[UsedLinears]
) -> list[UsedLinears]:
    """Return the files in which a layer is quantised; none if it stays floats."""
    name = _in_model(name)
    files = [file for file in used if file.calls(name)]
    embeddings = getattr(model, "get_output_embeddings", lambda: None)()
    if not files or module.weight is getattr(embeddings, "weight", None):
        return []
    why = None
    if keeps_exact(model, name):
        why = "the model keeps it more exact than others"
    elif not fits(module, scheme):
        why = f"{module.in_features} x {module.out_features} does not fit {scheme}"
    if why is None:
        return files
    for file in files:
        file.findings.keep(name, "linear", f"not quantised: {why}")
    return []


def _in_model(name: str) -> str:
    return name.partition(".")[2]
