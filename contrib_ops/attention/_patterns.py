"""Masks that only name a pattern, and the bounds of a pattern."""

COMPRESSED = 2048  # side of the square mask that stands for a pattern
# Beyond every position, and far enough from the ends of int64 for a position to be added.
UNBOUNDED = 2**60


def bounded(tokens):
    """Return pre_tokens or next_tokens as a number that a position may be added to."""
    return max(-UNBOUNDED, min(tokens, UNBOUNDED))
