"""Lets transformers load GGUF as weights that stay in their file, restored at each use."""

from __future__ import annotations

import contextlib
import functools
import mmap
from collections.abc import Iterator
from typing import Any
from unittest import mock

import gguf
import numpy as np
import numpy.typing as npt
import torch

from .lazy_weight import LazyWeight

_ROWS_ELEMENTS = 1 << 20  # of temporaries


def shape_of(tensor: gguf.ReaderTensor) -> tuple[int, ...]:
    """Return the shape in torch's order."""
    return tuple(int(size) for size in reversed(tensor.shape))


def floats_of(tensor: gguf.ReaderTensor) -> npt.NDArray[np.float32]:
    """Return the values of a tensor, in a memory of their own."""
    shape = shape_of(tensor)
    values = np.empty(shape, np.float32)
    rows, read = values.reshape(-1, shape[-1]), rows_of(tensor)
    step = max(1, _ROWS_ELEMENTS // max(shape[-1], 1))
    for begin in range(0, len(rows), step):
        part = slice(begin, begin + step)
        with np.errstate(all="ignore"):  # values that are not finite are refused later
            rows[part] = gguf.dequantize(read[part], tensor.tensor_type)
    release(tensor)
    return values


def rows_of(tensor: gguf.ReaderTensor) -> npt.NDArray[Any]:
    """Return the stored values or bytes of a tensor, [rows, .]."""
    return tensor.data.reshape(-1, tensor.data.shape[-1])


def release(tensor: gguf.ReaderTensor) -> None:
    """Let the system have the memory of what was read back; it is read again if need be."""
    mapped = getattr(_root(tensor.data), "_mmap", None)
    if mapped is not None:
        begin = tensor.data_offset // mmap.PAGESIZE * mmap.PAGESIZE
        mapped.madvise(mmap.MADV_DONTNEED, begin, tensor.data_offset + tensor.n_bytes - begin)


def _root(array: Any) -> Any:
    """Return the array that maps the file, of which another is a view."""
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array


@contextlib.contextmanager
def mapped_gguf() -> Iterator[None]:
    """Let transformers load GGUF as weights that stay in their file.

    transformers restores all blocks, and turns them into its own layout, when it loads a file. Here
    it does the same for one weight at a time, whenever that is used.
    """
    from transformers import modeling_gguf_pytorch_utils as loading

    original = loading.load_gguf_checkpoint

    def load(path: Any, return_tensors: bool = False, **options: Any) -> dict[str, Any]:
        parsed: dict[str, Any] = original(path)
        if return_tensors:
            reader = gguf.GGUFReader(path)
            architecture = loading.read_field(reader, "general.architecture")[0]
            layout = loading.TENSOR_PROCESSORS.get(architecture, loading.TensorProcessor)
            processor = layout(config=parsed["config"])
            names = loading.get_gguf_hf_weights_map(options["model_to_load"], processor)
            parsed["tensors"] = _weights(reader.tensors, processor, names)
        return parsed

    # transformers asks for the same table of names once for each module, 10 ms each time.
    names_of = functools.lru_cache(maxsize=1)(gguf.get_tensor_name_map)
    with (
        mock.patch.object(loading, "load_gguf_checkpoint", load),
        mock.patch.object(gguf, "get_tensor_name_map", names_of),
    ):
        yield


def _weights(
    tensors: list[gguf.ReaderTensor], processor: Any, names: dict[str, str]
) -> dict[str, torch.Tensor]:
    """Return the model's weights: each of one tensor of the file, of several, or of parts."""
    sources: dict[str, list[gguf.ReaderTensor]] = {}
    sizes: dict[str, torch.Size] = {}
    for tensor in tensors:
        # What becomes of a tensor does not depend on its values.
        values = np.broadcast_to(np.int8(0), shape_of(tensor))
        with np.errstate(all="ignore"):
            gguf.dequantize(rows_of(tensor)[:1], tensor.tensor_type)  # or raise: it has no floats
            made = _processed(processor, names, tensor, values)
        for name, weight in made.items():
            sources.setdefault(name, []).append(tensor)
            sizes[name] = weight.shape
    return {
        name: LazyWeight.computed(
            functools.partial(_restored, processor, names, name, parts), sizes[name], torch.float32
        )
        for name, parts in sources.items()
    }


def _restored(
    processor: Any, names: dict[str, str], name: str, tensors: list[gguf.ReaderTensor]
) -> torch.Tensor:
    weights: dict[str, torch.Tensor] = {}
    for tensor in tensors:
        weights = _processed(processor, names, tensor, floats_of(tensor), weights)
    return weights[name]


def _processed(
    processor: Any,
    names: dict[str, str],
    tensor: gguf.ReaderTensor,
    values: npt.NDArray[Any],
    weights: dict[str, torch.Tensor] | None = None,
) -> dict[str, torch.Tensor]:
    """Return the model's weights that a tensor is a part of, added to ``weights``."""
    weights = {} if weights is None else weights
    result = processor.process(
        weights=values,
        name=tensor.name,
        tensor_key_mapping=names,
        parsed_parameters={"tensors": weights},
    )
    if result.name in names:
        weights[names[result.name]] = torch.from_numpy(np.require(result.weights, None, ["C", "W"]))
    return weights
