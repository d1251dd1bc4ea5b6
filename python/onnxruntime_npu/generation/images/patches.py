"""Images of any size and videos as patches, and positions of tokens, as in Qwen2-VL."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnxruntime as ort

from ...errors import ArgumentError
from .features import Prompt, checked_floats, checked_integers
from .patch_images import PatchImages
from .patch_positions import (
    IMAGE,
    VIDEO,
    Grid,
    check_grids,
    check_video_grids,
    grids_of,
    runs_of,
    token_positions,
)

_FRAMES, _VIDEO_GRIDS, _SECONDS = "pixel_values_videos", "video_grid_thw", "second_per_grid_ts"


class Patches(PatchImages):
    """pixel_values [patches, ..] float32 of all images, and image_grid_thw [images, 3].

    The latter is 1 and the rows and columns of patches of each image. A patch is [values] or
    [C, height, width], as the model takes it. Where patches are merged by an argument, too,
    image_merge_sizes [images] is the same number for all images.

    Where the model takes videos, pixel_values_videos [patches, ..] and video_grid_thw [videos, 3],
    times, rows and columns of patches, are those of all videos. Each time is an image.
    """

    kind = "patches"

    def __init__(self, metadata: Mapping[str, str], vision: ort.InferenceSession | None) -> None:
        super().__init__(metadata, vision)
        self.names = tuple(metadata["arguments"].split())
        self._in_grids = metadata["position_axes"] != "0"  # tokens; else they are counted
        token = metadata.get("video_token_id")
        self._video_token = None if token is None else int(token)
        # Whether tokens of each time are apart, and how many positions a second has.
        self._times_apart = metadata.get("video_times_apart") == "1"
        self._per_second = float(metadata.get("positions_per_second", "0"))
        if token is not None:
            self.names += (_FRAMES, _VIDEO_GRIDS)
        if self._per_second:
            self.names += (_SECONDS,)

    def shown(self, prompt: Prompt, given: Mapping[str, np.ndarray]) -> np.ndarray:
        """Return the tokens [B, S] of a prompt, those of videos as if they were of images."""
        return np.where(self._kinds(prompt, given) == VIDEO, prompt.image_token, prompt.ids)

    def features(self, prompt: Prompt, given: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        """Return the features of each image and video, in the order of their tokens."""
        of_kinds = {
            IMAGE: self._of_grids(given, "pixel_values", "image_grid_thw", self._images(given)),
            VIDEO: self._of_grids(given, _FRAMES, _VIDEO_GRIDS, self._videos(given)),
        }
        if not of_kinds[VIDEO]:
            return of_kinds[IMAGE]
        ordered = []
        for _, kind, _ in runs_of(self._kinds(prompt, given), prompt.mask):
            if of_kinds.get(kind):
                ordered.append(of_kinds[kind].pop(0))
        return [*ordered, *of_kinds[IMAGE], *of_kinds[VIDEO]]  # of which some have no tokens

    def _of_grids(
        self, given: Mapping[str, np.ndarray], name: str, sizes: str, grids: list[Grid]
    ) -> list[np.ndarray]:
        """Return the features of each grid, whose patches follow each other."""
        total = sum(grid.times * grid.rows * grid.columns for grid in grids)  # of any magnitude
        patches = checked_floats(given, name, [total, *self._patch], f", as {sizes} says")
        found, start = [], 0
        for times, rows, columns, _ in grids:
            features = []
            for _ in range(times):
                end = start + rows * columns
                features.append(self._of_image(patches[start:end], rows, columns))
                start = end
            found.append(np.concatenate(features))
        return found

    def positions(
        self, prompt: Prompt, given: Mapping[str, np.ndarray]
    ) -> tuple[np.ndarray, np.ndarray] | None:
        """Return positions in time, rows and columns, if images are grids of tokens."""
        if not self._in_grids:
            return None
        grids = {IMAGE: self._images(given), VIDEO: self._videos(given)}
        return token_positions(self._kinds(prompt, given), prompt.mask, grids, self._merge)

    def _kinds(self, prompt: Prompt, given: Mapping[str, np.ndarray]) -> np.ndarray:
        """Return the kinds of tokens [B, S]; without a video, its token is one of text."""
        kinds = np.where(prompt.ids == prompt.image_token, IMAGE, 0)
        if self._video_token is not None and len(given.get(_VIDEO_GRIDS, ())):
            kinds[prompt.ids == self._video_token] = VIDEO
        return kinds

    def _videos(self, given: Mapping[str, np.ndarray]) -> list[Grid]:
        """Return the grids of videos, or those of their times, whose tokens follow each other."""
        meaning = "the times and the rows and columns of patches"
        grids = checked_integers(given, _VIDEO_GRIDS, 3, meaning)
        check_video_grids(grids, self._merge)
        seconds = np.asarray(given.get(_SECONDS, np.ones(len(grids))), np.float32)
        if seconds.shape != (len(grids),) or not (seconds >= 0).all():
            raise ArgumentError(
                f"expected {_SECONDS} of 0 or more for each of {len(grids)} videos, got "
                f"{seconds.tolist()}"
            )
        if self._times_apart:
            return [
                Grid(1, rows, columns)
                for times, rows, columns in grids.tolist()
                for _ in range(times)
            ]
        intervals = seconds * np.float32(self._per_second or 1)
        return [
            grid._replace(interval=interval)
            for grid, interval in zip(grids_of(grids), intervals.tolist(), strict=True)
        ]

    def _images(self, given: Mapping[str, np.ndarray]) -> list[Grid]:
        meaning = "1 and the rows and columns of patches"
        grids = checked_integers(given, "image_grid_thw", 3, meaning)
        check_grids(grids, self._merge)
        merged = np.asarray(given.get("image_merge_sizes", self._merge))
        if (merged != self._merge).any():
            raise ArgumentError(
                f"expected image_merge_sizes of {self._merge} for each image, got {merged.tolist()}"
            )
        return grids_of(grids)
