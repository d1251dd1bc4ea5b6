"""Proof that the positions of tokens that the host computes are the model's own."""

from __future__ import annotations

import inspect
from typing import Any

import torch

from ...generation.images.patch_positions import IMAGE, grids_of, token_positions
from ..proof import NotProven

_KINDS = "mm_token_type_ids"  # an argument: which tokens are of images
_GRIDS = (2, 3), (1, 1), (4, 1), (1, 5)  # rows and columns of tokens of images


def borders_of(model: Any) -> tuple[list[int], list[int]]:
    """Return the tokens before and after an image by which a model finds it, as Qwen2.5-Omni.

    There are none where the model is told which tokens are of images.
    """
    find = getattr(model.base_model, "get_rope_index", None)
    taken = {} if find is None else inspect.signature(find).parameters
    if find is None or any(p.name == _KINDS or p.kind is p.VAR_KEYWORD for p in taken.values()):
        return [], []
    config = model.config
    names = "vision_start_token_id", "vision_end_token_id"
    missing = [name for name in names if not isinstance(getattr(config, name, None), int)]
    if missing:
        raise NotProven(f"expected {' and '.join(missing)} in the configuration")
    return [config.vision_start_token_id], [config.vision_end_token_id]


def check_token_positions(model: Any, merge: int) -> None:
    """Raise NotProven unless ``token_positions`` has the positions of ``model.get_rope_index``.

    Of rows padded on the left, in which images are at the start, at the end and between tokens of
    text; and of the tokens that follow.
    """
    token = int(model.config.image_token_id)
    text = 0 if token else 1
    find = model.base_model.get_rope_index
    before, after = borders_of(model)
    first, second, third, fourth = (
        [*before, *[token] * rows * columns, *after] for rows, columns in _GRIDS
    )
    rows = [
        [*first, text, text, *second, text],
        [text, *third, text, text, *fourth],
        [text, text, text],
    ]
    longest = max(map(len, rows))
    ids = torch.tensor([[text] * (longest - len(row)) + row for row in rows])
    mask = torch.tensor([[0] * (longest - len(row)) + [1] * len(row) for row in rows])
    grids = torch.tensor([[1, rows * merge, columns * merge] for rows, columns in _GRIDS])
    told = {} if before else {_KINDS: (ids == token).long()}
    own, deltas = find(ids, image_grid_thw=grids, attention_mask=mask, **told)
    kinds = (ids == token).numpy() * IMAGE
    computed = token_positions(kinds, mask.numpy(), {IMAGE: grids_of(grids.numpy())}, merge)
    found, following = map(torch.from_numpy, computed)
    shown = mask.bool()
    if own.shape != found.shape or not own[:, shown].equal(found[:, shown]):
        raise NotProven("expected images to have positions in time, rows and columns, got others")
    if not (deltas.flatten() + mask.sum(1)).equal(following):
        raise NotProven("expected text to follow the highest position of an image, got other ones")
