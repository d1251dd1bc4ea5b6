"""Element types by the names that torch and NumPy use, with ONNX's type numbers."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

# TensorProto.DataType, as in ep/runtime/dtype.h.
NUMBERS = {
    "float32": 1,
    "uint8": 2,
    "int8": 3,
    "uint16": 4,
    "int16": 5,
    "int32": 6,
    "int64": 7,
    "bool": 9,
    "float16": 10,
    "float64": 11,
    "uint32": 12,
    "uint64": 13,
    "complex64": 14,
    "complex128": 15,
    "bfloat16": 16,
    "float8_e4m3fn": 17,
    "float8_e4m3fnuz": 18,
    "float8_e5m2": 19,
    "float8_e5m2fnuz": 20,
}
NAMES = {number: name for name, number in NUMBERS.items()}

FLOATS = ("float32", "float16", "bfloat16")
HALVES = ("float16", "bfloat16")
INDICES = ("int64", "int32")
SIGNED = ("int8", "int16", "int32", "int64")
UNSIGNED = ("uint8", "uint16", "uint32", "uint64")
INTEGERS = SIGNED + UNSIGNED
NUMERIC = (*FLOATS, "float64", *INTEGERS)
FIXED_WIDTH = (*NUMERIC, "bool")


def is_floating(name: str) -> bool:
    """Whether ``name`` is a floating-point type."""
    return name.startswith(("float", "bfloat"))


@lru_cache(maxsize=1)
def _torch_tables() -> tuple[dict[torch.dtype, str], dict[str, torch.dtype]]:
    import torch

    by_name = {n: getattr(torch, n) for n in NUMBERS if hasattr(torch, n)}
    return {dtype: name for name, dtype in by_name.items()}, by_name


def from_torch(dtype: torch.dtype) -> str:
    """Return the name of a torch dtype."""
    names, _ = _torch_tables()
    return names.get(dtype) or str(dtype).removeprefix("torch.")


def to_torch(name: str) -> torch.dtype:
    """Return the torch dtype called ``name``."""
    return _torch_tables()[1][name]
