"""Proof that a model takes each time of a video as an image, and of where its tokens are.

As in Qwen2-VL, where all tokens of a video follow each other, and in Qwen3-VL, where those of each
time do, apart from others by the tokens of a timestamp.
"""

from __future__ import annotations

import functools
import inspect
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from ...generation.images.patch_positions import IMAGE, VIDEO, Grid, token_positions
from ..proof import NotProven, attempt, compare
from ..replaced_functions import observed_calls

if TYPE_CHECKING:
    from ..image_text_parts import EmbeddingPart
    from .patches import PatchPart

# Of the file's metadata: the token of videos, whether those of each time are apart, and how many
# positions in time a second has, if the model is told of seconds.
_TOKEN, _APART, _PER_SECOND = "video_token_id", "video_times_apart", "positions_per_second"
_SECONDS = "second_per_grid_ts"  # an argument: seconds between the times of each video
_GRIDS = (3, 2, 1), (2, 1, 2)  # times, and rows and columns of tokens, of two videos
_SECONDS_OF = (2.6, 0.3)  # of which positions are rounded down
_IMAGE = (2, 2)  # rows and columns of tokens of an image between them


class Videos(NamedTuple):
    """How a model takes videos."""

    token: int
    times_apart: bool
    per_second: float  # 0: each time is one position

    def metadata(self) -> dict[str, str]:
        """Return what a runner has to know."""
        known = {_TOKEN: str(self.token), _APART: str(int(self.times_apart))}
        return known | ({_PER_SECOND: str(self.per_second)} if self.per_second else {})

    def grids(self, merge: int) -> list[Grid]:
        """Return the grids of the proof's videos whose tokens follow each other."""
        grids = [Grid(n, rows * merge, columns * merge) for n, rows, columns in _GRIDS]
        if self.times_apart:
            return [grid._replace(times=1) for grid in grids for _ in range(grid.times)]
        if not self.per_second:
            return grids
        intervals = (np.float32(each) * np.float32(self.per_second) for each in _SECONDS_OF)
        return [
            grid._replace(interval=float(interval))
            for grid, interval in zip(grids, intervals, strict=True)
        ]


def videos_of(model: Any, images: PatchPart, embedding: EmbeddingPart) -> Videos | None:
    """Return how a model takes videos; None where it takes none, or in a way that is not proven."""
    base, config = model.base_model, model.config
    token = getattr(config, _TOKEN, None)
    find = getattr(base, "get_rope_index", None)
    if find is None or not isinstance(token, int) or not hasattr(base, "get_video_features"):
        return None
    if token == embedding.image_token or embedding.kinds.taken:
        return None
    told = _SECONDS in inspect.signature(find).parameters
    per_second = float(getattr(config.vision_config, "tokens_per_second", 1)) if told else 0.0
    for times_apart in (False, True):
        videos = Videos(token, times_apart, per_second)
        try:
            attempt(_prove, model, images, embedding, videos)
        except NotProven:
            continue
        return videos
    return None


def _prove(model: Any, images: PatchPart, embedding: EmbeddingPart, videos: Videos) -> None:
    """Compare embeddings and positions of a row of two videos and an image between them."""
    merge, image_token = images.merge, embedding.image_token
    text = next(n for n in range(3) if n not in (image_token, videos.token))
    image = images.image_of(*(side * merge for side in _IMAGE))
    frames = [
        images.image_of(rows * merge, columns * merge)
        for times, rows, columns in _GRIDS
        for _ in range(times)
    ]
    # Images of one size are alike: each gets the patches in another order.
    frames = [(pixels.roll(i, 0), *others) for i, (pixels, *others) in enumerate(frames)]
    row, parts, shown = [text], [], iter(frames)
    for number, grid in enumerate(grids := videos.grids(merge)):
        if number == len(grids) - 1:
            row += [*[image_token] * Grid(1, *_IMAGE).tokens(1), text]
            parts.append(images(*image))
        row += [*[videos.token] * grid.tokens(merge), text]
        parts += [images(*next(shown)) for _ in range(grid.times)]
    ids = torch.tensor([row])
    kinds = torch.where(ids == videos.token, VIDEO, torch.where(ids == image_token, IMAGE, 0))
    sizes = {
        "image_grid_thw": torch.tensor([[1, *(side * merge for side in _IMAGE)]]),
        "video_grid_thw": torch.tensor([[n, *(s * merge for s in sides)] for n, *sides in _GRIDS]),
        **({_SECONDS: torch.tensor(_SECONDS_OF)} if videos.per_second else {}),
    }
    _prove_positions(model, ids, kinds, sizes, videos, merge)
    run = functools.partial(
        model,
        input_ids=ids,
        mm_token_type_ids=kinds,
        pixel_values=images.as_given([image])["pixel_values"],
        pixel_values_videos=images.as_given(frames)["pixel_values"],
        use_cache=False,
        **sizes,
    )
    ((_, given),) = observed_calls(run, model.get_decoder(), "forward")
    embedded = embedding(torch.where(kinds == VIDEO, image_token, ids), torch.cat(parts))
    of_layers = given.get("deepstack_visual_embeds") or []
    own = embedding.tokens.size
    compare(given["inputs_embeds"].float(), embedded[..., :own], "embeddings of a video")
    stacked = embedded[kinds > 0].split(own, -1)[1:]
    for expected, actual in zip(of_layers, stacked, strict=True):
        compare(expected.float(), actual, "features of a video that layers take")


def _prove_positions(
    model: Any,
    ids: torch.Tensor,
    kinds: torch.Tensor,
    sizes: dict[str, torch.Tensor],
    videos: Videos,
    merge: int,
) -> None:
    mask = torch.ones_like(ids)
    own, deltas = model.base_model.get_rope_index(ids, kinds, attention_mask=mask, **sizes)
    of_image = Grid(1, *(side * merge for side in _IMAGE))
    grids = {IMAGE: [of_image], VIDEO: videos.grids(merge)}
    found, following = token_positions(kinds.numpy(), mask.numpy(), grids, merge)
    if not own.equal(torch.from_numpy(found)):
        raise NotProven("expected times of a video to have positions by their number or seconds")
    if not (deltas.flatten() + ids.shape[1]).equal(torch.from_numpy(following)):
        raise NotProven("expected text to follow the highest position of a video")
