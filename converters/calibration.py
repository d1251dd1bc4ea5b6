"""What the layers see when the model runs on example inputs, for scales and for rounding."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from onnxruntime_npu.progress import bar
from torch.utils.weak import WeakTensorKeyDictionary

from .compensated_rounding import RoundsWhenCalled
from .input_scales import SeenInputs
from .layer_forward import computed_by, in_float32, without_products

_ROWS, _ROWS_OF_BATCH = 384, 128  # of each input that are kept, from the first batches on
_EXTREME = 8  # of these, rows that are kept for their largest values


def seen_inputs(
    model: torch.nn.Module, layers: Mapping[str, torch.nn.Linear], batches: Iterable[Any]
) -> dict[tuple[str, ...], SeenInputs]:
    """Run the model on the batches; return what was seen of the inputs of the layers.

    Layers that took one and the same tensor, such as projections of queries, keys and values, are
    named together; those that no batch reaches are left out. The largest magnitudes are those of
    all batches. Raises ValueError for inputs that are not finite.
    """
    inputs = _recorded(model, layers, batches)
    for each in inputs:
        if not bool(each.largest.isfinite().all()):
            raise ValueError(
                f"[quantize_weights] expected calibration with finite inputs of every layer, got "
                f"infinity or NaN at {each.names[0]}"
            )
    return {tuple(each.names): each.seen() for each in inputs}


def layers_by_input(
    model: torch.nn.Module, layers: Mapping[str, torch.nn.Linear], batches: Iterable[Any]
) -> list[tuple[str, ...]]:
    """Run the model on the batches; return the names of the layers that they reach.

    Layers that took one and the same tensor are named together. Its values do not matter.
    """
    return [tuple(each.names) for each in _recorded(model, layers, batches)]


@torch.no_grad()
def _recorded(
    model: torch.nn.Module, layers: Mapping[str, torch.nn.Linear], batches: Iterable[Any]
) -> list[_Recorded]:
    watched = _Watched(layers)
    training = model.training
    model.eval()
    try:
        with computed_by(in_float32, without_products(layers)):
            for batch in bar("Watching the inputs of layers", "batch", iterable=batches):
                _run(model, batch)
    finally:
        model.train(training)
        watched.remove()
    return list(watched.inputs.values())


class _Watched:
    """Hooks that record the inputs of layers, once for those that take the same tensor."""

    def __init__(self, layers: Mapping[str, torch.nn.Linear]) -> None:
        self.inputs: dict[str, _Recorded] = {}  # by the first layer that takes each
        self._others: set[str] = set()
        # What was taken, in which version: what another layer will take lives until then.
        self._taken: Any = WeakTensorKeyDictionary()
        self._handles = [
            layer.register_forward_pre_hook(self._hook(name)) for name, layer in layers.items()
        ]

    def _hook(self, name: str) -> Any:
        def hook(layer: Any, inputs: tuple[torch.Tensor, ...]) -> None:
            given = inputs[0]
            if name in self._others or not given.numel():
                return
            if name not in self.inputs:
                version, earlier = self._taken.get(given, (None, None))
                if version == _version(given):
                    self._others.add(name)
                    earlier.names.append(name)
                    return
                self.inputs[name] = _Recorded(name, given.shape[-1])
            self._taken[given] = _version(given), self.inputs[name]
            self.inputs[name].add(given)

        return hook

    def remove(self) -> None:
        """Take the hooks off."""
        for handle in self._handles:
            handle.remove()


def _version(tensor: torch.Tensor) -> int:
    """Return a number that operators in place change; 0 in inference mode, which has none."""
    return 0 if tensor.is_inference() else tensor._version


class _Recorded:
    """The largest magnitudes of an input, and some of its rows."""

    def __init__(self, name: str, size: int) -> None:
        self.names = [name]
        self.largest = torch.zeros(size)
        self._rows: list[torch.Tensor] = []
        self._kept = 0

    def add(self, given: torch.Tensor) -> None:
        """Add what a layer takes."""
        rows = given.detach().reshape(-1, given.shape[-1])
        self.largest = torch.maximum(self.largest, rows.abs().amax(0).float().cpu())
        if self._kept < _ROWS:
            some = rows[_some(rows, min(_ROWS_OF_BATCH, _ROWS - self._kept))].cpu()
            self._kept += len(some)
            self._rows.append(some)

    def seen(self) -> SeenInputs:
        """Return all that was added."""
        return SeenInputs(self.largest, torch.cat(self._rows))


def _some(rows: torch.Tensor, most: int) -> torch.Tensor:
    """Return the indices of rows evenly apart, from the first on, and of the largest ones."""
    extreme = rows.abs().amax(1).topk(min(_EXTREME, len(rows))).indices
    every = -(-len(rows) // max(1, most - _EXTREME))
    even = torch.arange(0, len(rows), every, device=rows.device)
    return torch.cat([extreme, even]).unique()[:most]


@torch.no_grad()
def rounded_for_inputs(
    model: torch.nn.Module,
    layers: dict[str, torch.nn.Linear],
    rounded: Callable[[torch.nn.Linear, torch.Tensor], torch.nn.Module],
    batches: Iterable[Any],
) -> dict[str, torch.nn.Module]:
    """Run the model on one batch; return what ``rounded(layer, moments)`` makes of each layer.

    Layers that the batch does not reach are left out. Raises ValueError for none or several
    batches, and for inputs that are not finite.
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

    rounding = RoundsWhenCalled(round_one)
    training = model.training
    model.eval()
    try:
        with computed_by(rounding, layers):
            _run(model, given[0])
    finally:
        progress.close()
        model.train(training)
    return rounding.results


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
