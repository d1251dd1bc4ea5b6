"""Models that take each time of a video as an image: logits and tokens equal to transformers'."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from onnxruntime_npu.errors import ArgumentError
from onnxruntime_npu.generation import ImageTextLM

from .conftest import Forced
from .image_runs import IMAGE_TOKEN, PROVIDERS, arrays, exports_of
from .test_image_patches import VALUES, tiny_model

VIDEO_TOKEN = 95
IMAGES = [[1, 2, 4], [1, 4, 2]]
VIDEOS = [[3, 4, 2], [2, 2, 2]]  # times, rows and columns of patches
SECONDS = [2.6, 40.0]  # the last token of a row follows a time, and not its own place
FOLLOWING, APART = ("qwen2_vl", "qwen2_5_vl"), ("qwen3_vl", "qwen3_5")
KINDS = ["qwen2_5_vl", "qwen3_vl", *(pytest.param(k, marks=pytest.mark.slow) for k in
         ("qwen2_vl", "qwen3_5"))]  # fmt: skip


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """Return ``exports_of`` models whose parts take patches."""
    return exports_of(tiny_model, tmp_path_factory)


def video_tokens(kind, grid):
    """Return the tokens of a video; where times are apart, a text says which it is."""
    times, rows, columns = grid
    of_time = [VIDEO_TOKEN] * (rows * columns // 4)
    apart = [[7 + time] for time in range(times)] if kind in APART else [[]] * times
    return [token for before in apart for token in (*before, *of_time)]


def inputs_of(kind):
    """Return rows of two images and a video between them, of a video at the end, and of text."""
    first, second = ([IMAGE_TOKEN] * (rows * columns // 4) for _, rows, columns in IMAGES)
    long, short = (video_tokens(kind, grid) for grid in VIDEOS)
    rows = [[3, *first, 8, *long, 9, *second, 10], [4, *short], [20, 21, 22]]
    longest = max(map(len, rows))
    generator = torch.Generator().manual_seed(9)

    def patches(grids):
        count = sum(int(np.prod(grid)) for grid in grids)
        return torch.randn(count, *VALUES, generator=generator)

    return {
        "input_ids": torch.tensor([[0] * (longest - len(row)) + row for row in rows]),
        "attention_mask": torch.tensor([[0] * (longest - len(r)) + [1] * len(r) for r in rows]),
        "pixel_values": patches(IMAGES),
        "image_grid_thw": torch.tensor(IMAGES),
        "pixel_values_videos": patches(VIDEOS),
        "video_grid_thw": torch.tensor(VIDEOS),
        **({"second_per_grid_ts": torch.tensor(SECONDS)} if kind == "qwen2_5_vl" else {}),
    }


def answers(model, inputs, count):
    """Return the likeliest tokens of every row, each at the place that transformers gives it.

    That follows the highest one; ``generate`` lets it follow that of the last token, which a video
    may outlast.
    """
    given, mask, tokens = inputs, inputs["attention_mask"], []
    with torch.no_grad():
        for _ in range(count):
            out = model(**given, use_cache=True)
            tokens.append(out.logits[:, -1].argmax(-1))
            mask = torch.nn.functional.pad(mask, (0, 1), value=1)
            given = {
                "input_ids": tokens[-1][:, None],
                "attention_mask": mask,
                "position_ids": (mask.sum(1, keepdim=True) - 1 + model.model.rope_deltas).repeat(
                    3, 1, 1
                ),
                "past_key_values": out.past_key_values,
            }
    return torch.stack(tokens, 1).tolist()


@pytest.mark.parametrize("kind", KINDS)
def test_logits_and_generated_tokens_equal_those_of_transformers(exported, kind):
    model, directory, report = exported(kind)
    assert report.gaps == []
    inputs = inputs_of(kind)
    ids, given = arrays(inputs)
    kinds = (inputs["input_ids"] == IMAGE_TOKEN).int() + 2 * (inputs["input_ids"] == VIDEO_TOKEN)
    told = {**inputs, "mm_token_type_ids": kinds}
    with torch.no_grad():
        expected = model(**told, use_cache=False).logits[:, -1].numpy()
        others = {**told, "pixel_values_videos": told["pixel_values_videos"].flip(0)}
        changed = model(**others, use_cache=False).logits[:, -1].numpy()
    tolerance = 1e-4 * np.abs(expected).max()  # of float32 sums in another order
    assert (np.abs(changed - expected).max(1)[:2] > 100 * tolerance).all()  # videos matter
    for provider in PROVIDERS:
        lm = ImageTextLM(directory, providers=[provider])
        lm.stop_tokens = frozenset()
        sampler = Forced([[12]] * len(ids))
        lm.generate_from(ids, **given, max_new_tokens=1, sampler=sampler)
        np.testing.assert_allclose(sampler.logits[0], expected, rtol=0, atol=tolerance)
        result = lm.generate_from(ids, **given, max_new_tokens=7)
        assert result.tokens == answers(model, told, 7)


def test_the_token_of_a_video_is_one_of_text_without_any(exported):
    model, directory, _ = exported("qwen3_vl")
    ids = np.array([[5, VIDEO_TOKEN, 6]])
    with torch.no_grad():
        expected = model.generate(torch.tensor(ids), max_new_tokens=4, eos_token_id=None)
    lm = ImageTextLM(directory, providers=PROVIDERS[1:])
    lm.stop_tokens = frozenset()
    assert lm.generate_from(ids, max_new_tokens=4).tokens == expected[:, 3:].tolist()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"video_grid_thw": None, "second_per_grid_ts": None},
            r"pixel_values_videos of float32 and shape \[0, 96\]",
        ),
        ({"pixel_values_videos": None}, r"shape \[32, 96\], as video_grid_thw says"),
        ({"video_grid_thw": np.array([[0, 4, 2]])}, "of 1 or more and multiples of 2 .* .0, 4, 2"),
        ({"video_grid_thw": np.array([[1, 4, 3]])}, "of 1 or more and multiples of 2 .* .1, 4, 3"),
        ({"video_grid_thw": np.array(VIDEOS)[::-1]}, "expected 2, those of one video, video token"),
        ({"second_per_grid_ts": np.ones(3)}, "second_per_grid_ts of 0 or more for each of 2 video"),
        ({"second_per_grid_ts": np.array([1, np.nan])}, "second_per_grid_ts of 0 or more"),
        ({"input_ids": np.array([[VIDEO_TOKEN] * 6])}, "expected 12 image tokens for 4 images"),
    ],
)
def test_wrong_videos_raise(exported, changes, message):
    ids, given = arrays(inputs_of("qwen2_5_vl"))
    if "input_ids" in changes:
        ids = changes["input_ids"]
        changes = {"attention_mask": None}
    lm = ImageTextLM(exported("qwen2_5_vl")[1], providers=PROVIDERS[1:])
    with pytest.raises(ArgumentError, match=message):
        lm.generate_from(ids, **{**given, **changes})


def test_videos_are_refused_where_their_tokens_are_those_of_images(exported):
    """As in GLM-4V, whose processor says by kinds of tokens which are of a video."""
    ids, given = arrays(inputs_of("qwen3_vl"))
    lm = ImageTextLM(exported("glm4v")[1], providers=PROVIDERS[1:])
    with pytest.raises(ArgumentError, match=r"image_grid_thw of images, .*, got pixel_values_vid"):
        lm.generate_from(ids, **given)
