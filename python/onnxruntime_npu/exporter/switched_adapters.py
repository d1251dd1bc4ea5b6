"""LoRA adapters beside the model, of which each run may choose one.

A projection that an adapter changes gets two inputs, A [in, rank] and B [rank, out], and adds
``x @ A @ B``. Both are initializers that may be fed; by default their rank is 0, and nothing is
added. An adapter is a file of such inputs in onnxruntime's own format, ``NAME.onnx_adapter``, for
``onnxruntime.RunOptions.add_active_adapter`` and onnxruntime-genai's ``Adapters``.
"""

from __future__ import annotations

import copy
import functools
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx_ir as ir
import onnxruntime as ort
import torch
from torch import nn

from ..errors import ArgumentError, ExportError
from ..generation.adapters import SUFFIX
from .proof import NotProven
from .roles.linear import Source, mark_layers, sizes_of, sources_of
from .weights.adapters import Change, merge_adapters, read_adapter

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
_TRACED_RANK = 2  # of matrices that are traced; the file's may have any
_VERSION = 1


class Adapted(nn.Module):
    """A projection of any kind that adds ``x @ lora_A @ lora_B``."""

    def __init__(self, base: nn.Module, a: torch.Tensor, b: torch.Tensor) -> None:
        """Take matrices [in, rank] and [rank, out]."""
        super().__init__()
        self.base = base
        self.lora_A = nn.Parameter(a, requires_grad=False)
        self.lora_B = nn.Parameter(b, requires_grad=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Project x [.., in] to [.., out]."""
        y: torch.Tensor = self.base(x)
        return y + torch.matmul(torch.matmul(x, self.lora_A), self.lora_B)


class _Place(NamedTuple):
    """A projection of the exported model that adapters change."""

    in_features: int
    sources: tuple[Source, ...]

    @property
    def out_features(self) -> int:
        return sum(source.out_features for source in self.sources)

    def matrices(self, changes: Mapping[str, Change]) -> tuple[torch.Tensor, torch.Tensor] | None:
        """Return an adapter's A [in, rank] and B [rank, out], or None if it changes nothing here.

        Projections that were joined take one input: their As stand side by side, and each B has
        rows of its own, which are zeros in the columns of the others.
        """
        rows, columns, begin = [], [], 0
        for mark, out_features in self.sources:
            change = changes.get(mark or "")
            if change is not None:
                columns.append(change.a.value().float().t())
                b = change.scale * change.b.value().float().t()
                after = self.out_features - begin - out_features
                rows.append(nn.functional.pad(b, (begin, after)))
            begin += out_features
        return (torch.cat(columns, 1), torch.cat(rows)) if rows else None


class SwitchedAdapters:
    """The adapters of an export."""

    def __init__(self, model: nn.Module, folders: Mapping[str, str | Path]) -> None:
        """Read adapters by their names; mark the layers that they change.

        Raises ArgumentError for a name that is no file's, and what ``read_adapter`` raises.
        """
        for name in folders:
            if not (isinstance(name, str) and _NAME.fullmatch(name)):
                raise ArgumentError(
                    f"expected adapters' names of letters, digits, dots and dashes, got {name!r}"
                )
        self._folders = folders
        self._changes = {name: read_adapter(model, folder) for name, folder in folders.items()}
        for changes in self._changes.values():
            mark_layers({name: change.layer for name, change in changes.items()})
        self._places: dict[str, _Place] = {}

    def prove(
        self, model: Any, decoder: nn.Module, check: Callable[[Any, nn.Module], object]
    ) -> None:
        """Find the changed projections in a decoder; prove that it computes what merged models do.

        Args:
            model: the transformers model in float32.
            decoder: what is exported, in float32, which is the same afterwards.
            check: raises NotProven unless a model and a decoder compute the same.

        Raises ExportError that names the adapter.
        """
        marked = {mark for changes in self._changes.values() for mark in changes}
        for name, module in decoder.named_modules():
            sources = sources_of(module)
            if marked & {source.mark for source in sources}:
                self._places[name] = _Place(sizes_of(module)[0], sources)
        for name, changes in self._changes.items():
            found = {source.mark for place in self._places.values() for source in place.sources}
            lost = sorted(changes.keys() - found)
            if lost:
                raise ExportError(
                    f"cannot switch the adapter {name}: {lost[0]} is no projection of the exported "
                    f"model: merge the adapter instead"
                )
            merged = copy.deepcopy(model)
            merge_adapters(merged, [self._folders[name]])
            bases = {place: decoder.get_submodule(place) for place in self._places}
            try:
                self._insert(decoder, functools.partial(_Place.matrices, changes=changes))
                check(merged, decoder)
            except NotProven as error:
                raise ExportError(f"cannot switch the adapter {name}: {error}") from error
            finally:
                for place, base in bases.items():
                    decoder.set_submodule(place, base)

    def insert(self, decoder: Any) -> None:
        """Give the projections matrices to be traced; the decoder may be quantised by now."""
        dtype = decoder.dtype

        def any_values(place: _Place) -> tuple[torch.Tensor, torch.Tensor]:
            # No two are equal: the translation would join them.
            a = torch.rand(place.in_features, _TRACED_RANK)
            return a.to(dtype), torch.rand(_TRACED_RANK, place.out_features).to(dtype)

        self._insert(decoder, any_values)

    def _insert(
        self,
        decoder: nn.Module,
        matrices: Callable[[_Place], tuple[torch.Tensor, torch.Tensor] | None],
    ) -> None:
        for name, place in self._places.items():
            given = matrices(place)
            if given is not None:
                decoder.set_submodule(name, Adapted(decoder.get_submodule(name), *given))

    def open(self, graph: ir.Graph) -> None:
        """Make the matrices of a traced graph inputs of any rank, by default of rank 0."""
        for name, shape in self._inputs():
            value = graph.initializers[name]
            given: Any = value.const_value
            empty = np.zeros(
                [0 if isinstance(size, str) else size for size in shape], given.numpy().dtype
            )
            value.const_value = ir.Tensor(empty, dtype=given.dtype, name=name)
            value.shape = ir.Shape(shape)
            graph.inputs.append(value)
            if isinstance(rank := shape[-1], str):
                ((product, _),) = value.uses()
                between = product.outputs[0]
                if between.shape is not None:
                    leading: list[Any] = list(between.shape)[:-1]
                    between.shape = ir.Shape([*leading, rank])

    def _inputs(self) -> Iterator[tuple[str, tuple[int | str, int | str]]]:
        # A name each: onnxruntime reuses memory of a size for what has the same name, and adapters
        # have other ranks, 0 too, in other projections.
        for i, (name, place) in enumerate(self._places.items()):
            yield f"decoder.{name}.lora_A", (place.in_features, f"rank_{i}")
            yield f"decoder.{name}.lora_B", (f"rank_{i}", place.out_features)

    def write(self, folder: Path, dtype: torch.dtype) -> dict[str, dict[str, Any]]:
        """Write the file of each adapter; return what the report says of them, by name."""
        entries = {}
        for adapter, changes in self._changes.items():
            parameters: dict[str, ort.OrtValue] = {}
            for name, place in self._places.items():
                given = place.matrices(changes)
                for part, matrix in zip("AB", given or (), strict=False):
                    parameters[f"decoder.{name}.lora_{part}"] = _value(matrix, dtype, adapter)
            file: Any = ort.AdapterFormat()
            file.set_adapter_version(_VERSION)
            file.set_model_version(_VERSION)
            file.set_parameters(parameters)
            path = folder / f"{adapter}{SUFFIX}"
            file.export_adapter(str(path))
            entries[adapter] = {
                "folder": str(self._folders[adapter]),
                "file": path.name,
                "layers": len(changes),
                "bytes": path.stat().st_size,
            }
        return entries


def _value(matrix: torch.Tensor, dtype: torch.dtype, adapter: str) -> ort.OrtValue:
    stored = matrix.to(dtype).contiguous()
    if not bool(stored.isfinite().all()):
        raise ExportError(
            f"the adapter {adapter} has values that {dtype} cannot hold: pass dtype='bfloat16' or "
            f"'float32'"
        )
    if dtype != torch.bfloat16:
        return ort.OrtValue.ortvalue_from_numpy(stored.numpy())
    bits = stored.view(torch.int16).numpy().view(np.uint16)
    return ort.OrtValue.ortvalue_from_numpy_with_onnx_type(bits, int(ir.DataType.BFLOAT16))
