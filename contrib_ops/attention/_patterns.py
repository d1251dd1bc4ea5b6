"""Compressed masks, which represent a pattern, and the bounds of a pattern."""

COMPRESSED = 2048  # side of the square mask that represents a pattern
# Beyond every position, but adding a position does not overflow int64.
UNBOUNDED = 2**60


def bounded(tokens):
    """Clamp pre_tokens or next_tokens so that adding a position does not overflow."""
    return max(-UNBOUNDED, min(tokens, UNBOUNDED))
