"""int4 weights as the operators take them: eight to an int32, along the outputs or the inputs."""

from __future__ import annotations

from collections.abc import Sequence

import torch

WORD = 8  # int4 values to an int32
_CHUNK_ELEMENTS = 1 << 20  # of temporaries, which are four times the integers


def packed_shape(sizes: Sequence[int]) -> tuple[int, ...] | None:
    """Return the shape of ``packed_columns`` for int4 of these sizes, [.., in, out].

    None if neither size is a multiple of 8.
    """
    *stack, rows, columns = sizes
    if columns % WORD == 0:
        return (*stack, rows, columns // WORD)
    return None if rows % WORD else (*stack, rows // WORD, columns)


def packed_columns(weight: torch.Tensor) -> torch.Tensor:
    """Pack int4 values [.., in, out] along the outputs, or the inputs if only these fill words.

    Returns:
        int32 [.., in, out / 8] or [.., in / 8, out].

    Raises:
        ValueError: neither size is a multiple of 8.

    """
    rows, columns = weight.shape[-2:]
    if columns % WORD == 0:
        return _packed_rows(weight)
    if rows % WORD == 0:
        return _packed_rows(weight.transpose(-1, -2)).transpose(-1, -2)
    raise ValueError(
        f"[quantize_weights] expected in_features or out_features to be a multiple of 8 for int4, "
        f"got {rows} and {columns}; leave the layer out with skip="
    )


def unpacked_columns(words: torch.Tensor, rows: int, columns: int) -> torch.Tensor:
    """Return the int8 values [rows, columns] that packed_columns has put into words."""
    if words.shape == (rows, columns // WORD):
        return _unpacked_rows(words)
    return _unpacked_rows(words.t()).t().contiguous()


def _unpacked_rows(words: torch.Tensor) -> torch.Tensor:
    rows, columns = words.shape
    values = torch.empty(rows, columns, WORD, dtype=torch.int8)
    step = max(1, _CHUNK_ELEMENTS // max(columns, 1))
    for part, given in zip(values.split(step), words.split(step), strict=True):
        for i in range(WORD):
            # Shifted left, then right with the sign: a nibble is its own two's complement.
            part[..., i] = (given << (28 - 4 * i)) >> 28
    return values.flatten(-2)


def _packed_rows(values: torch.Tensor) -> torch.Tensor:
    rows = values.reshape(-1, values.shape[-1])
    step = max(1, _CHUNK_ELEMENTS // max(rows.shape[-1], 1))
    words = [
        torch.ops.npu.npu_convert_weight_to_int4pack(part.to(torch.int32).contiguous())
        for part in rows.split(step)
    ]
    return torch.cat(words).unflatten(0, values.shape[:-1])
