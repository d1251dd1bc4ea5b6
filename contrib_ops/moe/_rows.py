"""Rows of tokens and their experts: how every operator of the family counts, sorts and moves them.

A token with K slots has K rows, one for each of its experts; their numbers are int32.
"""

from onnxruntime_npu.opdef import check, torch

MAX_EXPERTS = 10240
_MAX_ROWS = 2**31 - 1


def check_rows(op, rows):
    """Refuse more rows than int32 can number."""
    # While tracing, the number may be a symbol; a comparison would bound it in the exported model.
    few = not isinstance(rows, int) or rows <= _MAX_ROWS
    check(few, f"[{op}] expected at most {_MAX_ROWS} rows, got {rows}")


def order_of(experts):
    """Return the rows in the order of their experts, those of one expert as they come; int64."""
    return torch.argsort(experts, stable=True)


def body_order_of(b, experts):
    """Build order_of, of int64 experts."""
    # TopK puts the lower position first where values are equal, also when it looks for the least.
    return b.TopK(experts, b.Shape(experts), axis=0, largest=0, sorted=1)[1]


def body_numbers(b, count):
    """Build the numbers below count, an int64 scalar."""
    return b.Range(b.const(0, "int64"), count, b.const(1, "int64"))


def body_size(b, tensor, axis):
    """Build a tensor's size along an axis, as a scalar."""
    return b.Squeeze(b.Slice(b.Shape(tensor), [axis], [axis + 1]), [0])
