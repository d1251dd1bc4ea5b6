"""What both gatings share: the choice of the best experts of a row."""

from onnxruntime_npu.opdef import check


def best(keys, k):
    """Return the positions of the k largest keys of each row, descending; int64.

    Of equal ones the lower position is first, and NaN is above every number.
    """
    return keys.sort(dim=-1, descending=True, stable=True).indices[..., :k]


def body_best(b, keys, k):
    """Build best, of float32 keys; NaN is infinite, as TopK has no place for it."""
    keys = b.Where(b.IsNaN(keys), b.const(float("inf"), "float32"), keys)
    return b.TopK(keys, b.const([k], "int64"), axis=-1, largest=1, sorted=1)[1]


def check_k(op, k, most):
    """Refuse a number of experts for each row that is not in [1, most]."""
    check(1 <= k <= most, f"[{op}] expected k in [1, {most}], got {k}")
