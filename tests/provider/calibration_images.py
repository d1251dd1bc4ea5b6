"""Images for onnxruntime.quantization to calibrate a model with."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from onnxruntime.quantization import CalibrationDataReader


class Images(CalibrationDataReader):
    """Four batches x [2, 3, side, side] of normal random numbers."""

    def __init__(self, rng: np.random.Generator, side: int) -> None:
        images = (rng.normal(size=(2, 3, side, side)).astype(np.float32) for _ in range(4))
        self.feeds: Iterator[dict] = iter([{"x": image} for image in images])

    def get_next(self) -> dict | None:
        return next(self.feeds, None)
