"""Where patches of images and tokens of text are, for models with positions in three dimensions.

As in Qwen2-VL: an image is a grid of patches in blocks of merge times merge, each of which is one
token, and a video is a number of such grids. A token has a position in time, a row and a column,
which are one number for text.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby
from typing import NamedTuple

import numpy as np

from ...errors import ArgumentError

IMAGE, VIDEO = 1, 2  # kinds of tokens; those of text are 0


class Grid(NamedTuple):
    """The patches of an image, or of a video or a part of it, whose tokens follow each other."""

    times: int  # 1 of an image
    rows: int
    columns: int
    interval: float = 1.0  # of positions in time

    def tokens(self, merge: int) -> int:
        """Return the number of its tokens, each of ``merge`` patches to each side."""
        return self.times * (self.rows // merge) * (self.columns // merge)


def grids_of(grids: np.ndarray) -> list[Grid]:
    """Return the grids of images [images, 3]: 1, rows and columns."""
    return [Grid(times, rows, columns) for times, rows, columns in grids.tolist()]


def check_grids(grids: np.ndarray, merge: int) -> None:
    """Raise ArgumentError unless image_grid_thw [images, 3] has grids of images."""
    for time, rows, columns in grids.tolist():
        if time != 1 or rows < 1 or columns < 1 or rows % merge or columns % merge:
            raise ArgumentError(
                f"expected image_grid_thw of 1 and multiples of {merge} for each image, got "
                f"{[time, rows, columns]}"
            )


def check_video_grids(grids: np.ndarray, merge: int) -> None:
    """Raise ArgumentError unless video_grid_thw [videos, 3] has grids of videos."""
    for times, rows, columns in grids.tolist():
        if min(times, rows, columns) < 1 or rows % merge or columns % merge:
            raise ArgumentError(
                f"expected video_grid_thw of 1 or more and multiples of {merge} for each video, "
                f"got {[times, rows, columns]}"
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


def runs_of(kinds: np.ndarray, mask: np.ndarray) -> Iterator[tuple[int, int, int]]:
    """Yield the row, the kind and the number of tokens of one kind that follow each other."""
    for row, kept in enumerate(mask.astype(bool)):
        for kind, group in groupby(kinds[row, kept].tolist()):
            yield row, kind, len(list(group))


def token_positions(
    kinds: np.ndarray, mask: np.ndarray, grids: Mapping[int, Iterable[Grid]], merge: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return positions int64 [3, B, S] of a prompt, and the next position [B] of each row.

    kinds, mask: [B, S]; grids: those of each kind in the order of their tokens. Raises
    ArgumentError unless the tokens of each are next to each other, and apart from those of the
    next.
    """
    positions = np.zeros((3, *kinds.shape), np.int64)
    remaining = {kind: iter(each) for kind, each in grids.items()}
    parts: list[list[np.ndarray]] = [[] for _ in kinds]
    starts = [0] * len(kinds)
    for row, kind, count in runs_of(kinds, mask):
        if kind:
            part, size = _of_grid(remaining[kind], kind, count, merge)
        else:
            part, size = np.arange(count) + np.zeros((3, 1), np.int64), count
        parts[row].append(part + starts[row])
        starts[row] += size
    for row, kept in enumerate(mask.astype(bool)):
        positions[:, row, kept] = np.concatenate(parts[row], 1)
    # A video may last longer than what follows it within the prompt.
    return positions, positions.max((0, 2)) + 1


def _of_grid(grids: Iterator[Grid], kind: int, tokens: int, merge: int) -> tuple[np.ndarray, int]:
    """Return positions [3, tokens] of the next grid, counted from its first one.

    Also how far behind its first one the next token is.
    """
    grid = next(grids, None)
    count = 0 if grid is None else grid.tokens(merge)
    if grid is None or count != tokens:
        name = "image" if kind == IMAGE else "video"
        expected = "no more" if grid is None else f"{count}, those of one {name},"
        raise ArgumentError(f"expected {expected} {name} tokens next to each other, got {tokens}")
    sides = grid.rows // merge, grid.columns // merge
    # Intervals are float32 in transformers, too.
    times = (np.arange(grid.times, dtype=np.float32) * np.float32(grid.interval)).astype(np.int64)
    found = np.stack(np.meshgrid(times, *map(np.arange, sides), indexing="ij")).reshape(3, -1)
    return found, max(sides)
