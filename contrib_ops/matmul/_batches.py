"""The batch axes of two operands, all but the last two, which broadcast."""

from onnxruntime_npu.opdef import check


def check_batches(op, a, b):
    """Refuse batch axes that do not broadcast."""
    pairs = zip(reversed(a), reversed(b), strict=False)
    check(
        all(m == n or m == 1 or n == 1 for m, n in pairs),
        f"[{op}] expected broadcastable shapes, got {list(a)} and {list(b)}",
    )


def batch_of_result(a, b):
    """Return the batch axes of the result."""
    longer, shorter = (a, b) if len(a) >= len(b) else (b, a)
    rest = len(longer) - len(shorter)
    pairs = zip(longer[rest:], shorter, strict=True)
    return [*longer[:rest], *(n if m == 1 else m for m, n in pairs)]
