"""Which features of an image's tiles take the places of its tokens, as in LLaVA-NeXT.

An image is resized to the best of some resolutions and cut into tiles; before them comes the whole
image as a tile of its own. Features of the tiles are put together to those of the resized image,
without its padding, perhaps fewer by interpolation, and each row of them ends with a new line.
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass

import numpy as np

from ...errors import ArgumentError

_FEWER_FROM = 1.1  # features in a direction to those that there may be: what is less is kept


@dataclass(frozen=True)
class TileLayout:
    """Of a model.

    Attributes:
        resolutions: height and width in pixels of the resized images.
        pixels: height and width of a tile.
        side: rows and columns of a tile's features.
        most_tiles: of a resized image, as large as which its features may be; None: any.
    """

    resolutions: list[list[int]]
    pixels: int
    side: int
    most_tiles: int | None

    @classmethod
    def of_text(cls, text: str) -> TileLayout:
        """Return the layout that ``text`` wrote."""
        return cls(**json.loads(text))

    def text(self) -> str:
        """Return the layout as JSON."""
        return json.dumps(asdict(self))

    def tiles(self, size: tuple[int, int]) -> int:
        """Return the number of tiles of an image of a size, height and width, with the whole."""
        rows, columns = self._grid(size)
        return 1 + rows * columns

    def places(self, size: tuple[int, int] | None) -> tuple[np.ndarray, np.ndarray]:
        """Return rows int64 [F, N] of features and their weights float32 [F, N] for each token.

        Rows are the features of all tiles, and last the new line; N is 4 where a model
        interpolates, or 1. ``size`` is None for an image that is one tile only.
        """
        whole = np.arange(self.side**2)
        if size is None:
            rows = np.append(whole, len(whole))[:, None]
            return self._padded(rows, np.ones(rows.shape, np.float32))
        line = self.tiles(size) * len(whole)
        rows, weights = self._fewer(self._unpadded(size))
        height = rows.shape[0]
        rows = np.pad(rows, ((0, 0), (0, 1), (0, 0)), constant_values=line)
        weights = np.pad(weights, ((0, 0), (0, 1), (0, 0)))
        weights[:, -1, 0] = 1
        many = rows.shape[-1]
        before = np.tile(whole[:, None], many), np.eye(1, many, dtype=np.float32)
        rows = rows.reshape(height * rows.shape[1], many)
        weights = weights.reshape(rows.shape)
        return self._padded(
            np.concatenate([before[0], rows]),
            np.concatenate([np.repeat(before[1], len(whole), 0), weights]),
        )

    def _padded(self, rows: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return as many rows for each token as the model's graph takes."""
        missing = (1 if self.most_tiles is None else 4) - rows.shape[1]
        padding = ((0, 0), (0, missing))
        return (
            np.pad(rows, padding).astype(np.int64),
            np.pad(weights, padding).astype(np.float32),
        )

    def _grid(self, size: tuple[int, int]) -> tuple[int, int]:
        """Return rows and columns of tiles of the resolution that loses least of an image."""
        height, width = size

        def kept(rows: int, columns: int) -> int:
            scale = min(columns / width, rows / height)
            return min(int(width * scale) * int(height * scale), height * width)

        def merit(resolution: list[int]) -> tuple[int, int]:
            return kept(*resolution), kept(*resolution) - resolution[0] * resolution[1]

        best = max(self.resolutions, key=merit)  # the first of equals, as transformers
        if kept(*best) == 0:
            raise ArgumentError(
                f"expected images that are as large as a pixel when resized to one of "
                f"{self.resolutions}, got height and width {list(size)}"
            )
        return best[0] // self.pixels, best[1] // self.pixels

    def _unpadded(self, size: tuple[int, int]) -> np.ndarray:
        """Return the rows of features [height, width] of the resized image without its padding."""
        rows, columns = self._grid(size)
        side = self.side
        tiles = np.arange(side**2, (1 + rows * columns) * side**2)
        by_row = tiles.reshape(rows, columns, side, side).transpose(0, 2, 1, 3)
        grid = by_row.reshape(rows * side, columns * side)
        (height, width), (own_height, own_width) = grid.shape, size
        if own_width / own_height > width / height:
            padding = (height - int(round(own_height * (width / own_width), 7))) // 2
            return grid[padding : height - padding]
        padding = (width - int(round(own_width * (height / own_height), 7))) // 2
        return grid[:, padding : width - padding]

    def _fewer(self, grid: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return rows and weights [height, width, N] of a grid that is not too large."""
        height, width = grid.shape
        ratio = 0.0
        if self.most_tiles is not None:
            ratio = math.sqrt(height * width / (self.most_tiles * self.side**2))
        if ratio <= _FEWER_FROM:
            return grid[..., None], np.ones((*grid.shape, 1), np.float32)
        rows, of_rows = _between(height, int(height // ratio))
        columns, of_columns = _between(width, int(width // ratio))
        places = grid[rows[:, None, :, None], columns[None, :, None, :]]
        weights = of_rows[:, None, :, None] * of_columns[None, :, None, :]
        return places.reshape(*places.shape[:2], 4), weights.reshape(*places.shape[:2], 4)


def _between(count: int, fewer: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the two neighbours [fewer, 2] of each place and their weights, as F.interpolate."""
    places = np.maximum((np.arange(fewer) + 0.5) * count / fewer - 0.5, 0)
    first = np.floor(places).astype(np.int64)
    after = places - first
    return (
        np.stack([first, np.minimum(first + 1, count - 1)], 1),
        np.stack([1 - after, after], 1).astype(np.float32),
    )
