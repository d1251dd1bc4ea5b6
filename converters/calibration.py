"""What the layers see when the model runs on example inputs, for scales and for rounding."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from onnxruntime_npu.progress import bar

from .compensated_rounding import RoundsWhenCalled


@torch.no_grad()
def largest_inputs(
    model: torch.nn.Module, layers: Mapping[str, torch.nn.Module], batches: Iterable[Any]
) -> dict[str, float]:
    """Run the model on the batches and return the largest magnitude of each layer's input."""
    largest: dict[str, float] = {}

    def watch(name: str) -> Any:
        def hook(module: torch.nn.Module, inputs: tuple[torch.Tensor, ...]) -> None:
            if inputs[0].numel():
                seen = float(inputs[0].detach().abs().amax())
                largest[name] = max(largest.get(name, 0.0), seen)

        return hook

    handles = [layer.register_forward_pre_hook(watch(name)) for name, layer in layers.items()]
    training = model.training
    model.eval()
    try:
        for batch in bar("Calibrating", "batch", iterable=batches):
            _run(model, batch)
    finally:
        model.train(training)
        for handle in handles:
            handle.remove()
    missing = [name for name in layers if name not in largest]
    if missing:
        raise ValueError(
            f"[quantize_weights] expected calibration inputs that reach every layer, got none for "
            f"{', '.join(missing[:3])}{' and others' if len(missing) > 3 else ''}; leave such "
            f"layers out with skip=, or use w8a8_dynamic"
        )
    return largest


@torch.no_grad()
def rounded_for_inputs(
    model: torch.nn.Module,
    layers: dict[str, torch.nn.Linear],
    rounded: Callable[[torch.nn.Linear, torch.Tensor], torch.nn.Module],
    batches: Iterable[Any],
) -> dict[str, torch.nn.Module]:
    """Run the model on one batch; return what ``rounded(layer, moments)`` makes of each layer.

    Layers that the batch does not reach are left out.
    """
    given = list(itertools.islice(batches, 2))
    if len(given) != 1:
        raise ValueError(
            f"[quantize_weights] expected one batch of calibration inputs for w4a16, got "
            f"{'more: join them' if given else 'none'}"
        )
    progress = bar("Rounding for the inputs", "layer", total=len(layers))

    def round_one(layer: torch.nn.Linear, moments: torch.Tensor) -> torch.nn.Module:
        progress.update()
        return rounded(layer, moments)

    hooks = RoundsWhenCalled(layers, round_one)
    training = model.training
    model.eval()
    try:
        _run(model, given[0])
    finally:
        progress.close()
        model.train(training)
        hooks.remove()
    return hooks.results


def _run(model: torch.nn.Module, batch: Any) -> None:
    if isinstance(batch, Mapping):
        model(**batch)
    elif isinstance(batch, tuple):
        model(*batch)
    elif isinstance(batch, torch.Tensor):
        model(batch)
    else:
        raise TypeError(
            f"[quantize_weights] expected calibration batches of token ids, tuples or mappings of "
            f"the model's arguments, got {type(batch).__name__}; pass text through the tokenizer"
        )
