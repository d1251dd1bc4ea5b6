"""Models of images and text: logits and generated tokens equal to transformers', errors."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
import transformers
from onnxruntime_npu import cli, export_image_text_to_text
from onnxruntime_npu.converters import quantize_weights
from onnxruntime_npu.errors import ArgumentError, ExportError
from onnxruntime_npu.generation import ImageTextLM

from .conftest import enlarge, model_kept
from .image_runs import (
    IMAGE_TOKEN,
    PROVIDERS,
    TEXT,
    VISION,
    arrays,
    check_runs,
    emitted_by,
    expected_logits,
    exports_of,
    forced_logits,
)

# The vision tower, the language model, and the settings of the whole.
MODELS = {
    "clip": ("clip_vision_model", "llama", {}),
    "siglip": (
        "siglip_vision_model",
        "qwen2",
        {"vision_feature_layer": -1, "vision_feature_select_strategy": "full"},
    ),
}


def tiny_model(kind):
    """Return a random model whose activations are large enough for mistakes to show."""
    torch.manual_seed(5)
    if kind in ("idefics3", "internvl", "smolvlm"):
        config = transformers.AutoConfig.for_model(
            kind,
            vision_config={**VISION, "patch_size": 4},
            text_config={**TEXT},
            image_token_id=IMAGE_TOKEN,
        )
        return enlarge(transformers.AutoModelForImageTextToText.from_config(config).eval())
    if kind == "paligemma":
        config = transformers.PaliGemmaConfig(
            vision_config={**VISION, "model_type": "siglip_vision_model", "vision_use_head": False},
            text_config={**TEXT, "model_type": "gemma", "head_dim": 16},
            image_token_id=IMAGE_TOKEN,
            projection_dim=64,
        )
        return enlarge(transformers.PaliGemmaForConditionalGeneration(config).eval())
    if kind == "gemma3":
        config = transformers.Gemma3Config(
            text_config={
                **TEXT,
                "head_dim": 16,
                "sliding_window": 6,
                "layer_types": ["sliding_attention", "full_attention"],
            },
            vision_config=VISION,
            mm_tokens_per_image=4,
            image_token_id=IMAGE_TOKEN,
        )
        model = transformers.Gemma3ForConditionalGeneration(config).eval()
        torch.nn.init.normal_(model.model.multi_modal_projector.mm_input_projection_weight)  # zeros
        return enlarge(model)
    vision, text, settings = MODELS[kind]
    config = transformers.LlavaConfig(
        vision_config=transformers.AutoConfig.for_model(vision, **VISION),
        text_config=transformers.AutoConfig.for_model(text, **TEXT),
        image_token_id=IMAGE_TOKEN,
        **settings,
    )
    return enlarge(transformers.LlavaForConditionalGeneration(config).eval())


def inputs_of(model, tokens_per_image):
    """Return rows of two images, of one and of none, padded on the left."""
    generator = torch.Generator().manual_seed(9)
    image = [IMAGE_TOKEN] * tokens_per_image
    rows = [[5, *image, 7, 8, *image, 9, 10], [3, *image, 4], [20, 21, 22]]
    longest = max(map(len, rows))
    pixels = torch.randn(3, 3, 16, 16, generator=generator)
    # As many images for each row, some of them padding.
    if model.config.model_type in ("smolvlm", "idefics3"):
        pixels = torch.cat([pixels, torch.zeros(3, 3, 16, 16)]).unflatten(0, (3, 2))
    ids = torch.tensor([[0] * (longest - len(row)) + row for row in rows])
    kinds = {
        "gemma3": {"token_type_ids": (ids == IMAGE_TOKEN).long()},
        "paligemma": {"token_type_ids": torch.zeros_like(ids)},  # all of a prompt
    }
    return {
        **kinds.get(model.config.model_type, {}),
        "input_ids": ids,
        "attention_mask": torch.tensor([[0] * (longest - len(r)) + [1] * len(r) for r in rows]),
        "pixel_values": pixels,
    }


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """Return ``exports_of`` the models of this file."""
    return exports_of(tiny_model, tmp_path_factory)


@pytest.mark.parametrize(
    "kind",
    [
        "clip",
        pytest.param("siglip", marks=pytest.mark.exhaustive),
        pytest.param("smolvlm", marks=pytest.mark.slow),
        pytest.param("gemma3", marks=pytest.mark.slow),
        pytest.param("paligemma", marks=pytest.mark.slow),
        pytest.param("internvl", marks=pytest.mark.slow),
        pytest.param("idefics3", marks=pytest.mark.slow),
    ],
)
def test_logits_and_generated_tokens_equal_those_of_transformers(exported, kind):
    model, directory, report = exported(kind)
    assert report.gaps == [] and report.kept == []
    emitted = emitted_by(report)
    read = 1 if kind == "clip" else 2  # layers of the vision tower that are
    assert emitted[0]["npu_fusion_attention"] == read and emitted[1] == {}
    own = {"npu_swiglu": 2, "npu_rms_norm": 1, "npu_fused_infer_attention_score": 2}
    if kind == "gemma3":  # norms of queries, keys and what is added, too
        own |= {"npu_rms_norm": 9, "npu_geglu": 2}
        del own["npu_swiglu"]
    if kind == "paligemma":  # a mask that is not causal
        own = {"npu_geglu": 2, "npu_rms_norm": 1, "npu_fusion_attention": 2}
    assert emitted[2] == {
        "npu_add_rms_norm": 4,
        "npu_rotary_mul": 4,
        **own,
    }
    lm = ImageTextLM(directory, providers=PROVIDERS[1:])
    inputs = inputs_of(model, lm.tokens_per_image)
    changed = {**inputs, "pixel_values": inputs["pixel_values"].flip(0)}
    check_runs(model, directory, inputs, changed)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"pixel_values": None}, "expected 4 image tokens for each of 0 images, got 12 in all"),
        ({"pixel_values": np.zeros((2, 3, 16, 16), np.float32)}, "each of 2 images, got 12 in all"),
        ({"pixel_values": np.zeros((3, 3, 8, 8), np.float32)}, r"shape \[images, 3, 16, 16\], got"),
        ({"pixel_values": np.zeros((3, 3, 16, 16), np.uint8)}, "pixel_values of float32"),
        ({"attention_mask": np.ones((3, 2), np.int64)}, "attention_mask of shape"),
        ({"attention_mask": np.zeros((3, 13), np.int64)}, "padding on the left"),
        ({"input_ids": np.full((3, 13), 97)}, "expected tokens from 0 to 96"),
        ({"input_ids": np.ones(3, np.int64)}, r"input_ids as integers \[batch, sequence\]"),
        ({"input_ids": np.ones((1, 2))}, r"input_ids as integers \[batch, sequence\]"),
        ({"max_new_tokens": 0}, "max_new_tokens expected a whole number from 1"),
    ],
)
def test_wrong_inputs_raise(exported, changes, message):
    model, directory, _ = exported("clip")
    ids, given = arrays(inputs_of(model, 4))
    given = {"input_ids": ids, **given, **changes}
    with pytest.raises(ArgumentError, match=message):
        ImageTextLM(directory, providers=PROVIDERS[1:]).generate_from(**given)


def test_processors_of_padded_images_may_hide_nothing_else(exported):
    model, directory, _ = exported("clip")
    ids, given = arrays(inputs_of(model, 4))
    lm = ImageTextLM(directory, providers=PROVIDERS[1:])
    expected = lm.generate_from(ids, **given, max_new_tokens=2).tokens
    pixels = given.pop("pixel_values")
    given["pixel_values"] = np.concatenate([pixels, np.zeros_like(pixels)]).reshape(3, 2, 3, 16, 16)
    mask = given["pixel_values"].any(2).astype(np.int64)
    given["mm_token_type_ids"] = (ids == IMAGE_TOKEN).astype(np.int64)
    found = lm.generate_from(ids, pixel_attention_mask=mask, **given, max_new_tokens=2)
    assert found.tokens == expected
    mask[0, 0, 0, 0] = 0
    with pytest.raises(ArgumentError, match="pixel_attention_mask of ones for every image"):
        lm.generate_from(ids, pixel_attention_mask=mask, **given)


def test_more_image_tokens_than_features_are_an_error(exported):
    _, directory, _ = exported("clip")
    embedding = ImageTextLM(directory, providers=PROVIDERS[1:]).embedding
    ids = np.full((1, 3), IMAGE_TOKEN)
    features = np.ones((2, 64), np.float32)
    with pytest.raises(Exception, match="invalid index found, index = 3"):
        embedding.run(None, {"input_ids": ids, "image_features": features})


def test_models_that_are_not_covered_are_refused_in_one_line(tmp_path):
    for model, message in (
        (torch.nn.Linear(2, 2), "cannot export Linear: expected a transformers model of images"),
    ):
        with pytest.raises(ExportError, match=message):
            export_image_text_to_text(model, tmp_path / "out")
    for arguments, message in (
        ({"dtype": "int8"}, "expected dtype to be one of"),
        ({"quant": "w8a8"}, "expected quant to be one of none, w8a16"),
        ({"quant": "w4a16"}, "expected dtype float16 or bfloat16 with quant="),
        ({"model_or_dir": "nowhere"}, "nowhere is no model directory"),
    ):
        with pytest.raises(ArgumentError, match=message):
            export_image_text_to_text(
                **{"model_or_dir": None, "out_dir": tmp_path / "out", **arguments}
            )
    assert not (tmp_path / "out").exists()


def change_text_quantization(folder, values):
    file = folder / "config.json"
    config = json.loads(file.read_text())
    config["text_config"]["quantization_config"] = values
    file.write_text(json.dumps(config))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"quant_method": "gptq", "bits": 4}, "expected float weights, got integers of gptq"),
        ([1], "a quantization_config of type list, expected an object of JSON"),
    ],
)
def test_text_part_that_is_not_in_floats_is_refused(tmp_path, values, message):
    tiny_model("clip").save_pretrained(tmp_path / "in")
    change_text_quantization(tmp_path / "in", values)
    with pytest.raises(ExportError, match=message) as caught:
        export_image_text_to_text(tmp_path / "in", tmp_path / "out")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "out").exists()


def test_command_exports_in_16_bits_as_exactly_as_transformers(tmp_path, capsys):
    """And warns of a text part's unknown quantisation, by which transformers goes."""
    model = tiny_model("clip")
    model.save_pretrained(tmp_path / "in")
    change_text_quantization(tmp_path / "in", {"quant_method": "unheard"})
    capsys.readouterr()
    place = tmp_path / "out"
    arguments = ["export-image-text-to-text", str(tmp_path / "in"), str(place)]
    assert cli.main([*arguments, "--dtype", "bfloat16"]) == 0
    printed = capsys.readouterr()
    (warning,) = [line for line in printed.err.splitlines() if "quant_method 'unheard'" in line]
    assert "the weights are taken for floats without it" in warning
    assert "unheard" not in (place / "config.json").read_text()
    lines = printed.out.strip().splitlines()
    heads = [line for line in lines if not line.startswith("replaced: ")]
    for line, name in zip(heads, ("vision", "embedding", "text"), strict=True):
        assert f"{name}.onnx: LlavaForConditionalGeneration, bfloat16, " in line
    inputs = inputs_of(model, 4)
    exact = expected_logits(model, inputs)
    rounded = {**inputs, "pixel_values": inputs["pixel_values"].bfloat16()}
    model = model.bfloat16()
    theirs = expected_logits(model, rounded) - exact
    ours = forced_logits(ImageTextLM(place), inputs) - exact
    # Both round at every step; the rounding errors are of similar size, not equal.
    assert np.sqrt((ours**2).mean()) <= 2 * np.sqrt((theirs**2).mean())


def test_quantised_text_is_as_exact_as_rounded_weights_in_torch(tmp_path):
    """And the vision, the embedding and the head stay as they are."""
    model = tiny_model("clip")
    with model_kept(model):
        report = export_image_text_to_text(model, tmp_path, dtype="bfloat16", quant="w8a16")
    assert report.gaps == [] and report.kept == []
    vision, _, text = (part.replaced for part in report.parts.values())
    quantised = "npu_weight_quant_batchmatmul"
    assert text[quantised]["emitted"] == 12 and quantised not in vision  # six of each layer
    inputs = inputs_of(model, 4)
    halved = {**inputs, "pixel_values": inputs["pixel_values"].bfloat16()}
    exact = expected_logits(model, inputs)
    model = model.bfloat16()
    rounding = expected_logits(model, halved) - exact
    skip = [n for n, _ in model.named_modules() if "layers" not in n or "vision" in n]
    rounded = expected_logits(quantize_weights(model, "w8a16", skip=skip), halved)
    ours = forced_logits(ImageTextLM(tmp_path), inputs) - rounded
    # Both round activations at every step, and rows of features to bfloat16.
    assert np.sqrt((ours**2).mean()) <= 2 * np.sqrt((rounding**2).mean())
