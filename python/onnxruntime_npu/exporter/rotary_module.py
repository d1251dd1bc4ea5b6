"""Rotary embeddings whose frequencies depend on the length, in a model that is kept.

transformers chooses them by Python code, which cannot be traced, or for the longest row of a batch.
Here each row has those of its own length, as a prompt that is alone.
"""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import nn

from .key_numbers import lengths_of_rows
from .proof import Findings, NotProven, attempt, compare
from .roles.frequencies import DynamicFrequencies, LongFrequencies
from .roles.rotary import fresh_rotary, rows_around

_KINDS = (DynamicFrequencies, LongFrequencies)


class _Changed:
    """A module of which some attributes have other values; its other methods are its own."""

    def __init__(self, original: Any, **values: Any) -> None:
        self.__dict__.update(values)
        self._original = original

    def __getattr__(self, name: str) -> Any:
        return getattr(self._original, name)


class LengthRotary(nn.Module):
    """The original's tables with the frequencies of each row's length.

    A model whose kinds of layers have frequencies of their own asks for those of one kind.
    """

    def __init__(self, original: Any) -> None:
        super().__init__()
        self.original = original
        self.frequencies = nn.ModuleDict()  # by the original's names
        self._tables = inspect.unwrap(type(original).forward)  # without the choice of frequencies

    def __getattr__(self, name: str) -> Any:
        """Return the original's, of what models read: its configuration, or its kinds of layers."""
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("original"), name)

    def forward(
        self, x: torch.Tensor, position_ids: torch.Tensor, layer_type: str | None = None
    ) -> Any:
        """Return the tables for position_ids [B, S], of x's dtype.

        With positions in time, height and width they are [3, B, S].
        """
        arguments = (x, position_ids, *_named(layer_type))
        name = _name("inv_freq", layer_type)
        if name not in self.frequencies:
            return self._tables(self.original, *arguments)
        lengths = lengths_of_rows()
        if lengths is None:
            longest = position_ids.amax(-1)
            if longest.dim() > 1:
                longest = longest.amax(0)
            lengths = longest.view(-1, 1, 1, 1) + 1
        # [B, 1, D / 2], or of each token's row [1, T, D / 2]
        pairs = self.frequencies[name](lengths).squeeze(1).chunk(2, -1)[0]
        scaling = _name("attention_scaling", layer_type)
        state = {name: pairs, scaling: getattr(self.original, scaling)}
        return self._tables(_Changed(self.original, **state), *arguments)


def follow_lengths(model: Any, findings: Findings) -> None:
    """Replace rotary embeddings whose frequencies depend on the length by proven ones."""
    for name, module in list(model.named_modules()):
        types = getattr(module, "rope_type", None)
        by_layer = types if isinstance(types, dict) else {None: types}
        if not any(kind.rope_type in by_layer.values() for kind in _KINDS):
            continue
        try:
            model.set_submodule(name, attempt(_proven, module, by_layer))
        except NotProven as error:
            findings.keep(name, "rotary", f"frequencies do not follow a row's length: {error}")
            findings.warnings.append(
                f"rows beyond the original context may be wrong: {name} has the frequencies of "
                f"the rows that it was traced with"
            )


def _name(name: str, layer_type: str | None) -> str:
    """Return the name of an attribute of a rotary embedding, for a kind of layer."""
    return name if layer_type is None else f"{layer_type}_{name}"


def _named(layer_type: str | None) -> tuple[str, ...]:
    return () if layer_type is None else (layer_type,)


def _proven(original: Any, by_layer: dict[str | None, str]) -> LengthRotary:
    """Return the replacement if rows of several lengths have the original's tables."""
    fresh = fresh_rotary(original)
    built = LengthRotary(fresh)
    for layer_type, rope_type in by_layer.items():
        settings = original.config.rope_parameters
        if layer_type is not None:
            settings = settings[layer_type]
        for kind in _KINDS:
            if kind.rope_type == rope_type:
                name = _name("inv_freq", layer_type)
                frequencies = kind.of(fresh, settings, getattr(fresh, name).float())
                built.frequencies[name] = frequencies
                _prove(original, built, frequencies.limit, layer_type)
    return built


def _prove(original: Any, built: LengthRotary, limit: int, layer_type: str | None) -> None:
    for row in rows_around(limit):
        alone = _real(fresh_rotary(original)(torch.zeros(1), row, *_named(layer_type)))
        # Beside a row of few tokens, for which the original would take this one's length.
        both = torch.cat([row, torch.zeros_like(row)])
        ours = _real(built(torch.zeros(1), both, *_named(layer_type)))
        for theirs, table in zip(alone, ours, strict=True):
            compare(theirs[0], table[0], "rotary tables")


def _real(tables: Any) -> tuple[torch.Tensor, ...]:
    """Return tables [B, S, columns] of real numbers."""
    return torch.view_as_real(tables).unbind(-1) if isinstance(tables, torch.Tensor) else tables
