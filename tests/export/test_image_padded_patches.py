"""Models of images whose patches are padded: logits and tokens equal to transformers'."""

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
    LAYERS,
    PROVIDERS,
    TEXT,
    check_runs,
    emitted_by,
    exports_of,
)

SHAPES = [[4, 6], [2, 2], [8, 2]]  # rows and columns of patches of three images
PATCHES = 26  # of each, with padding
VALUES = 3 * 4 * 4  # of a patch: channels, rows, columns
SIDE = 4  # of the square of learned positions: fewer or more than the images have


def tiny_model(kind):
    """Return a random model whose activations are large enough for mistakes to show."""
    torch.manual_seed(5)
    config = transformers.AutoConfig.for_model(
        kind,
        vision_config={**LAYERS, "num_hidden_layers": 2, "patch_size": 4, "num_patches": SIDE**2},
        text_config={**TEXT, "layer_types": ["conv", "full_attention"]},
        image_token_id=IMAGE_TOKEN,
        projector_hidden_size=48,
    )
    return enlarge(transformers.AutoModelForImageTextToText.from_config(config).eval())


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """Return ``exports_of`` the models of this file."""
    return exports_of(tiny_model, tmp_path_factory)


@pytest.fixture(scope="module")
def inputs():
    """Return rows of two images next to each other, of one and of none, padded on the left."""
    first, second, third = ([IMAGE_TOKEN] * (rows * columns // 4) for rows, columns in SHAPES)
    rows = [[5, *first, *second, 9, 10], [*third, 4], [20, 21, 22]]
    longest = max(map(len, rows))
    shapes = torch.tensor(SHAPES)
    return {
        "input_ids": torch.tensor([[0] * (longest - len(row)) + row for row in rows]),
        "attention_mask": torch.tensor([[0] * (longest - len(r)) + [1] * len(r) for r in rows]),
        # Not zeros where it is padding, which nothing may depend on.
        "pixel_values": torch.randn(3, PATCHES, VALUES, generator=torch.Generator().manual_seed(9)),
        "spatial_shapes": shapes,
        "pixel_attention_mask": (torch.arange(PATCHES) < shapes.prod(1)[:, None]).int(),
    }


@pytest.mark.parametrize("kind", ["lfm2_vl"])
def test_logits_and_generated_tokens_equal_those_of_transformers(exported, inputs, kind):
    model, directory, report = exported(kind)
    assert report.gaps == [] and report.kept == []
    vision, embedding, text = emitted_by(report)
    # The projector and the layers of the tower have activations; norms are two for each layer, of
    # the tower and of the projector.
    assert vision == {"npu_fusion_attention": 2, "npu_gelu": 3, "npu_layer_norm_eval": 6}
    assert embedding == {}
    assert text == {
        "npu_add_rms_norm": 4,
        "npu_fused_causal_conv1d": 1,
        "npu_fused_infer_attention_score": 1,
        "npu_rms_norm": 3,
        "npu_rotary_mul": 2,
        "npu_swiglu": 2,
    }
    turned = {**inputs, "spatial_shapes": inputs["spatial_shapes"].flip(1)}
    check_runs(model, directory, inputs, turned)


@pytest.mark.parametrize("shape", [[2, 2], [2, 20], [12, 2], [4, 4], [8, 10]])
def test_features_of_images_of_any_size_equal_those_of_transformers(exported, shape):
    model, directory, _ = exported("lfm2_vl")
    count = shape[0] * shape[1]
    pixels = torch.randn(1, count, VALUES, generator=torch.Generator().manual_seed(3))
    shapes, mask = torch.tensor([shape]), torch.ones(1, count, dtype=torch.int32)
    with torch.no_grad():
        (expected,) = model.get_image_features(pixels, shapes, mask).pooler_output
    given = {"pixel_values": pixels.numpy(), "spatial_shapes": shapes.numpy()}
    images = ImageTextLM(directory, providers=PROVIDERS[1:]).images
    (actual,) = images.features(None, given)
    tolerance = 1e-4 * expected.abs().max().item()
    np.testing.assert_allclose(actual, expected.numpy(), rtol=0, atol=tolerance)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"pixel_values": None}, r"expected spatial_shapes \[0, 2\]"),
        ({"pixel_values": np.zeros((3, 26, 47), np.float32)}, r"shape \[images, patches, 48\]"),
        ({"pixel_values": np.zeros((78, 48), np.float32)}, r"shape \[images, patches, 48\]"),
        ({"pixel_values": np.zeros((3, 26, 48), np.uint8)}, "pixel_values of float32"),
        ({"spatial_shapes": None}, r"expected spatial_shapes \[3, 2\] .*, got \[0, 2\]"),
        ({"spatial_shapes": np.ones((3, 3), np.int64)}, r"spatial_shapes as integers \[images, 2"),
        ({"spatial_shapes": np.ones((3, 2))}, r"spatial_shapes as integers \[images, 2"),
        ({"spatial_shapes": np.array([[4, 6], [2, 3], [8, 2]])}, "multiples of 2 .*, got .2, 3"),
        ({"spatial_shapes": np.array([[4, 6], [2, 2], [0, 2]])}, "multiples of 2 .*, got .0, 2"),
        ({"spatial_shapes": np.array([[4, 6], [2, 2], [-2, -2]])}, "of 2 .*, got .-2, -2"),
        ({"spatial_shapes": np.array([[4, 8], [2, 2], [8, 2]])}, "at most 26 .*, got .4, 8"),
        ({"spatial_shapes": np.full((3, 2), 2**62)}, "at most 26 patches"),
        ({"spatial_shapes": np.array([[2, 2]] * 3)}, r"pixel_attention_mask \[3, 26\] of 1 for"),
        ({"pixel_attention_mask": np.ones((3, 26), np.int64)}, r"pixel_attention_mask \[3, 26\]"),
        ({"pixel_attention_mask": np.ones((3, 25), np.int64)}, r"int64 \[3, 25\]"),
        ({"pixel_attention_mask": np.ones((3, 26))}, r"float64 \[3, 26\]"),
        ({"image_sizes": np.ones((3, 2), np.int64)}, "and pixel_attention_mask of images"),
        ({"input_ids": np.array([[IMAGE_TOKEN] * 6])}, "expected 11 image tokens for 3 images"),
    ],
)
def test_wrong_inputs_raise(exported, inputs, changes, message):
    given = {name: tensor.numpy() for name, tensor in inputs.items()}
    if "input_ids" in changes:
        del given["attention_mask"]
    lm = ImageTextLM(exported("lfm2_vl")[1], providers=PROVIDERS[1:])
    with pytest.raises(ArgumentError, match=message) as caught:
        lm.generate_from(**{**given, **changes})
    assert "\n" not in str(caught.value)
