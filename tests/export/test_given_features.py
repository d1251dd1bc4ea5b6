"""Models whose features of images are not exported: the text takes those that a caller has."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from onnxruntime_npu import export_image_text_to_text
from onnxruntime_npu.errors import ArgumentError, ExportError
from onnxruntime_npu.generation import ImageTextLM

from . import test_image_patches, test_image_text
from .conftest import model_kept
from .image_runs import IMAGE_TOKEN, PROVIDERS, arrays, expected_logits, forced_logits


def without_own_features(model):
    """Return the model with a method for features that no kind of images has."""
    model.get_image_features = lambda pixel_values, chart: pixel_values
    return model


def features_of(model, **images):
    with torch.no_grad():
        return torch.cat([*type(model).get_image_features(model, **images).pooler_output])


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """Return (model, directory, report) of LLaVA without a way to its features."""
    model = without_own_features(test_image_text.tiny_model("clip"))
    place = tmp_path_factory.mktemp("given")
    with model_kept(model):
        return model, place, export_image_text_to_text(model, place)


def test_logits_with_given_features_equal_those_of_transformers(exported):
    model, directory, report = exported
    assert sorted(report.parts) == ["embedding.onnx", "text.onnx"]
    assert not (directory / "vision.onnx").exists()
    (warning,) = [w for w in report.parts["text.onnx"].warnings if "vision.onnx" in w]
    assert "not written" in warning and "give generate_from image_features [F, H]" in warning
    inputs = test_image_text.inputs_of(model, 4)
    features = features_of(model, pixel_values=inputs["pixel_values"])
    del model.get_image_features
    try:
        expected = expected_logits(model, inputs)
    finally:
        without_own_features(model)
    del inputs["pixel_values"]
    for provider in PROVIDERS:
        lm = ImageTextLM(directory, providers=[provider])
        actual = forced_logits(lm, inputs, image_features=features.numpy())
        # Float32 sums in another order; see exporter/proof.py.
        np.testing.assert_allclose(actual, expected, rtol=0, atol=1e-4 * np.abs(expected).max())


def test_positions_of_grids_are_given_beside_features(tmp_path):
    model = without_own_features(test_image_patches.tiny_model("qwen2_vl"))
    export_image_text_to_text(model, tmp_path)
    rows = [
        [5, *test_image_patches.tokens_of("qwen2_vl", grid), 7]
        for grid in test_image_patches.GRIDS[:1]
    ]
    inputs = {
        "input_ids": torch.tensor(rows),
        "attention_mask": torch.ones(1, len(rows[0]), dtype=torch.int64),
        "pixel_values": torch.randn(24, 96, generator=torch.Generator().manual_seed(9)),
        "image_grid_thw": torch.tensor(test_image_patches.GRIDS[:1]),
    }
    images = {name: inputs[name] for name in ("pixel_values", "image_grid_thw")}
    features = features_of(model, **images).numpy()
    kinds = (inputs["input_ids"] == IMAGE_TOKEN).int()
    positions, _ = model.model.get_rope_index(
        inputs["input_ids"], mm_token_type_ids=kinds, image_grid_thw=inputs["image_grid_thw"]
    )
    del model.get_image_features
    expected = test_image_patches.expected_logits(model, inputs)
    lm = ImageTextLM(tmp_path, providers=PROVIDERS[1:])
    lm.stop_tokens = frozenset()
    tokens = {name: inputs[name] for name in ("input_ids", "attention_mask")}
    actual = forced_logits(lm, tokens, image_features=features, position_ids=positions.numpy())
    np.testing.assert_allclose(actual, expected, rtol=0, atol=1e-4 * np.abs(expected).max())
    for wrong, message in (
        (positions.numpy()[:2], r"position_ids as integers \[3, 1, 8\], got int64 \[2, 1, 8\]"),
        (positions.numpy() - 9, "expected position_ids >= 0, got -9"),
    ):
        with pytest.raises(ArgumentError, match=message):
            lm.generate_from(
                inputs["input_ids"].numpy(), image_features=features, position_ids=wrong
            )


def test_features_that_depend_on_values_in_python_are_given(tmp_path):
    model = test_image_text.tiny_model("clip")
    own = model.get_image_features

    def get_image_features(pixel_values):
        return own(pixel_values * 2 if pixel_values.sum() > 0 else pixel_values)

    model.get_image_features = get_image_features
    report = export_image_text_to_text(model, tmp_path)
    (warning,) = [w for w in report.parts["text.onnx"].warnings if "vision.onnx" in w]
    assert "a branch, a loop or a number that depends on them" in warning
    assert ImageTextLM(tmp_path, providers=PROVIDERS[1:]).images.kind == "given"


def test_layers_that_take_more_features_are_refused(tmp_path):
    model = without_own_features(test_image_patches.tiny_model("qwen3_vl"))
    with pytest.raises(ExportError, match="the probe raised TypeError"):
        export_image_text_to_text(model, tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_layers_that_take_more_features_are_refused_when_these_cannot_be_traced(tmp_path):
    model = test_image_patches.tiny_model("qwen3_vl")
    embed = model.model.visual.patch_embed
    own = embed.forward
    embed.forward = lambda x: own(x) if x.sum() > 0 else own(x * 1)
    with pytest.raises(ExportError, match="a branch, a loop or a number that depends on them"):
        export_image_text_to_text(model, tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({}, r"image_features \[12, 64\], one for each image token, got \[0, 64\]"),
        ({"image_features": np.zeros((11, 64), np.float32)}, r"\[12, 64\], .* got \[11, 64\]"),
        ({"image_features": np.zeros((12, 63), np.float32)}, r"\[features, 64\], got float32"),
        ({"image_features": np.zeros((12, 64), np.int64)}, "image_features of float32"),
        ({"position_ids": np.zeros((3, 3, 13), np.int64)}, "the model counts its tokens"),
        ({"pixel_values": np.zeros((3, 3, 16, 16), np.float32)}, "expected image_features and"),
    ],
)
def test_wrong_features_raise(exported, changes, message):
    model, directory, _ = exported
    ids, given = arrays(test_image_text.inputs_of(model, 4))
    del given["pixel_values"]
    if "position_ids" in changes:
        changes = {**changes, "image_features": np.zeros((12, 64), np.float32)}
    with pytest.raises(ArgumentError, match=message):
        ImageTextLM(directory, providers=PROVIDERS[1:]).generate_from(ids, **given, **changes)
