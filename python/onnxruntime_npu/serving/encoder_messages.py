"""What the server and an encoder's process say to each other, pickled over a socket pair."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Embed:
    """To the encoder: rows of tokens to turn into vectors; ``key`` names the request."""

    key: int
    rows: list[list[int]]


@dataclass(frozen=True)
class Embedded:
    """From the encoder, after each batch.

    Attributes:
        vectors: triples of request, row and vector (float32, as bytes).
        failed: pairs of request and reason.
    """

    vectors: list[tuple[int, int, bytes]]
    failed: list[tuple[int, str]]


@dataclass(frozen=True)
class EncoderReady:
    """From the encoder, once, after its warm-up.

    Attributes:
        size: numbers of a vector.
        vocabulary: number of tokens that it knows.
    """

    size: int
    vocabulary: int
