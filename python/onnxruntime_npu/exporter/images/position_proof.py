"""Proof that the positions of tokens that the host computes are the model's own."""

from __future__ import annotations

from typing import Any

import torch

from ...generation.images.patch_positions import token_positions
from ..proof import NotProven

_GRIDS = (2, 3), (1, 1), (4, 1), (1, 5)  # rows and columns of tokens of images


def check_token_positions(model: Any, merge: int) -> None:
    """Raise NotProven unless ``token_positions`` has the positions of ``model.get_rope_index``.

    Of rows padded on the left, in which images are at the start, at the end and between tokens of
    text; and of the tokens that follow.
    """
    token = int(model.config.image_token_id)
    text = 0 if token else 1
    first, second, third, fourth = ([token] * rows * columns for rows, columns in _GRIDS)
    rows = [
        [*first, text, text, *second, text],
        [text, *third, text, text, *fourth],
        [text, text, text],
    ]
    longest = max(map(len, rows))
    ids = torch.tensor([[text] * (longest - len(row)) + row for row in rows])
    mask = torch.tensor([[0] * (longest - len(row)) + [1] * len(row) for row in rows])
    grids = torch.tensor([[1, rows * merge, columns * merge] for rows, columns in _GRIDS])
    own, deltas = model.base_model.get_rope_index(
        ids,
        mm_token_type_ids=(ids == token).long(),
        image_grid_thw=grids,
        attention_mask=mask,
    )
    found, following = map(
        torch.from_numpy, token_positions(ids.numpy(), mask.numpy(), token, grids.numpy(), merge)
    )
    shown = mask.bool()
    if own.shape != found.shape or not own[:, shown].equal(found[:, shown]):
        raise NotProven("expected images to have positions in time, rows and columns, got others")
    if not (deltas.flatten() + mask.sum(1)).equal(following):
        raise NotProven("expected text to follow the highest position of an image, got other ones")
