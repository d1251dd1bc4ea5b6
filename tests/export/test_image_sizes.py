"""Models of images of any size and of tiles: logits and tokens equal to transformers', errors."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch
import transformers
from onnxruntime_npu.errors import ArgumentError
from onnxruntime_npu.generation import ImageTextLM
from onnxruntime_npu.generation.images.tile_layout import TileLayout
from transformers.models.llava_next import modeling_llava_next
from transformers.models.llava_onevision import modeling_llava_onevision

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

# Height and width of the first row's two images, and of the second row's.
SIZES = {
    "any_size": [[16, 24], [8, 16], [24, 8]],
    "tiles": [[40, 21], [9, 30], [16, 50]],  # 3, 3 and 4 tiles, with the whole image
    "fewer": [[40, 21], [9, 30], [48, 50]],  # one tile of each in the first row, then 17
}
RESOLUTIONS = {
    "llava_next": [[16, 32], [32, 16], [16, 48]],
    "llava_onevision": [[16 * rows, 16 * columns] for rows in (1, 2, 4) for columns in (1, 2, 4)],
}
KINDS = {
    "mistral3": "any_size",
    "lighton_ocr": "any_size",
    "llava_next": "tiles",
    "llava_onevision": "fewer",
}
_SLOW = ("lighton_ocr",)


def tiny_model(kind):
    """Return a random model whose activations are large enough for mistakes to show."""
    torch.manual_seed(5)
    text = {**TEXT, "max_position_embeddings": 128}
    if KINDS[kind] == "any_size":
        settings = {
            "vision_config": {**VISION, "model_type": "pixtral", "patch_size": 4, "head_dim": 16},
            "text_config": {**text, "model_type": "llama", "head_dim": 16},
            "spatial_merge_size": 2,
        }
        if kind == "lighton_ocr":
            settings["text_config"]["model_type"] = "qwen3"
    else:
        tower = "clip_vision_model" if kind == "llava_next" else "siglip_vision_model"
        settings = {
            "vision_config": {**VISION, "model_type": tower, "patch_size": 4},
            "text_config": {**text, "model_type": "qwen2"},
            "image_grid_pinpoints": RESOLUTIONS[kind],
        }
        if kind == "llava_onevision":
            settings["vision_aspect_ratio"] = "anyres_max_4"
    config = transformers.AutoConfig.for_model(kind, image_token_id=IMAGE_TOKEN, **settings)
    return enlarge(transformers.AutoModelForImageTextToText.from_config(config).eval())


def inputs_of(model, kind):
    """Return rows of two images, of one and of none, padded on the left, as processors do."""
    generator = torch.Generator().manual_seed(9)
    sizes = torch.tensor(SIZES[KINDS[kind]])
    given = {"image_sizes": sizes}
    if KINDS[kind] == "any_size":
        pixels = torch.randn(3, 3, *sizes.amax(0).tolist(), generator=generator)
    else:
        layout = TileLayout(RESOLUTIONS[kind], 16, 4, None)
        tiles = [layout.tiles(size) for size in sizes.tolist()]
        if kind == "llava_onevision":
            tiles[:2] = 1, 1
            given["batch_num_images"] = torch.tensor([2, 1])
        pixels = torch.randn(3, max(tiles), 3, 16, 16, generator=generator)
    given["pixel_values"] = pixels
    with torch.no_grad():
        features = model.get_image_features(**given).pooler_output
    first, second, third = ([IMAGE_TOKEN] * len(each) for each in features)
    rows = [[5, *first, 7, 8, *second, 9, 10], [*third, 4], [20, 21, 22]]
    longest = max(map(len, rows))
    return {
        "input_ids": torch.tensor([[0] * (longest - len(row)) + row for row in rows]),
        "attention_mask": torch.tensor([[0] * (longest - len(r)) + [1] * len(r) for r in rows]),
        **given,
    }


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """Return ``exports_of`` the models of this file."""
    return exports_of(tiny_model, tmp_path_factory)


@pytest.mark.parametrize(
    "kind", [pytest.param(k, marks=pytest.mark.slow) if k in _SLOW else k for k in KINDS]
)
def test_logits_and_generated_tokens_equal_those_of_transformers(exported, kind):
    model, directory, report = exported(kind)
    assert report.gaps == [] and report.kept == []
    vision, embedding, text = emitted_by(report)
    # CLIP's last layer is not read.
    assert vision["npu_fusion_attention"] == (1 if kind == "llava_next" else 2)
    assert embedding == {} and text["npu_fused_infer_attention_score"] == 2
    inputs = inputs_of(model, kind)
    changed = {**inputs, "pixel_values": inputs["pixel_values"].flip(-1)}
    check_runs(model, directory, inputs, changed)


@pytest.mark.parametrize("most", [None, 4, 9])
def test_tokens_have_the_features_that_transformers_packs(most):
    resolutions = [[16 * rows, 16 * columns] for rows in range(1, 6) for columns in range(1, 6)]
    layout = TileLayout(resolutions, 16, 4, most)
    vision = SimpleNamespace(image_size=16, patch_size=4)
    config = SimpleNamespace(vision_config=vision, image_grid_pinpoints=resolutions)
    owner, options = SimpleNamespace(config=config), {}
    pack = modeling_llava_next.LlavaNextModel.pack_image_features
    if most is None:
        options["vision_feature_select_strategy"] = "full"
    else:
        pack = modeling_llava_onevision.LlavaOnevisionModel.pack_image_features
        options["vision_aspect_ratio"] = f"anyres_max_{most}"
    generator = torch.Generator().manual_seed(3)
    line = torch.randn(5, generator=generator)
    for size in torch.randint(5, 400, (60, 2), generator=generator).tolist():
        count = layout.tiles(size)
        assert count == modeling_llava_next.image_size_to_num_patches(size, resolutions, 16)
        tiles = torch.randn(count, 16, 5, generator=generator)
        (expected,), _ = pack(owner, [tiles], [size], image_newline=line, **options)
        places, weights = map(torch.from_numpy, layout.places(size))
        chosen = torch.cat([tiles.flatten(0, 1), line[None]])[places]
        actual = (chosen * weights[..., None]).sum(1)
        # Weights between 0 and 1 are of places that torch computes in float32.
        torch.testing.assert_close(actual, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"image_sizes": None}, r"expected image_sizes \[3, 2\] for pixel_values"),
        ({"image_sizes": np.ones((3, 2))}, r"integers \[images, 2\], height and width, got float"),
        ({"image_sizes": np.full((3, 2), 12)}, r"multiples of 8 and at most \[24, 24\]"),
        ({"image_sizes": np.full((3, 2), 32)}, r"multiples of 8 and at most \[24, 24\]"),
        ({"image_sizes": np.zeros((3, 2), np.int64)}, r"multiples of 8 and at most \[24, 24\]"),
        ({"pixel_values": np.zeros((3, 3, 24, 24), np.int8)}, "pixel_values of float32 and shape"),
        ({"pixel_values": np.zeros((3, 1, 24, 24), np.float32)}, r"\[images, 3, height, width\]"),
        ({"image_sizes": np.full((3, 2), 8)}, "expected 3 image tokens for 3 images, got 11"),
        ({"image_grid_thw": np.ones((1, 3))}, "expected pixel_values and image_sizes of images"),
    ],
)
def test_wrong_images_of_any_size_raise(exported, changes, message):
    model, directory, _ = exported("mistral3")
    ids, given = arrays(inputs_of(model, "mistral3"))
    with pytest.raises(ArgumentError, match=message):
        lm = ImageTextLM(directory, providers=PROVIDERS[1:])
        lm.generate_from(ids, **{**given, **changes})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"image_sizes": None}, r"expected image_sizes \[3, 2\] >= 1 for pixel_values"),
        ({"image_sizes": np.full((3, 2), -4)}, r"expected image_sizes \[3, 2\] >= 1"),
        ({"image_sizes": np.full((3, 2), [1, 10**6])}, "as large as a pixel when resized"),
        (
            {"pixel_values": np.zeros((3, 2, 3, 16, 16), np.float32)},
            "at least 17 tiles for an image of 48 x 50, got 2",
        ),
        ({"batch_num_images": np.array([2, 2])}, r"of 3 images, as pixel_values, got \[2, 2\]"),
        ({"batch_num_images": np.array([4, -1])}, r"as integers \[batch\] >= 0"),
        ({"batch_num_images": np.ones((1, 3))}, r"as integers \[batch\] >= 0, got float64"),
        ({"batch_num_images": np.array([3])}, "expected 51 image tokens for 3 images, got 122"),
    ],
)
def test_wrong_tiles_raise(exported, changes, message):
    model, directory, _ = exported("llava_onevision")
    ids, given = arrays(inputs_of(model, "llava_onevision"))
    with pytest.raises(ArgumentError, match=message):
        lm = ImageTextLM(directory, providers=PROVIDERS[1:])
        lm.generate_from(ids, **{**given, **changes})
