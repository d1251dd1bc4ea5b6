"""What the operators that only move elements share."""

import math

from onnxruntime_npu.errors import AxisError
from onnxruntime_npu.opdef import FLOATS, INTEGERS, check, torch

ELEMENTS = [*FLOATS, *INTEGERS, "bool"]
OF_EACH_SIZE = ["float32", "bfloat16", "int64", "uint8", "bool"]  # what samples are made of


def copied(tensor):
    """Return the elements contiguously, in memory of their own."""
    return tensor.clone(memory_format=torch.contiguous_format)


def check_permutation(op, perm, rank):
    """Refuse what does not name every axis once."""
    check(
        all(-rank <= axis < rank for axis in perm)
        and sorted(axis % rank for axis in perm) == list(range(rank)),
        f"[{op}] expected perm to name each of {rank} axes once, got {list(perm)}",
    )


def check_shape(op, shape, tensor):
    """Refuse sizes that do not hold a tensor's elements."""
    check(
        all(size >= 0 for size in shape) and math.prod(shape) == tensor.numel(),
        f"[{op}] expected a shape of {tensor.numel()} elements, got {list(shape)}",
    )


def check_count(op, shape):
    """Refuse sizes whose product torch cannot hold; those of a trace may have no number."""
    known = all(isinstance(size, int) for size in shape)
    check(
        not known or math.prod(max(size, 1) for size in shape) < 2**63,
        f"[{op}] expected a shape whose number of elements fits int64, got {list(shape)}",
    )


def check_axis(op, dim, rank):
    """Refuse an axis that a tensor of that rank does not have; a scalar has the axes 0 and -1."""
    most = max(rank, 1)
    if not -most <= dim < most:
        raise AxisError(f"[{op}] expected dim in [{-most}, {most - 1}], got {dim}")
