"""Gives a model that transformers loaded from GGUF, in floats, the integers of the file back.

A tensor is found by what it holds, not by its name: transformers renames tensors, and reorders the
rows of some, differently for every architecture.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import gguf
import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from ...converters.quantized_experts import first_name, is_experts
from ...progress import progress
from ..weights.gguf_file import floats_of, release, rows_of, shape_of
from ..weights.lazy_weight import give_back_memory, value_of
from .gguf_blocks import Blocks, bits_of, blocks_of, has_blocks
from .integer_weight import IntegerWeight, side_by_side
from .stored_experts import StoredExperts, stacked
from .stored_linear import StoredLinear

_ROWS = 256  # that are compared or decoded at a time
# Both sides restore the same blocks in float32, perhaps in another order of operations.
_TOLERANCE = 1e-5
# Between zero and the middle of a group, of which 16 at most are on either side of the middle.
_MOST_STEPS = 2**15


class _Place(NamedTuple):
    """A weight of a module, or a part of its outputs, that may be a tensor of the file."""

    module: str
    parameter: str
    part: int = 0


class _Rows(NamedTuple):
    """A tensor of the file, and which of its rows each row of a weight is."""

    tensor: gguf.ReaderTensor
    rows: torch.Tensor


def restore_integers(model: Any, path: Path) -> dict[str, tuple[str, str]]:
    """Take the file's integers where it has the weights of linear layers and experts, in place.

    Linear layers become StoredLinear; experts get a StoredExperts as ``stored``. Returns the role
    of each that stays in floats, but for the head, and the reason.
    """
    tensors = [t for t in gguf.GGUFReader(str(path)).tensors if len(t.shape) in (2, 3)]
    head = model.get_output_embeddings()
    modules = {
        name: module
        for name, module in model.named_modules()
        if (isinstance(module, nn.Linear) and module is not head) or is_experts(module)
    }
    shapes = {shape_of(tensor) for tensor in tensors}
    places = {place: w for name, m in modules.items() for place, w in _places(name, m, shapes)}
    found = _found(tensors, places)
    left = {}
    for name, module in modules.items():
        if isinstance(module, nn.Linear):
            taken = found.get(_Place(name, "weight"))
            if taken is None:
                weight = tuple(module.weight.shape)
                left[name] = "linear", _reason(tensors, [weight])
                continue
            bias = None if module.bias is None else module.bias.detach()
            model.set_submodule(name, StoredLinear(_weight([taken]), bias))
        else:
            stored = _stored_experts(name, module, places, found)
            if stored is None:
                left[name] = "experts", _reason(tensors, [s for s in shapes if len(s) == 3])
            module.stored = stored
    return left


def _places(
    name: str, module: nn.Module, shapes: set[tuple[int, ...]]
) -> Iterator[tuple[_Place, torch.Tensor]]:
    """Yield the weights [rows, in] of a module; of experts those that the file may have.

    Gate and up projections of experts may be two tensors.
    """
    if isinstance(module, nn.Linear):
        yield _Place(name, "weight"), module.weight
        return
    if getattr(module, "is_transposed", False):
        return
    for parameter in (first_name(module), "down_proj"):
        weight = module.get_parameter(parameter)
        experts, rows, columns = weight.shape
        for count in (1, 2):
            if rows % count == 0 and (experts, rows // count, columns) in shapes:
                for part, its in enumerate(weight.split(rows // count, 1)):
                    yield _Place(name, parameter, part), its.flatten(0, 1)
                break


def _found(
    tensors: Sequence[gguf.ReaderTensor], places: Mapping[_Place, torch.Tensor]
) -> dict[_Place, _Rows]:
    """Return the tensors of integers that hold the weights of places."""
    marks = {place: _mark(value_of(weight)) for place, weight in places.items()}
    found: dict[_Place, _Rows] = {}
    for tensor in progress(tensors, "Reading blocks", "tensor"):
        shape = _matrix(shape_of(tensor))
        candidates = [p for p, w in places.items() if p not in found and w.shape == shape]
        if not candidates or not has_blocks(tensor.tensor_type):
            continue
        restored = torch.from_numpy(floats_of(tensor)).reshape(shape)
        mark = _mark(restored)
        for place in candidates:
            rows = _rows(restored, mark, places[place], marks[place])
            if rows is not None:
                found[place] = _Rows(tensor, rows)
    give_back_memory()
    return found


def _matrix(shape: tuple[int, ...]) -> tuple[int, int]:
    """Return the shape of a tensor's rows."""
    return int(np.prod(shape[:-1])), shape[-1]


def _reason(tensors: Sequence[gguf.ReaderTensor], shapes: Sequence[tuple[int, ...]]) -> str:
    """Return why a weight, which may have these shapes in the file, has no integers."""
    kinds = {t.tensor_type for t in tensors if shape_of(t) in shapes}
    names = sorted(kind.name for kind in kinds if not has_blocks(kind))
    if names:
        return f"the file has weights of this shape as {', '.join(names)}"
    return "no tensor of the file holds this weight alone"


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


def _stored_experts(
    name: str,
    module: nn.Module,
    places: Mapping[_Place, torch.Tensor],
    found: Mapping[_Place, _Rows],
) -> StoredExperts | None:
    """Return the weights of experts as the file has them, or None if it has not all."""
    weights = []
    for parameter in (first_name(module), "down_proj"):
        own = [place for place in places if place[:2] == (name, parameter)]
        parts = [found[place] for place in own if place in found]
        if not own or len(parts) < len(own) or len({p.tensor.tensor_type for p in parts}) > 1:
            return None
        weights.append(_weight(parts, len(module.get_parameter(parameter))))
    return StoredExperts(*weights)


def _weight(parts: Sequence[_Rows], experts: int = 0) -> IntegerWeight:
    """Return the weight with the outputs of all parts, [in, out], or [experts, in, out]."""
    kind = parts[0].tensor.tensor_type
    row = blocks_of(kind, rows_of(parts[0].tensor)[:1])
    _, groups, size = row.q.shape
    outputs = sum(len(part.rows) for part in parts) // max(experts, 1)
    sizes = (groups * size, outputs)

    def make() -> IntegerWeight:
        # Of each expert by itself: words take less memory than the integers that they are made of.
        every = zip(*(part.rows.chunk(max(experts, 1)) for part in parts), strict=True)
        made = [
            side_by_side([_integers(p.tensor, r) for p, r in zip(parts, rows, strict=True)])
            for rows in every
        ]
        for part in parts:
            release(part.tensor)
        return stacked(made) if experts else made[0]

    return IntegerWeight.remade(
        make,
        (experts, *sizes) if experts else sizes,
        bits_of(kind),
        groups,
        size,
        has_offset=row.m is not None,
    )


def _integers(tensor: gguf.ReaderTensor, rows: torch.Tensor) -> IntegerWeight:
    return integers_of(tensor.tensor_type, rows_of(tensor), rows)


def integers_of(
    kind: gguf.GGMLQuantizationType, data: npt.NDArray[np.uint8], rows: torch.Tensor
) -> IntegerWeight:
    """Return the integers [in, out] of the given rows of blocks, data [rows, bytes]."""
    parts = [_parts(blocks_of(kind, data[some.numpy()])) for some in rows.split(_ROWS)]
    values, d, offset = (torch.cat(part).t() for part in zip(*parts, strict=True))
    return IntegerWeight.packed(values, bits_of(kind), d, offset, values.shape[0] // d.shape[0])


def _parts(blocks: Blocks) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return integers as int8 [rows, in], and the scales and offsets [rows, groups] of groups."""
    q, d = torch.from_numpy(blocks.q), torch.from_numpy(blocks.d)
    offset = torch.zeros_like(d)
    if blocks.m is not None:
        m = torch.from_numpy(blocks.m)
        # A group of nearly one value has no step, or one so small that float16 cannot have the
        # offset in steps: it becomes one times the middle, from which float16 cannot tell others.
        constant = m.abs() > d.abs() * _MOST_STEPS
        q = torch.where(constant[..., None], 1, q)
        d = torch.where(constant, m, d)
        offset = torch.where(constant | (d == 0), 0.0, m / torch.where(d == 0, 1.0, d))
    return q.to(torch.int8).flatten(1), d, offset
