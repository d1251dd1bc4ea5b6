"""Gives a model that transformers loaded from GGUF, in floats, the integers of the file back.

A tensor is found by what it holds, not by its name: transformers renames tensors, and reorders the
rows of some, differently for every architecture.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from torch import nn

from ...progress import progress
from ..weights.gguf_file import floats_of, release, shape_of
from ..weights.lazy_weight import give_back_memory, value_of
from .gguf_blocks import Blocks, bits_of, blocks_of, has_blocks
from .integer_weight import IntegerWeight
from .stored_linear import StoredLinear

_ROWS = 256  # that are compared or decoded at a time
# Both sides restore the same blocks in float32, perhaps in another order of operations.
_TOLERANCE = 1e-5


def restore_integers(model: Any, path: Path) -> dict[str, str]:
    """Replace linear layers by StoredLinear where the file has their weight as integers, in place.

    Returns a reason for each linear layer but the head that stays in floats.
    """
    head = model.get_output_embeddings()
    layers = {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear) and module is not head
    }
    marks = {name: _mark(value_of(layer.weight)) for name, layer in layers.items()}
    waiting = dict.fromkeys(layers)
    floats: dict[tuple[int, ...], set[str]] = {}
    tensors = [t for t in gguf.GGUFReader(str(path)).tensors if len(t.shape) == 2]
    for tensor in progress(tensors, "Reading blocks", "tensor"):
        shape = shape_of(tensor)
        candidates = [name for name in waiting if layers[name].weight.shape == shape]
        if not candidates:
            continue
        if not has_blocks(tensor.tensor_type):
            floats.setdefault(shape, set()).add(tensor.tensor_type.name)
            continue
        restored = torch.from_numpy(floats_of(tensor))
        mark = _mark(restored)
        for name in candidates:
            layer = layers[name]
            rows = _rows(restored, mark, layer.weight, marks[name])
            if rows is not None:
                bias = layer.bias
                integers = IntegerWeight.remade(functools.partial(_integers, tensor, rows))
                stored = StoredLinear(integers, None if bias is None else bias.detach())
                model.set_submodule(name, stored)
                del waiting[name]
    give_back_memory()
    reasons = {}
    for name in waiting:
        kinds = sorted(floats.get(tuple(layers[name].weight.shape), ()))
        reasons[name] = (
            f"the file has weights of this shape as {', '.join(kinds)}"
            if kinds
            else "no tensor of the file holds this weight alone"
        )
    return reasons


def _mark(weight: torch.Tensor) -> torch.Tensor:
    """Return a number for each row that depends on all of it, float64 [rows]."""
    generator = torch.Generator().manual_seed(7)
    direction = torch.randn(weight.shape[1], generator=generator, dtype=torch.float64)
    parts = [part.double() @ direction for part in weight.split(_ROWS)]
    return torch.cat(parts)


def _rows(
    restored: torch.Tensor, mark: torch.Tensor, layer: torch.Tensor, wanted: torch.Tensor
) -> torch.Tensor | None:
    """Return which row of the file's tensor each row of a layer is; None if it is another's."""
    scale = float(wanted.abs().max()) or 1.0
    if not torch.allclose(
        mark.sort().values, wanted.sort().values, rtol=0, atol=_TOLERANCE * scale
    ):
        return None
    weight = value_of(layer)  # not before: it is restored from the file, and most are others
    rows = torch.empty_like(wanted, dtype=torch.int64)
    rows[wanted.argsort(stable=True)] = mark.argsort(stable=True)
    atol = _TOLERANCE * float(weight.abs().max())
    parts = zip(rows.split(_ROWS), weight.split(_ROWS), strict=True)
    same = all(torch.allclose(restored[of], part, rtol=0, atol=atol) for of, part in parts)
    return rows if same else None


def _integers(tensor: gguf.ReaderTensor, rows: torch.Tensor) -> IntegerWeight:
    """Return the integers [in, out] of the given rows."""
    data = np.asarray(tensor.data)
    parts = [
        _parts(blocks_of(tensor.tensor_type, data[begin : begin + _ROWS]))
        for begin in range(0, len(data), _ROWS)
    ]
    release(tensor)
    values, d, offset = (torch.cat(part)[rows].t() for part in zip(*parts, strict=True))
    bits, group = bits_of(tensor.tensor_type), values.shape[0] // d.shape[0]
    return IntegerWeight.packed(values, bits, d, offset, group)


def _parts(blocks: Blocks) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return integers as int8 [rows, in], and the scales and offsets [rows, groups] of groups."""
    q, d = torch.from_numpy(blocks.q), torch.from_numpy(blocks.d)
    offset = torch.zeros_like(d)
    if blocks.m is not None:
        m = torch.from_numpy(blocks.m)
        # A group of one value has no step: it becomes one times that value.
        constant = (d == 0) & (m != 0)
        q = torch.where(constant[..., None], 1, q)
        d = torch.where(constant, m, d)
        offset = torch.where(constant | (d == 0), 0.0, m / torch.where(d == 0, 1.0, d))
    return q.to(torch.int8).flatten(1), d, offset
