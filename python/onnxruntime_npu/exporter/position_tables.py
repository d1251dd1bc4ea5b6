"""Tables of learned or fixed positions that a model reads at the slots of a row.

Models whose forward pass takes no positions, as BART's decoder, number the slots of a row, padding
included; others, as RoBERTa, number their tokens from another row of the table than that of the
positions they are given. Both tables are read at a token's position instead, counted without
padding, so that a padded row gets what it gets alone.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from .proof import attempt
from .replaced_functions import ReplacedFunctions

_TOKENS = 5  # of the rows by which tables are found


class PositionTables:
    """The tables of a model, by modules, with the row of the first position."""

    def __init__(self, first_rows: dict[nn.Embedding, int]) -> None:
        self.first_rows = first_rows
        self._positions: list[torch.Tensor] = []

    @contextmanager
    def read_at(self, positions: torch.Tensor) -> Iterator[None]:
        """Read the tables at positions [B, S] inside."""
        self._positions.append(positions)
        try:
            yield
        finally:
            self._positions.pop()

    def reader(self, table: nn.Embedding) -> Callable[..., torch.Tensor]:
        """Return a forward pass of a table, its rows [B, S, D], whatever it is called with."""
        first = self.first_rows[table]

        def forward(*_: Any, **__: Any) -> torch.Tensor:
            return nn.functional.embedding(self._positions[-1] + first, table.weight)

        return forward


def follow_positions(model: Any, functions: ReplacedFunctions) -> PositionTables:
    """Add what reads the model's tables at given positions to ``functions``, and return them.

    Tables that follow the positions which the model takes are left as they are.
    """
    with functions.replaced():
        tables = PositionTables(attempt(_first_rows, model))
    for table in tables.first_rows:
        functions.add(table, "forward", tables.reader(table))
    return tables


def _first_rows(model: Any) -> dict[nn.Embedding, int]:
    rows = _rows_read(model)
    if rows and "position_ids" in inspect.signature(model.forward).parameters:
        given = _rows_read(model, position_ids=torch.arange(_TOKENS)[None])
        rows = {table: first for table, first in rows.items() if given.get(table) != first}
    return rows


def _rows_read(model: Any, **options: Any) -> dict[nn.Embedding, int]:
    """Return the tables of which a run of some tokens reads consecutive rows, and the first row."""
    modules = [module for module in model.modules() if isinstance(module, nn.Embedding)]
    tokens = _unpadded(model)
    with _Reading(model) as reading:
        model(input_ids=tokens, use_cache=False, **options)
    return {m: n for table, n in reading.consecutive for m in modules if m.weight is table}


def positions_of(model: Any, run: Callable[[torch.Tensor], object]) -> int | None:
    """Return how many positions the model's tables have, the fewest; None if it has no table.

    ``run`` runs the model with tokens [1, S]. Rows before that of the first position do not count.
    """
    tokens = _unpadded(model)
    with _Reading(model) as reading:
        run(tokens)
    return min((len(table) - first for table, first in reading.consecutive), default=None)


def _unpadded(model: Any) -> torch.Tensor:
    """Return tokens [1, S] whose own rows are not consecutive, none of them padding."""
    padding = getattr(model.config, "pad_token_id", None)
    tokens = [token for token in range(2 * _TOKENS, 0, -1) if token != padding][:_TOKENS]
    return torch.tensor([tokens])


class _Reading(TorchFunctionMode):
    """Notes the parameters of a model of which consecutive rows are read, one for each token.

    By ``embedding``, or by indices in brackets, as Whisper does.
    """

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.consecutive: list[tuple[torch.Tensor, int]] = []  # with the first row
        self._parameters = {id(parameter) for parameter in model.parameters()}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run a function of torch."""
        if func is nn.functional.embedding:
            self._note(args[1], args[0])
        elif func is torch.Tensor.__getitem__ and isinstance(args[1], torch.Tensor):
            self._note(*args)
        return func(*args, **(kwargs or {}))

    def _note(self, table: torch.Tensor, indices: torch.Tensor) -> None:
        if id(table) not in self._parameters or indices.numel() != _TOKENS:
            return
        rows = indices.flatten().long()
        if rows.equal(torch.arange(_TOKENS) + rows[0]):
            self.consecutive.append((table, int(rows[0])))
