"""What layers of a cache tell a model that is given positions, and whose masks are not used."""

from __future__ import annotations


class PositionedLayer:
    """The part of transformers' interface of layers by which a model counts its tokens."""

    is_sliding = False  # masks see to windows

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Return a length and an offset, which no mask is made of."""
        return query_length, 0

    def get_seq_length(self) -> int:
        """Return 0: rows differ in their lengths, so that positions are given to the model."""
        return 0

    def get_max_length(self) -> int:
        """Return -1, no limit."""
        return -1
