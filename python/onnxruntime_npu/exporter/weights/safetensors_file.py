"""Reads safetensors by mapping the file: a tensor takes memory while it is read."""

from __future__ import annotations

import contextlib
import json
import math
import mmap
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import torch

from ...errors import ExportError
from .lazy_weight import LazyWeight

_LENGTH_BYTES = 8
_LONGEST_HEADER = 100_000_000  # the format's own limit
SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"

DTYPES = {
    "BOOL": torch.bool,
    "U8": torch.uint8,
    "I8": torch.int8,
    "U16": torch.uint16,
    "I16": torch.int16,
    "U32": torch.uint32,
    "I32": torch.int32,
    "U64": torch.uint64,
    "I64": torch.int64,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "F8_E8M0": torch.float8_e8m0fnu,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F32": torch.float32,
    "F64": torch.float64,
}


class Entry(NamedTuple):
    """A tensor of a file; ``begin`` and ``end`` are bytes of the file."""

    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


def read_header(path: Path) -> dict[str, Entry]:
    """Return the tensors of a file by name.

    Raises ExportError that names the file if it is cut short, or if its header is none or does not
    agree with itself.
    """
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(_LENGTH_BYTES), "little")
        data = _LENGTH_BYTES + length
        if size < _LENGTH_BYTES or data > size or length > _LONGEST_HEADER:
            raise ExportError(
                f"{path} is damaged or cut short: expected a header of {length} bytes, got a file "
                f"of {size}"
            )
        text = file.read(length)
    try:
        header = json.loads(text)
        header.pop("__metadata__", None)
        entries = {str(name): _entry(found, data) for name, found in header.items()}
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise ExportError(f"{path} is damaged: its header is none of safetensors") from error
    for name, entry in entries.items():
        _check(path, name, entry, data, size)
    return entries


def _entry(found: Any, data: int) -> Entry:
    begin, end = (_count(value) for value in found["data_offsets"])
    shape = tuple(_count(value) for value in found["shape"])
    return Entry(str(found["dtype"]), shape, data + begin, data + end)


def _count(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise ValueError(value)
    return value


def _check(path: Path, name: str, entry: Entry, data: int, size: int) -> None:
    if entry.end > size:
        raise ExportError(
            f"{path} is cut short: {name} ends at byte {entry.end}, the file at {size}"
        )
    dtype = DTYPES.get(entry.dtype)
    if dtype is None:
        raise ExportError(f"{path}: {name} has dtype {entry.dtype}, which torch does not have")
    expected = math.prod(entry.shape) * dtype.itemsize
    if entry.end - entry.begin != expected:
        raise ExportError(
            f"{path} is damaged: expected {expected} bytes of {name}, {entry.dtype} "
            f"{list(entry.shape)}, got {entry.end - entry.begin}"
        )


def weights_name(folder: Path) -> str:
    """Return the name of the file with a model's weights, or of the index of its files.

    Older tools gave them other names, as AutoGPTQ's ``gptq_model-4bit-128g.safetensors``. Raises
    ExportError if several files could be meant, or none.
    """
    for name in (SINGLE, INDEX):
        if (folder / name).is_file():
            return name
    for pattern in (f"*{INDEX.removeprefix('model')}", "*.safetensors"):
        found = sorted(file.name for file in folder.glob(pattern) if file.is_file())
        if len(found) == 1:
            return found[0]
        if found:
            raise ExportError(
                f"expected {SINGLE}, {INDEX} or one such file of another name in {folder}, got "
                f"{', '.join(found[:4])}: name the file of the model's weights {SINGLE}"
            )
    raise ExportError(f"{folder} holds no *.safetensors file: convert the weights to safetensors")


def check_files(folder: Path) -> dict[str, Entry]:
    """Check the headers of a model's files, and its index; return the tensors of all.

    Raises ExportError that names the file which is damaged, cut short, missing or elsewhere.
    """
    index = folder / weights_name(folder)
    if index.suffix != ".json":
        return read_header(index)
    try:
        places = json.loads(index.read_bytes())["weight_map"]
        wrong = [p for p in places.values() if not isinstance(p, str) or Path(p).name != p]
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise ExportError(f"{index} is damaged: expected a 'weight_map' of files") from error
    if wrong:
        raise ExportError(f"{index} names {wrong[0]!r}: expected a file in the same directory")
    found: dict[str, dict[str, Entry]] = {}
    for place in sorted(set(places.values())):
        if not (folder / place).is_file():
            raise ExportError(f"{folder} lacks {place}, which {index.name} names")
        found[place] = read_header(folder / place)
    for name, place in places.items():
        if name not in found[place]:
            raise ExportError(f"{folder / place} lacks {name}, which {index.name} places there")
    return {name: entry for entries in found.values() for name, entry in entries.items()}


class SafetensorsFile:
    """A mapped file, with the part of safetensors' ``safe_open`` that transformers calls."""

    def __init__(self, path: str | Path, **_options: Any) -> None:
        """Map a file; raises ExportError as ``read_header`` does."""
        self._entries = read_header(Path(path))
        with Path(path).open("rb") as file:
            # Private and writable in name, since torch has no tensors that are read only.
            self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        self._bytes = torch.frombuffer(self._map, dtype=torch.uint8)

    def keys(self) -> list[str]:
        """Return the names of the tensors."""
        return list(self._entries)

    def get_slice(self, name: str) -> _Slice:
        """Return what gives the tensor by ``[...]``."""
        return _Slice(self, self._entries[name])

    def __exit__(self, *_arguments: object) -> None:
        """Do nothing: weights read from the map as long as there are any."""

    def tensor(self, entry: Entry) -> torch.Tensor:
        """Return the whole tensor: a LazyWeight of floats, a copy of integers."""
        dtype = DTYPES[entry.dtype]
        stored = self._bytes[entry.begin : entry.end]
        if entry.begin % dtype.itemsize:
            stored = stored.clone()  # torch's views are aligned
        tensor = stored.view(dtype).view(entry.shape)
        if not dtype.is_floating_point:
            return tensor.clone()
        return LazyWeight.of(tensor, lambda: self._release(entry))

    def _release(self, entry: Entry) -> None:
        """Let the system have the memory of what was read back; it is read again if need be."""
        begin = entry.begin // mmap.PAGESIZE * mmap.PAGESIZE
        self._map.madvise(mmap.MADV_DONTNEED, begin, entry.end - begin)


@contextlib.contextmanager
def mapped_files() -> Iterator[None]:
    """Let transformers load safetensors as weights that stay in their files."""
    import transformers.modeling_utils

    with mock.patch.object(transformers.modeling_utils, "safe_open", SafetensorsFile):
        yield


class _Slice:
    """A tensor of a file, as ``safe_open.get_slice`` gives it."""

    def __init__(self, file: SafetensorsFile, entry: Entry) -> None:
        self._file = file
        self._entry = entry

    def get_shape(self) -> list[int]:
        """Return the shape."""
        return list(self._entry.shape)

    def get_dtype(self) -> str:
        """Return safetensors' name of the dtype."""
        return self._entry.dtype

    def __getitem__(self, index: Any) -> torch.Tensor:
        """Return the tensor, or a part of it."""
        return self._file.tensor(self._entry)[index]
