"""Models of padded images of any size, whose features are resampled, as Idefics 2."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import transformers
from onnxruntime_npu.errors import ArgumentError
from onnxruntime_npu.generation import ImageTextLM

from .conftest import enlarge
from .image_runs import (
    IMAGE_TOKEN,
    PROVIDERS,
    TEXT,
    VISION,
    arrays,
    check_runs,
    emitted_by,
    exports_of,
)

FEATURES = 3
SIZES = [[8, 20], [16, 16], [14, 6]]  # height and width; the last has parts of patches
LARGEST = 16, 20


def tiny_model(kind="idefics2"):
    """Return a random model whose activations are large enough for mistakes to show."""
    torch.manual_seed(5)
    config = transformers.AutoConfig.for_model(
        kind,
        vision_config={**VISION, "image_size": 24, "patch_size": 4},  # 6 x 6 learned positions
        text_config={**TEXT, "model_type": "mistral", "pad_token_id": 0},
        perceiver_config={
            **{"resampler_n_latents": FEATURES, "resampler_depth": 2, "resampler_n_heads": 2},
            **{"resampler_head_dim": 16, "num_key_value_heads": 1, "hidden_size": 64},
        },
        image_token_id=IMAGE_TOKEN,
    )
    model = transformers.AutoModelForImageTextToText.from_config(config).eval()
    torch.nn.init.normal_(model.model.connector.perceiver_resampler.latents)  # all alike
    return enlarge(model)


def inputs_of():
    """Return rows of two images, of one and of none, padded on the left, as a processor does."""
    image = [IMAGE_TOKEN] * FEATURES
    rows = [[5, *image, 7, 8, *image, 9], [3, *image, 4], [20, 21, 22]]
    longest = max(map(len, rows))
    pixels, shown = torch.zeros(3, 2, 3, *LARGEST), torch.zeros(3, 2, *LARGEST, dtype=torch.int64)
    generator = torch.Generator().manual_seed(9)
    for (row, place), (height, width) in zip([(0, 0), (0, 1), (1, 0)], SIZES, strict=True):
        pixels[row, place, :, :height, :width] = torch.randn(3, height, width, generator=generator)
        shown[row, place, :height, :width] = 1
    return {
        "input_ids": torch.tensor([[0] * (longest - len(row)) + row for row in rows]),
        "attention_mask": torch.tensor([[0] * (longest - len(r)) + [1] * len(r) for r in rows]),
        "pixel_values": pixels,
        "pixel_attention_mask": shown,
    }


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """Return (model, directory, report) of an export."""
    return exports_of(tiny_model, tmp_path_factory)("idefics2")


def test_logits_and_generated_tokens_equal_those_of_transformers(exported):
    model, directory, report = exported
    assert report.gaps == [] and report.kept == []
    vision, embedding, text = emitted_by(report)
    assert vision["npu_fusion_attention"] == 4 and embedding == {}  # of the tower and of queries
    assert text["npu_fused_infer_attention_score"] == 2
    assert ImageTextLM(directory, providers=PROVIDERS[1:]).tokens_per_image == FEATURES
    inputs = inputs_of()
    changed = {**inputs, "pixel_values": inputs["pixel_values"].flip(2)}
    check_runs(model, directory, inputs, changed)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"pixel_values": None}, "3 image tokens for each of 0 images, got 9"),
        ({"pixel_attention_mask": np.ones((3, 2, 9, 9))}, r"\[3, 2, 16, 20\], got \[3, 2, 9, 9\]"),
        ({"pixel_attention_mask": np.zeros((3, 2, *LARGEST))}, "of 1 for at least 4 rows and col"),
    ],
)
def test_wrong_images_raise(exported, changes, message):
    ids, given = arrays(inputs_of())
    if "pixel_values" in changes:
        del given["pixel_attention_mask"]
    given = {name: x for name, x in {**given, **changes}.items() if x is not None}
    with pytest.raises(ArgumentError, match=message):
        ImageTextLM(exported[1], providers=PROVIDERS[1:]).generate_from(ids, **given)
