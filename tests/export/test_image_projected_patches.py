"""Models that project patches of an image one by one: logits and tokens equal to transformers'."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import transformers
from onnxruntime_npu.errors import ArgumentError
from onnxruntime_npu.generation import ImageTextLM

from .conftest import enlarge
from .image_runs import IMAGE_TOKEN, PROVIDERS, TEXT, arrays, check_runs, emitted_by, exports_of

NEWLINE, VALUES = 95, 3 * 4 * 4
GRIDS = [(2, 3), (1, 2), (3, 1)]  # rows and columns of patches of three images


def tiny_model(kind):
    """Return a random model whose activations are large enough for mistakes to show."""
    torch.manual_seed(5)
    text = {**TEXT, "model_type": "persimmon", "hidden_act": "relu2"}
    config = transformers.AutoConfig.for_model(
        kind, patch_size=4, image_token_id=IMAGE_TOKEN, text_config=text, **TEXT
    )
    return enlarge(transformers.AutoModelForImageTextToText.from_config(config).eval())


def tokens_of(grid):
    rows, columns = grid
    return rows * [*[IMAGE_TOKEN] * columns, NEWLINE]


def inputs_of():
    """Return rows of two images, of one and of none, padded on the left."""
    first, second, third = map(tokens_of, GRIDS)
    rows = [[*first, 8, *second, 9, 10], [3, *third, 4], [20, 21, 22]]
    longest = max(map(len, rows))
    patches = sum(rows * columns for rows, columns in GRIDS)
    return {
        "input_ids": torch.tensor([[0] * (longest - len(row)) + row for row in rows]),
        "attention_mask": torch.tensor([[0] * (longest - len(r)) + [1] * len(r) for r in rows]),
        "pixel_values": torch.randn(patches, VALUES, generator=torch.Generator().manual_seed(9)),
    }


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """Return ``exports_of`` the models of this file."""
    return exports_of(tiny_model, tmp_path_factory)


def test_logits_and_generated_tokens_equal_those_of_transformers(exported):
    model, directory, report = exported("fuyu")
    assert report.gaps == []
    vision, embedding, text = emitted_by(report)
    assert vision == embedding == {}
    assert text["npu_fused_infer_attention_score"] == 2
    inputs = inputs_of()
    changed = {**inputs, "pixel_values": inputs["pixel_values"].flip(1)}
    check_runs(model, directory, inputs, changed)


def test_patches_are_taken_by_their_former_name(exported):
    lm = ImageTextLM(exported("fuyu")[1], providers=PROVIDERS[1:])
    ids, given = arrays(inputs_of())
    expected = lm.generate_from(ids, **given, max_new_tokens=3).tokens
    given["image_patches"] = given.pop("pixel_values")
    assert lm.generate_from(ids, **given, max_new_tokens=3).tokens == expected


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"pixel_values": np.zeros((11, 47), np.float32)}, r"shape \[patches, 48\], .* \[11, 47\]"),
        ({"pixel_values": np.zeros((11, 48), np.int64)}, "pixel_values of float32"),
        (
            {"pixel_values": np.zeros((10, 48), np.float32)},
            "expected 10 image tokens, one for each",
        ),
        ({"pixel_values": None}, "expected 0 image tokens, one for .*, got 11"),
        ({"image_patches": np.zeros((11, 48), np.float32)}, "one of pixel_values and image_patch"),
    ],
)
def test_wrong_patches_raise(exported, changes, message):
    lm = ImageTextLM(exported("fuyu")[1], providers=PROVIDERS[1:])
    ids, given = arrays(inputs_of())
    with pytest.raises(ArgumentError, match=message):
        lm.generate_from(ids, **{**given, **changes})
