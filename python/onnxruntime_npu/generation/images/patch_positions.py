"""Where patches of images and tokens of text are, for models with positions in three dimensions.

As in Qwen2-VL: an image is a grid of patches in blocks of merge times merge, each of which is one
token. A token has a position in time, a row and a column, which are one number for text.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby

import numpy as np

from ...errors import ArgumentError


def check_grids(grids: np.ndarray, merge: int) -> None:
    """Raise ArgumentError unless image_grid_thw [images, 3] has grids of images."""
    for time, rows, columns in grids.tolist():
        if time != 1 or rows < 1 or columns < 1 or rows % merge or columns % merge:
            raise ArgumentError(
                f"expected image_grid_thw of 1 and multiples of {merge} for each image, got "
                f"{[time, rows, columns]}"
            )


def patch_positions(rows: int, columns: int, merge: int) -> np.ndarray:
    """Return the row and the column [patches, 2] of each patch of an image, block by block."""
    places = np.stack(np.meshgrid(np.arange(rows), np.arange(columns), indexing="ij"), -1)
    blocks = places.reshape(rows // merge, merge, columns // merge, merge, 2)
    return np.ascontiguousarray(blocks.transpose(0, 2, 1, 3, 4).reshape(-1, 2), np.int64)


def patch_windows(positions: np.ndarray, size: int) -> np.ndarray:
    """Return the patches [windows, size * size] in each window of size times size patches.

    positions: of patch_positions. Where a window reaches beyond the image, it has the number of
    patches.
    """
    rows, columns = positions.T
    across = columns.max() // size + 1
    windows = np.full((across * (rows.max() // size + 1), size * size), len(positions), np.int64)
    places = rows // size * across + columns // size, rows % size * size + columns % size
    windows[places] = np.arange(len(positions))
    return windows


def token_positions(
    ids: np.ndarray, mask: np.ndarray, image_token: int, grids: np.ndarray, merge: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return positions int64 [3, B, S] of a prompt, and the next position [B] of each row.

    ids, mask: [B, S]; grids: [images, 3] in the order of their tokens. Raises ArgumentError unless
    the tokens of each image are next to each other, and apart from those of the next.
    """
    positions = np.zeros((3, *ids.shape), np.int64)
    following = np.zeros(len(ids), np.int64)
    remaining = iter(grids // np.array([1, merge, merge]))
    for row, (tokens, kept) in enumerate(zip(ids, mask.astype(bool), strict=True)):
        parts, start = [], 0
        for is_image, group in groupby(tokens[kept] == image_token):
            count = len(list(group))
            if is_image:
                part = _of_image(remaining, count)
                size = int(part[1:].max()) + 1
            else:
                part, size = np.arange(count) + np.zeros((3, 1), np.int64), count
            parts.append(part + start)
            start += size
        positions[:, row, kept] = np.concatenate(parts, 1)
        following[row] = start
    return positions, following


def _of_image(grids: Iterator[np.ndarray], tokens: int) -> np.ndarray:
    """Return positions [3, tokens] of the next image, counted from its first one."""
    grid = next(grids, None)
    if grid is None or grid.prod() != tokens:
        expected = "no more" if grid is None else f"{grid.prod()}, those of one image,"
        raise ArgumentError(f"expected {expected} image tokens next to each other, got {tokens}")
    return np.stack(np.meshgrid(*map(np.arange, grid), indexing="ij")).reshape(3, -1)
